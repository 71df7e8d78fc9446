"""Markdown tables that can be read in a terminal, and numbers with the digits they deserve."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def markdown(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table with aligned columns; the first is left-aligned, the others right."""
    cells = [[str(cell).replace("|", "\\|") for cell in row] for row in (headers, *rows)]
    widths = [max(3, *(len(row[k]) for row in cells)) for k in range(len(headers))]
    rule = "|".join(
        ["", "-" * (widths[0] + 2), *("-" * (width + 1) + ":" for width in widths[1:]), ""]
    )

    def line(row: Sequence[str]) -> str:
        padded = [
            row[0].ljust(widths[0]),
            *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)),
        ]
        return f"| {' | '.join(padded)} |"

    return "\n".join([line(cells[0]), rule, *map(line, cells[1:])])


def duration(seconds: float) -> str:
    """Two or three digits and a unit: ``0.26 ms``, ``120 ms``, ``14.6 s``."""
    for limit, factor, unit in ((1e-3, 1e6, "us"), (1.0, 1e3, "ms")):
        if seconds < limit:
            return f"{digits(seconds * factor)} {unit}"
    return f"{digits(seconds)} s"


def digits(value: float) -> str:
    """Two digits below ten, three below a thousand, whole numbers beyond."""
    return f"{value:.2g}" if value < 10 else f"{value:.3g}" if value < 1000 else f"{value:.0f}"


def origin(document: dict[str, Any]) -> str:
    """The lines below the tables: command, date, machine, load, versions."""
    where, loads = document["machine"], document["load"]
    memory = "" if where["memory_gib"] is None else f", {where['memory_gib']} GiB"
    load = (
        "no load average here"
        if loads["before"] is None
        else f"load average {loads['before']} before, {loads['after']} after"
    )
    return "\n".join(
        [
            f"`{document['command']}`, {document['date']}, {load}.",
            (
                f"{where['cpu']}, {where['cores']} cores{memory}, {where['platform']};"
                f" {where['blas']}, {where['threads']} thread(s)."
            ),
            ", ".join(f"{name} {version}" for name, version in document["versions"].items()) + ".",
        ]
    )
