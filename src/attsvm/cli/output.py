"""What the commands print, whatever the files hold and whatever the terminal can show."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import re
import sys
from collections.abc import Iterator
from typing import Any

from attsvm.base.printable import escaped

_STEERING = re.compile("[\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


class ReaderLeft(Exception):  # noqa: N818 - no error: `attsvm list | head` is done
    """Whoever reads standard output has left."""


def prepare() -> None:
    """Let standard output and error write out what their encoding lacks, instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")


def show(text: object) -> None:
    """Print a line on standard output; control characters are written out."""
    write_out(f"{escaped(str(text))}\n")


def write_out(text: str) -> None:
    """Print a text on standard output as it is: every command prints through here.

    Raises:
        ReaderLeft: it is a pipe that nobody reads any more.
        OSError: it cannot take it, as a full disk.
    """
    try:
        print(text, end="")
    except BrokenPipeError:
        raise ReaderLeft from None


def show_json(value: Any) -> None:
    """Print JSON: characters as they are, but for those that steer a terminal or that its encoding
    lacks.
    """
    text = json.dumps(value, indent=1, ensure_ascii=False)
    text = _STEERING.sub(lambda match: f"\\u{ord(match[0]):04x}", text)
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        text = json.dumps(value, indent=1)
    write_out(f"{text}\n")


def tell(text: object) -> None:
    """Print a line on standard error; a full or closed one is no reason to fail, nor to print it
    among the data.
    """
    if sys.stderr is None:
        return
    with contextlib.suppress(OSError, ValueError):
        print(escaped(str(text)), file=sys.stderr, flush=True)


class _Log(logging.Handler):
    """Records of a log as lines on standard error."""

    def emit(self, record: logging.LogRecord) -> None:
        tell(f"{record.name}: {record.getMessage()}")


@contextlib.contextmanager
def log_shown(is_shown: bool) -> Iterator[None]:
    """A block in which the log ``attsvm`` prints what is worth knowing on standard error."""
    if not is_shown:
        yield
        return
    log, handler = logging.getLogger("attsvm"), _Log()
    level = log.level
    log.setLevel(logging.DEBUG)
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(level)


def finish() -> None:
    """Write out what standard output still holds.

    Raises:
        ReaderLeft, OSError: see :func:`write`.
    """
    if sys.stdout is not None and not sys.stdout.closed:
        try:
            sys.stdout.flush()
        except BrokenPipeError:
            raise ReaderLeft from None


def abandon() -> None:
    """Drop what standard output still holds, so that the end of the process does not try again."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
