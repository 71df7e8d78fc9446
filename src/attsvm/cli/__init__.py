"""The command line: parse, call, print.

Exit codes: 0 done (a certified ``infeasible`` is an answer), 2 bad input, 3 the accuracy asked for
was not reached, 130 interrupted. Data goes to standard output, everything else to standard error.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence

import attsvm
from attsvm.cli import bench, fit, listing, order, report, reproduce, solve
from attsvm.errors import AttsvmError


def parser() -> argparse.ArgumentParser:
    """The parser of every command; building it imports nothing heavy."""
    top = argparse.ArgumentParser(
        prog="attsvm",
        description=(
            "Which token does a softmax-attention layer select, by what margin, and is that its"
            " max-margin solution?"
        ),
    )
    top.add_argument("--version", action="version", version=f"attsvm {attsvm.__version__}")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for command in (fit, solve, order, reproduce, report, bench, listing):
        command.add_parser(commands)
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    options = parser().parse_args(words)
    options.command_line = shlex.join(["attsvm", *words])
    try:
        code: int = options.run(options)
    except AttsvmError as error:
        print(f"attsvm: {error}", file=sys.stderr)
        return error.exit_code
    except MemoryError:
        print(
            "attsvm: the data does not fit into memory; use fewer sequences, --max-tokens or"
            " --dimension",
            file=sys.stderr,
        )
        return 2
    except KeyboardInterrupt:
        print("attsvm: interrupted; the same command goes on from here", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of a pipe has left, as `attsvm list | head` does
        sys.stderr.close()
        return 0
    return code
