"""The command line: parse, call, print.

Exit codes: 0 done (a certified ``infeasible`` is an answer), 1 a claim fails under ``--strict``, 2
bad input, 3 the accuracy asked for was not reached, 130 interrupted (143 by SIGTERM, 129 by
SIGHUP). Data goes to standard output, everything else to standard error.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shlex
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import attsvm
from attsvm.base.errors import AttsvmError, InputError
from attsvm.base.interruption import begin_command, interruption_sentence
from attsvm.base.nearest import did_you_mean
from attsvm.base.printable import name_of
from attsvm.cli import bias, fit, listing, output, predict, probe, report, solve
from attsvm.cli.others import commands_of_others

_COMMANDS = {
    "fit": fit,
    "predict": predict,
    "solve": solve,
    "probe": probe,
    "bias": bias,
    "report": report,
    "list": listing,
}
_OPTION = re.compile(
    r"\b(?:(?P<flag>[a-z]+(?:_[a-z]+)*)=True|(?P<prefix>option) (?P<name>[a-z_]+))\b"
)
_SPELLED = {"dim": "dimension", "model": "vectors"}
"""Options whose arguments have another name."""
_CHOICE = re.compile(
    r"argument (\S+): invalid choice: '(.*)' \(choose from (.*)\)", flags=re.DOTALL
)
_WORDING = (
    # what argparse says, and what a user reads
    (r"argument (\S+): expected (?:one|at least one) argument", r"\1 needs a value"),
    (r"argument (\S+): not allowed with argument (\S+)", r"\1 and \2 exclude each other"),
    (r"argument (\S+): ", r"\1: "),
    (r"the following arguments are required: (.*)", r"missing: \1"),
)


def _spell_option(match: re.Match[str]) -> str:
    """An argument in a sentence, ``NAME=True`` or ``option NAME``, as it is written on the command
    line.
    """
    name = match["flag"] or match["name"]
    prefix = f"{match['prefix']} " if match["prefix"] else ""
    return f"{prefix}--{_SPELLED.get(name, name).replace('_', '-')}"


class _Parser(argparse.ArgumentParser):
    """A parser whose complaint is one sentence."""

    def error(self, message: str) -> NoReturn:
        if wrong := _CHOICE.fullmatch(message):
            name, value, choices = wrong[1], wrong[2], re.findall(r"[\w-]+", wrong[3])
            is_command = name == "COMMAND"
            message = f"there is no command {value!r}" if is_command else f"{name} is {value!r}"
            message += f"; choose from {', '.join(choices)}"
            message += did_you_mean(value, choices, cutoff=0.6).rstrip("?")
        for pattern, wording in _WORDING:
            message = re.sub(f"^{pattern}", wording, message, flags=re.DOTALL)
        raise InputError(f"{message}; see {self.prog} --help")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Options and no unknown arguments: the parser of a command refuses them, not the one
        above it.
        """
        options, unknown = super().parse_known_args(args, namespace)
        if unknown:
            meant = did_you_mean(unknown[0].partition("=")[0], self._option_string_actions)
            plural = "s" if len(unknown) > 1 else ""
            self.error(f"unknown argument{plural} {' '.join(unknown)}{meant.rstrip('?')}")
        return options, unknown

    def _print_message(self, message: str, file: Any = None) -> None:
        output.write_out(message)  # argparse is silent when that fails


def parser(command: str = "") -> argparse.ArgumentParser:
    """The parser of one of our commands; of every command, those of other packages included, where
    the name is none of ours. Building it imports nothing heavy.
    """
    top = _Parser(
        prog="attsvm",
        description=(
            "Which word, patch or token decides, and by what margin? fit and predict: for your own"
            " data; probe: for a trained transformer; bias: for who designs optimisers; solve: for"
            " who studies the theory of attention."
        ),
    )
    top.add_argument("--version", action="version", version=f"attsvm {attsvm.__version__}")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True)
    every = [*_COMMANDS.values(), *commands_of_others()] if command not in _COMMANDS else []
    for module in every or [_COMMANDS[command]]:
        module.add_parser(commands)
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code.

    Ctrl-C is Python's here, for programs that call this; a process of the command line ends by
    itself (:mod:`attsvm.base.interruption`).
    """
    begin_command()
    if "_ARGCOMPLETE" in os.environ:
        _complete()
    words = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    output.prepare()
    try:
        options = _parse(words)
        with output.log_shown(getattr(options, "verbose", False)):
            code = 0 if options is None else options.run(options)
        output.finish()
    except AttsvmError as error:
        output.tell(f"attsvm: {_OPTION.sub(_spell_option, str(error))}")
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
        output.tell(f"attsvm: {interruption_sentence()}")
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


def _complete() -> None:
    """Print what may come next in the line that a shell completes, and end the process; nothing
    where argcomplete is not installed.
    """
    with contextlib.suppress(ImportError):
        import argcomplete

        argcomplete.autocomplete(parser())


def _parse(words: list[str]) -> argparse.Namespace | None:
    """The options of a command; None where ``--help`` or ``--version`` has been printed."""
    try:
        options = parser(*words[:1]).parse_args(words)
    except SystemExit:  # what is wrong is an InputError
        return None
    options.command_line = name_of(shlex.join(["attsvm", *words]))
    return options


def _no_memory(error: BaseException) -> bool:
    """Whether memory ran out; torch raises an error of its own, or a plain RuntimeError."""
    message = str(error).lower()
    return (
        isinstance(error, MemoryError) or "allocate memory" in message or "out of memory" in message
    )


def _reason(error: OSError) -> str:
    """The sentence for what no reader or writer has put into words."""
    why = error.strerror or str(error) or type(error).__name__
    if error.filename is None:
        return f"output cannot be written ({why}); check the place it goes to and its free space"
    name = name_of(os.fspath(error.filename)) if not isinstance(error.filename, int) else "a file"
    short = name if len(name) <= 200 else f"{name[:200]}..."
    return f"{short} cannot be used ({why}); check the path, its permissions and the free space"
