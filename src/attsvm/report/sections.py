"""A page of sections, each words, a table and pictures: what ``attsvm order`` and ``attsvm bench``
write.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from attsvm.report.page import POLICY, document
from attsvm.report.style import Picture, inline


@dataclass(frozen=True)
class Section:
    """A heading and what stands under it.

    Attributes:
        title: the heading; none for words that belong to no other section.
        words: paragraphs.
        items: a list below them.
        headers: of the table; its first column is text, the others are numbers.
        rows: of the table.
        pictures: drawn, side by side.
    """

    title: str = ""
    words: tuple[str, ...] = ()
    items: tuple[str, ...] = ()
    headers: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    pictures: tuple[Picture, ...] = ()


def sections_page(
    title: str, headline: str, sections: Sequence[Section], command: str = ""
) -> bytes:
    """One self-contained HTML page, without scripts.

    Args:
        title: its name.
        headline: what a person learns first.
        sections: from top to bottom.
        command: what made it, printed at its end.
    """
    from markupsafe import Markup

    return document(
        "sections.html.j2",
        policy=POLICY,
        title=title,
        headline=headline,
        sections=[
            (each, [(picture, Markup(inline(picture))) for picture in each.pictures])
            for each in sections
        ],
        command=command,
    ).encode("utf-8")


def from_markdown(text: str) -> list[Section]:
    """Sections of what a benchmark prints: a line in ``**`` is a heading, lines that begin with
    ``|`` a table, lines that begin with ``-`` a list, other lines next to each other a paragraph.
    """
    found: list[Section] = []
    for block in re.split(r"\n\s*\n", text.strip()):
        lines = [line.replace("`", "") for line in block.splitlines()]
        if re.fullmatch(r"\*\*.*\*\*", lines[0]):
            found.append(Section(lines.pop(0).strip("*")))
        elif not found or found[-1].rows or lines[0].startswith("|"):
            found.append(Section(found.pop().title if found and _empty(found[-1]) else ""))
        last = found.pop()
        cells = [_cells(line) for line in lines if line.startswith("|")]
        items = tuple(line[2:] for line in lines if line.startswith("- "))
        words = " ".join(line for line in lines if line[:1] not in ("|", "-"))
        found.append(
            Section(
                last.title,
                (*last.words, *([words] if words else [])),
                last.items + items,
                cells[0] if cells else (),
                tuple(cells[2:]),
            )
        )
    return found


def _empty(section: Section) -> bool:
    return not (section.words or section.items or section.rows)


def _cells(line: str) -> tuple[str, ...]:
    parts = re.split(r"(?<!\\)\|", line.strip()[1:-1])
    return tuple(part.strip().replace("\\|", "|") for part in parts)
