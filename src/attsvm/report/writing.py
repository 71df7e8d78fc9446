"""Drawing and writing, in an order that leaves no half-written file behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from attsvm.errors import InputError
from attsvm.files import atomic_write, brief
from attsvm.printable import name_of
from attsvm.report.figures import draw
from attsvm.report.folder import read
from attsvm.report.page import render_page
from attsvm.store import announce


def write_report(folder: Path, record: dict[str, Any] | None) -> Path:
    """See :func:`attsvm.report.write`: everything is drawn before the first file is written."""
    run = read(folder, record)
    try:
        pictures = draw(run)
        page = render_page(run, pictures).encode("utf-8")
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        if record is not None or isinstance(error, InputError):  # not read from files
            raise
        raise InputError(
            f"the files in {name_of(folder)} are not as attsvm fit writes them"
            f" ({type(error).__name__}: {brief(str(error))}); fit again with overwrite=True"
        ) from error
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
