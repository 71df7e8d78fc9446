"""The texts of a file, and an account of what a probe reads of them and what it does not."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from attsvm.base.errors import InputError
from attsvm.base.files import digest, opened
from attsvm.base.printable import escaped

_NAMED = 5  # lines that a sentence names


@dataclass(frozen=True)
class Texts:
    """The texts of a file, a line each.

    Attributes:
        file: the file; ``None`` where the model tells a text of its own.
        used: the texts that are read, by the number of their line, from 1.
        beyond: numbers of the lines whose texts are not read, because ``most`` are.
        empty: how many lines hold nothing.
        most: how many texts are read at most.
        sha256: of the file.
    """

    file: Path | None = None
    used: dict[int, str] = field(default_factory=dict)
    beyond: list[int] = field(default_factory=list)
    empty: int = 0
    most: int = 0
    sha256: str = ""


@dataclass
class Reading:
    """How much of the texts a model has read.

    Attributes:
        limit: the most tokens of a text.
        why: what sets the limit, in words.
        tokens: how many were read, of all texts.
        cut: tokens that were not read at the end of a text, by the number of its line.
    """

    limit: int
    why: str
    tokens: int = 0
    cut: dict[int, int] = field(default_factory=dict)

    def add(self, line: int, tokens: int, read: int) -> None:
        """A text of so many tokens, of which so many were read."""
        self.tokens += read
        if read < tokens:
            self.cut[line] = tokens - read


def read_texts(file: Path, most: int) -> Texts:
    """The first ``most`` texts of a UTF-8 file, a text per line that is not empty.

    Raises:
        InputError: a file that cannot be read, is not UTF-8 or holds no text.
    """
    with opened(file) as stream:
        raw = stream.read()
    try:
        content = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{file} is not UTF-8 ({error}); convert it first") from None
    rows = re.split(r"\r\n|\r|\n", content)  # as editors count lines
    rows = rows if rows[-1] else rows[:-1]
    texts = {number: text for number, row in enumerate(rows, start=1) if (text := row.strip())}
    if not texts:
        raise InputError(f"{file} holds no text; give a text per line")
    numbers = list(texts)
    return Texts(
        file,
        {number: texts[number] for number in numbers[:most]},
        numbers[most:],
        len(rows) - len(texts),
        most,
        digest(raw),
    )


def account(texts: Texts, reading: Reading) -> dict[str, Any]:
    """What was read and what was not, JSON-ready. Of long lists of lines the first few stand."""
    return {
        "file": None if texts.file is None else str(texts.file),
        "texts": len(texts.used) + len(texts.beyond),
        "used": len(texts.used),
        "tokens": reading.tokens,
        "not_used": _group(texts.beyond, f"--texts is {texts.most}"),
        "cut": {
            **_group(list(reading.cut), reading.why),
            "tokens": sum(reading.cut.values()),
        },
        "empty_lines": texts.empty,
    }


def _group(lines: Sequence[int], why: str) -> dict[str, Any]:
    return {"count": len(lines), "lines": list(lines[:_NAMED]), "why": why if lines else None}


def sentences(texts: Texts, reading: Reading) -> list[str]:
    """The same in words."""
    if texts.file is None:
        return [f"The model tells a text of its own, of {reading.tokens} tokens."]
    used, total = len(texts.used), len(texts.used) + len(texts.beyond)
    name = escaped(texts.file.name)
    if texts.beyond:
        told = [
            f"{used:,} of the {total:,} texts of {name} {_were(used)} used, {reading.tokens:,}"
            f" tokens; {len(texts.beyond):,} {_were(len(texts.beyond))} not"
            f" ({_lines(texts.beyond)}), because --texts is {texts.most:,}."
        ]
    elif total == 1:
        told = [f"The one text of {name} was used, {reading.tokens:,} tokens."]
    else:
        told = [f"All {total:,} texts of {name} were used, {reading.tokens:,} tokens."]
    if reading.cut:
        n, lost = len(reading.cut), sum(reading.cut.values())
        whose = f"{n:,} of them {'is' if n == 1 else 'are'}" if used > 1 else "It is"
        told.append(
            f"{whose} longer than {reading.limit:,} tokens ({_lines(list(reading.cut))}):"
            f" the last {lost:,} tokens {_were(lost)} not read, because {reading.why}."
        )
    if texts.empty:
        one = texts.empty == 1
        told.append(
            "1 line is empty and no text."
            if one
            else f"{texts.empty:,} lines are empty and no texts."
        )
    return told


def _were(count: int) -> str:
    return "was" if count == 1 else "were"


def _lines(numbers: Sequence[int]) -> str:
    """Some lines by number: a few are named, the rest are counted."""
    if len(numbers) == 1:
        return f"line {numbers[0]}"
    named = numbers if len(numbers) <= _NAMED + 1 else numbers[:_NAMED]
    words = ", ".join(f"{number}" for number in named[:-1])
    if len(named) == len(numbers):
        return f"lines {words} and {named[-1]}"
    return f"lines {words}, {named[-1]} and {len(numbers) - _NAMED:,} more"
