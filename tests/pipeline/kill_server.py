"""Runs commands of attsvm in processes of their own that start at once: one process that has
imported everything and forks for each line of standard input, a JSON list of words.

It prints the number of the process, and its exit code when it has ended (negative: a signal). What
the last command prints on standard error goes to the file that is named as an argument. A page has
one figure, or all of them with a second argument ``all``.
"""

import contextlib
import importlib
import json
import os
import sys

from attsvm.__main__ import main


def serve():
    for name in (
        *("attsvm.pipeline.fit", "attsvm.report.page", "sklearn.linear_model"),
        *("attsvm_papers.runs.reproduce", "attsvm_papers.tfsvm.e4_rank"),
        *("matplotlib.backends.backend_agg", "matplotlib.backends.backend_svg"),
    ):
        importlib.import_module(name)
    style = importlib.import_module("attsvm.report.style")
    pictures = style.saved_with(style.PictureOptions(dots=30, lay_out=False))
    pictures.__enter__()  # until the process ends
    figures = importlib.import_module("attsvm.report.figures")
    if sys.argv[2:] != ["all"]:
        figures.FIGURES = (figures.accuracy,)
    for line in sys.stdin:
        process = os.fork()
        if process == 0:
            os.setpgid(0, 0)
            said = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
            for stream, descriptor in enumerate((os.open(os.devnull, os.O_RDWR),) * 2 + (said,)):
                os.dup2(descriptor, stream)
            sys.argv[1:] = json.loads(line)
            code = 99
            try:
                code = main()
            finally:
                sys.stderr.flush()
                os._exit(code)
        with contextlib.suppress(OSError):  # it has done so itself, or has ended
            os.setpgid(process, process)
        print(process, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), flush=True)


if __name__ == "__main__":  # workers import this file too
    serve()
