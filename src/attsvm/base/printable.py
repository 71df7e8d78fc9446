"""Text of unknown origin, made safe to look at, and values in a few words."""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

# Control characters, line and paragraph separators, characters that turn the direction of what
# follows, and halves of characters that UTF-8 does not have.
_HIDDEN = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_HALVES = re.compile("[\ud800-\udfff]")


def escaped(text: str) -> str:
    r"""Text for one line of a terminal: characters that steer it are written out, as ``\x1b``."""
    return _HIDDEN.sub(lambda match: _code(match[0]), text)


def visible(text: str) -> str:
    """Text for a page, character for character, with a sign for each one that steers a page or
    cannot be in it; tabs and line ends stay.
    """
    return _HIDDEN.sub(lambda match: match[0] if match[0] in "\t\n\r" else _sign(match[0]), text)


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


def kind(value: object) -> str:
    """A value for one sentence: a short one itself, others by type and shape."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if value is None or isinstance(value, str | float | int):
        text = repr(value)
        return text if len(text) <= 40 else f"{text[:40]}..."
    shape = getattr(value, "shape", None)
    return f"{type(value).__name__}{f' of shape {shape}' if isinstance(shape, tuple) else ''}"


class Compact:
    """A dataclass whose ``repr`` has at most 300 characters: arrays and long collections are told
    by their sizes.
    """

    def __repr__(self) -> str:
        from dataclasses import fields  # a fifth of the start of a command

        record: Any = self
        names = [field.name for field in fields(record) if field.repr]
        values = ", ".join(f"{name}={_short_value(getattr(record, name))}" for name in names)
        text = f"{type(self).__name__}({values})"
        return text if len(text) <= 300 else f"{text[:296]}...)"


def _short_value(value: Any) -> str:
    if isinstance(value, str):
        return repr(value) if len(value) <= 60 else f"{value[:57]!r}..."
    shape = getattr(value, "shape", None)
    if isinstance(shape, tuple) and shape:
        return f"<{' x '.join(map(str, shape))} {getattr(value, 'dtype', type(value).__name__)}>"
    size = len(value) if isinstance(value, Collection) else 0
    if size <= 6 and len(text := repr(value)) <= 60:  # of more, not even the text is made
        return text
    return f"<{type(value).__name__}{f' of {size}' if size else ''}>"
