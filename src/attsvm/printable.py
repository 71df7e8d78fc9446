"""Text of unknown origin, made safe to look at."""

from __future__ import annotations

import os
import re
from pathlib import Path

# Control characters, line and paragraph separators, characters that turn the direction of what
# follows, and halves of characters that UTF-8 does not have.
_HIDDEN = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_HALVES = re.compile("[\ud800-\udfff]")


def escaped(text: str, keep: str = "") -> str:
    r"""The same text on one line of a terminal: what steers it is written out, as ``\x1b``.

    Args:
        text: anything.
        keep: characters that stay as they are, such as line ends.
    """
    return _HIDDEN.sub(lambda found: found[0] if found[0] in keep else _code(found[0]), text)


def visible(text: str) -> str:
    """The same text, character for character, with a sign for each character that steers a page or
    cannot be in one; tabs and line ends stay.
    """
    return _HIDDEN.sub(lambda found: found[0] if found[0] in "\t\n\r" else _sign(found[0]), text)


def has_halves(text: str) -> bool:
    r"""Whether the text holds half of a surrogate pair, as ``"\ud800"`` in JSON does: no Unicode
    text, and nothing that could be written to a file.
    """
    return _HALVES.search(text) is not None


def name_of(path: str | Path) -> str:
    r"""A file name, or a command line, as text: bytes that are not UTF-8 are written out, as
    ``\xff``.
    """
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def _code(character: str) -> str:
    number = ord(character)
    return f"\\x{number:02x}" if number < 256 else f"\\u{number:04x}"


def _sign(character: str) -> str:
    number = ord(character)
    return chr(0x2400 + number) if number < 32 else "\u2421" if number == 127 else "\ufffd"
