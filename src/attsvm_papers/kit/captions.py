"""Title, protocol, source and notes of a figure, read off its docstring without running it."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path
from typing import NamedTuple


class FigureText(NamedTuple):
    """The docstring of a figure, by its paragraphs.

    Attributes:
        title: its first paragraph, what is shown.
        protocol: what is done, as a caption would say it: the paragraphs between.
        reference: the lines from ``Source:`` on, up to an empty one or ``Notes:``; the paper, the
            figure, and what was recalled.
        notes: the lines from ``Notes:`` on; what a reader should know.
    """

    title: str
    protocol: str
    reference: str
    notes: str


def parse_docstring(docstring: str) -> FigureText:
    """Title, protocol, source and notes in a figure's docstring."""
    text = re.sub(r"\n(?=(?:Source|Notes):)", "\n\n", inspect.cleandoc(docstring))
    paragraphs = [one_line(paragraph) for paragraph in re.split(r"\n{2,}", text)]
    marked = {"Source:": "", "Notes:": ""}
    protocol = []
    for paragraph in paragraphs[1:]:
        mark = next((mark for mark in marked if paragraph.startswith(mark)), None)
        if mark is None:
            protocol.append(paragraph)
        else:
            marked[mark] = paragraph.removeprefix(mark).strip()
    return FigureText(
        paragraphs[0].removesuffix("."), " ".join(protocol), marked["Source:"], marked["Notes:"]
    )


def text_of_file(path: Path) -> FigureText:
    """Title, protocol, source and notes of a figure's file, which is parsed and not run."""
    return parse_docstring(
        ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or path.stem
    )


def one_line(text: str) -> str:
    """The text with single spaces and no line breaks."""
    return " ".join(text.split())
