"""The texts of a file, and an account of what a probe reads of them and what it does not."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from attsvm.base.errors import InputError
from attsvm.base.files import digest, opened
from attsvm.base.printable import escaped


@dataclass(frozen=True)
class ProbeTexts:
    """The texts of a file, a line each.

    Attributes:
        file: the file; ``None`` where the text comes with the model.
        used: the texts that are read, by the number of their line, from 1.
        beyond: numbers of the lines whose texts are not read, because ``most`` are.
        empty: number of lines that hold nothing.
        most: largest number of texts to read.
        sha256: of the file.
        are_pictures: the texts are names of files with pictures, of a folder.
    """

    file: Path | None = None
    used: dict[int, str] = field(default_factory=dict)
    beyond: list[int] = field(default_factory=list)
    empty: int = 0
    most: int = 0
    sha256: str = ""
    are_pictures: bool = False


@dataclass
class TextCoverage:
    """The tokens of the texts that a model has read, and those that it has not.

    Attributes:
        limit: the most tokens of a text.
        why: what sets the limit, in words.
        tokens: number that were read, of all texts.
        cut: tokens that were not read at the end of a text, by the number of its line.
        short: numbers of the lines with fewer than two tokens, which were left out.
    """

    limit: int
    why: str
    tokens: int = 0
    cut: dict[int, int] = field(default_factory=dict)
    short: list[int] = field(default_factory=list)

    def add(self, line: int, tokens: int, read: int) -> None:
        """Count a text of so many tokens, of which so many were read."""
        self.tokens += read
        if read < tokens:
            self.cut[line] = tokens - read


def read_probe_texts(file: Path, most: int) -> ProbeTexts:
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
    # lines as editors count them: str.splitlines would break at more characters
    rows = re.split(r"\r\n|\r|\n", content)
    rows = rows if rows[-1] else rows[:-1]
    texts = {number: text for number, row in enumerate(rows, start=1) if (text := row.strip())}
    if not texts:
        raise InputError(f"{file} holds no text; give a text per line")
    numbers = list(texts)
    return ProbeTexts(
        file,
        {number: texts[number] for number in numbers[:most]},
        numbers[most:],
        len(rows) - len(texts),
        most,
        digest(raw),
    )


def find_pictures(folder: Path, most: int) -> ProbeTexts:
    """The first ``most`` pictures of a folder, by name.

    Raises:
        InputError: what is no folder, or has no pictures.
    """
    if not folder.is_dir():
        raise InputError(f"there is no folder {escaped(str(folder))}; give a folder of pictures")
    suffixes = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff"}
    files = sorted(path for path in folder.iterdir() if path.suffix.lower() in suffixes)
    if not files:
        raise InputError(f"{escaped(str(folder))} holds no pictures (.png, .jpg, ...)")
    lines = [f"{path.name}\0{digest(path)}\0" for path in files[:most]]
    return ProbeTexts(
        folder,
        {number: str(path) for number, path in enumerate(files[:most], start=1)},
        list(range(most + 1, len(files) + 1)),
        0,
        most,
        digest(*map(os.fsencode, lines)),
        are_pictures=True,
    )


def read_picture(file: Path) -> Any:
    """The picture of a file, in colours.

    Raises:
        InputError: a file that is no picture.
    """
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(file) as picture:
            return picture.convert("RGB")
    except (OSError, UnidentifiedImageError) as error:
        raise InputError(f"{escaped(str(file))} is no picture ({error})") from None


def coverage_record(texts: ProbeTexts, coverage: TextCoverage) -> dict[str, Any]:
    """The texts that were read and those that were not, JSON-ready; of long lists of lines the
    first few.
    """
    return {
        "file": None if texts.file is None else str(texts.file),
        "texts": len(texts.used) + len(texts.beyond),
        "used": len(texts.used) - len(coverage.short),
        "tokens": coverage.tokens,
        "not_used": _group(texts.beyond, f"--texts is {texts.most}"),
        "cut": {
            **_group(list(coverage.cut), coverage.why),
            "tokens": sum(coverage.cut.values()),
        },
        "empty_lines": texts.empty,
        "short": _group(coverage.short, "fewer than two tokens"),
    }


def _group(lines: Sequence[int], why: str, named: int = 5) -> dict[str, Any]:
    return {"count": len(lines), "lines": list(lines[:named]), "why": why if lines else None}


def coverage_sentences(texts: ProbeTexts, coverage: TextCoverage) -> list[str]:
    """Sentences on the texts that were read and those that were not."""
    if texts.file is None:
        return [f"The text comes with the model; tokens read: {coverage.tokens}."]
    used, total = len(texts.used), len(texts.used) + len(texts.beyond)
    name = escaped(texts.file.name)
    if texts.are_pictures:
        return [_picture_sentence(name, used, total, texts.most, coverage.tokens)]
    if texts.beyond:
        sentences = [
            f"{used:,} of the {total:,} texts of {name} {_were(used)} used, {coverage.tokens:,}"
            f" tokens; {len(texts.beyond):,} {_were(len(texts.beyond))} not"
            f" ({_name_lines(texts.beyond)}), because --texts is {texts.most:,}."
        ]
    elif total == 1:
        sentences = [f"The one text of {name} was used, {coverage.tokens:,} tokens."]
    else:
        sentences = [f"All {total:,} texts of {name} were used, {coverage.tokens:,} tokens."]
    if coverage.cut:
        n, lost = len(coverage.cut), sum(coverage.cut.values())
        whose = f"{n:,} of them {'is' if n == 1 else 'are'}" if used > 1 else "It is"
        sentences.append(
            f"{whose} longer than {coverage.limit:,} tokens ({_name_lines(list(coverage.cut))}):"
            f" the last {lost:,} tokens {_were(lost)} not read, because {coverage.why}."
        )
    if coverage.short:
        n = len(coverage.short)
        sentences.append(
            f"{n:,} of them {'has' if n == 1 else 'have'} fewer than two tokens"
            f" ({_name_lines(coverage.short)}) and {_were(n)} left out."
        )
    if texts.empty:
        sentences.append(
            "1 line is empty and no text."
            if texts.empty == 1
            else f"{texts.empty:,} lines are empty and no texts."
        )
    return sentences


def _picture_sentence(name: str, used: int, total: int, most: int, patches: int) -> str:
    if used == total == 1:
        return f"The one picture of {name} was used, {patches:,} patches."
    if used == total:
        return f"All {total:,} pictures of {name} were used, {patches:,} patches."
    return (
        f"{used:,} of the {total:,} pictures of {name} {_were(used)} used, {patches:,} patches;"
        f" the others were not, because --texts is {most:,}."
    )


def _were(count: int) -> str:
    return "was" if count == 1 else "were"


def _name_lines(numbers: Sequence[int], longest: int = 5) -> str:
    """Some lines by number: a few are named, the rest are counted."""
    if len(numbers) == 1:
        return f"line {numbers[0]}"
    named = numbers if len(numbers) <= longest + 1 else numbers[:longest]
    words = ", ".join(f"{number}" for number in named[:-1])
    if len(named) == len(numbers):
        return f"lines {words} and {named[-1]}"
    return f"lines {words}, {named[-1]} and {len(numbers) - longest:,} more"
