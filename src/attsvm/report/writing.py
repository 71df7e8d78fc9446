"""Drawing and writing, in an order that leaves no half-written file behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from attsvm.files import atomic_write
from attsvm.report.figures import draw
from attsvm.report.folder import read
from attsvm.report.page import render_page
from attsvm.store import announce


def write_report(folder: Path, record: dict[str, Any] | None) -> Path:
    """See :func:`attsvm.report.write`: everything is drawn before the first file is written."""
    run = read(folder, record)
    pictures = draw(run)
    page = render_page(run, pictures).encode(
        "utf-8", errors="replace"
    )  # a lone surrogate in a text must not cost the report
    contents = {
        f"figures/{picture.name}{suffix}": data
        for picture in pictures.values()
        for suffix, data in ((".svg", picture.svg), (".png", picture.png))
    }
    announce(folder, {*contents, "report.html"})
    (folder / "figures").mkdir(exist_ok=True)
    for name, data in (contents | {"report.html": page}).items():
        with atomic_write(folder / name) as partial:
            partial.write_bytes(data)
    return folder / "report.html"
