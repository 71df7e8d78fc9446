"""The command line: parse, call, print.

Exit codes: 0 done (a certified ``infeasible`` is an answer), 2 bad input, 3 the accuracy asked for
was not reached, 130 interrupted (143 by SIGTERM, 129 by SIGHUP). Data goes to standard output,
everything else to standard error.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import attsvm
from attsvm.base.errors import AttsvmError, InputError
from attsvm.base.interruption import begin_command, sentence
from attsvm.base.nearest import did_you_mean
from attsvm.base.printable import name_of
from attsvm.cli import bias, fit, listing, output, probe, report, solve
from attsvm.cli.others import commands_of_others

_OWN = {"fit": fit, "solve": solve, "probe": probe, "bias": bias, "report": report, "list": listing}
_OPTION = re.compile(
    r"\b(?:(?P<flag>[a-z]+(?:_[a-z]+)*)=True|(?P<asked>option) (?P<name>[a-z_]+))\b"
)
_SPELLED = {"dim": "dimension", "model": "vectors"}
"""Options whose arguments have another name."""
_CHOICE = re.compile(r"invalid choice: '(.*)' \(choose from (.*)\)", flags=re.DOTALL)


def _option(found: re.Match[str]) -> str:
    """An argument of a sentence, ``NAME=True`` or ``option NAME``, as it is written on the command
    line.
    """
    name = found["flag"] or found["name"]
    asked = f"{found['asked']} " if found["asked"] else ""
    return f"{asked}--{_SPELLED.get(name, name).replace('_', '-')}"


class _Parser(argparse.ArgumentParser):
    """A parser whose complaint is one sentence."""

    def error(self, message: str) -> NoReturn:
        wrong = _CHOICE.search(message)
        meant = did_you_mean(wrong[1], re.findall(r"[\w-]+", wrong[2])) if wrong else ""
        raise InputError(f"{message}{meant}; see {self.prog} --help")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Nothing may be left over: the parser of a command says so, not the one above it."""
        found, left = super().parse_known_args(args, namespace)
        if left:
            meant = did_you_mean(left[0].partition("=")[0], self._option_string_actions)
            self.error(f"unrecognized arguments: {' '.join(left)}{meant}")
        return found, left

    def _print_message(self, message: str, file: Any = None) -> None:
        output.write(message)  # argparse is silent when that fails


def parser(command: str = "") -> argparse.ArgumentParser:
    """The parser of every command; building it imports nothing heavy. Commands of other packages
    are looked for where the one that is asked for is not ours.
    """
    top = _Parser(
        prog="attsvm",
        description=(
            "Which token does a softmax-attention layer select, by what margin, and is that its"
            " max-margin solution?"
        ),
    )
    top.add_argument("--version", action="version", version=f"attsvm {attsvm.__version__}")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for each in [*_OWN.values(), *([] if command in _OWN else commands_of_others())]:
        each.add_parser(commands)
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code.

    Ctrl-C is Python's here, for programs that call this; a process of the command line ends by
    itself (:mod:`attsvm.base.interruption`).
    """
    begin_command()
    words = list(sys.argv[1:] if arguments is None else arguments)
    output.prepare()
    try:
        code = _run(words)
        output.finish()
    except AttsvmError as error:
        output.tell(f"attsvm: {_OPTION.sub(_option, str(error))}")
        code = error.exit_code
    except (MemoryError, RuntimeError) as error:
        if not _no_memory(error):
            raise
        output.tell(
            "attsvm: the data does not fit into memory; give fewer or shorter sequences, or smaller"
            " sizes"
        )
        code = InputError.exit_code
    except KeyboardInterrupt:
        output.tell(f"attsvm: {sentence()}")
        code = 130
    except output.ReaderLeft:  # as `attsvm list | head` does
        output.abandon()
        code = 0
    except OSError as error:
        output.abandon()
        output.tell(f"attsvm: {_reason(error)}")
        code = InputError.exit_code
    except UnicodeError as error:
        output.tell(f"attsvm: a text cannot be written ({error}); give text in UTF-8")
        code = InputError.exit_code
    return code


def _run(words: list[str]) -> int:
    try:
        options = parser(*words[:1]).parse_args(words)
    except SystemExit:  # --help or --version has been printed; what is wrong is an InputError
        return 0
    options.command_line = name_of(shlex.join(["attsvm", *words]))
    return options.run(options)


def _no_memory(error: BaseException) -> bool:
    """Torch says so with an error of its own, or with a plain RuntimeError."""
    words = str(error).lower()
    return isinstance(error, MemoryError) or "allocate memory" in words or "out of memory" in words


def _reason(error: OSError) -> str:
    """The sentence for what no reader or writer has put into words."""
    why = error.strerror or str(error) or type(error).__name__
    if error.filename is None:
        return f"output cannot be written ({why}); check the place it goes to and its free space"
    place = name_of(os.fspath(error.filename)) if not isinstance(error.filename, int) else "a file"
    shown = place if len(place) <= 200 else f"{place[:200]}..."
    return f"{shown} cannot be used ({why}); check the path, its permissions and the free space"
