"""Runs commands of attsvm in processes of their own that start at once: one process that has
imported everything and forks for each line of standard input, a JSON list of words.

It prints the number of the process, and its exit code when it has ended (negative: a signal).
"""

import importlib
import json
import os
import sys

from attsvm.cli import main


def serve():
    for name in (
        *("attsvm.pipeline.fit", "attsvm.report.page", "sklearn.linear_model"),
        *("attsvm_papers.runs.reproduce", "attsvm_papers.tfsvm.e4_rank"),
        *("matplotlib.backends.backend_agg", "matplotlib.backends.backend_svg"),
    ):
        importlib.import_module(name)
    style = importlib.import_module("attsvm.report.style")
    style._lay_out, style.DOTS = lambda figure: figure.set_layout_engine(None), 30
    figures = importlib.import_module("attsvm.report.figures")
    figures.FIGURES = (figures.accuracy,)
    for line in sys.stdin:
        process = os.fork()
        if process == 0:
            for stream, name in ((0, os.devnull), (1, os.devnull)):
                os.dup2(os.open(name, os.O_RDWR), stream)
            code = 99
            try:
                code = main(json.loads(line))
            finally:
                sys.stderr.flush()
                os._exit(code)
        print(process, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), flush=True)


if __name__ == "__main__":  # workers import this file too
    serve()
