"""The folder of an audit: ``run.json`` with every figure, and its page."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attsvm.base.files import digest, write_file
from attsvm.base.store import RunFolder, environment, finished_run
from attsvm.base.store.run_folder import FORMAT
from attsvm.transformers.audit_page import Shown, detail, headline, notes, page

PAGE = "report.html"


Table = list[dict[str, Any]]


def save(found: Shown, table: Table, folder: Path, title: str, overwrite: bool) -> Path:
    """Write an audit, whose table this is, into a folder of its own; the page."""
    told = {"command": "probe", "title": title, "sha256": digest(_finite(table))}
    if not finished_run(folder, told):
        with RunFolder(folder, told, files=[PAGE], overwrite=overwrite) as run:
            write(run, found, table, told, title or folder.name, "")
    return folder / PAGE


def write(
    run: RunFolder,
    found: Shown,
    table: Table,
    told: dict[str, Any],
    title: str,
    command: str,
    before: Sequence[str] = (),
    about: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Page and record of an audit, in an open folder; the content of ``run.json``.

    ``before``: sentences before the audit's own notes. ``about``: what else the record says.
    """
    write_page(run.path / PAGE, found, title, command, before)
    return run.finish(
        {
            "format": FORMAT,
            "request": told,
            "environment": environment(),
            "headline": headline(found),
            "detail": detail(found),
            "notes": [*before, *notes(found)],
            **(about or {}),
            "heads": _finite(table),
        }
    )


def write_page(
    path: Path, found: Shown, title: str, command: str, before: Sequence[str] = ()
) -> None:
    """The page of an audit, of which heads may be left."""
    write_file(path, page(found, title, command, before))


def _finite(table: Table) -> Table:
    """The table, ``None`` for what is not a number."""
    return [
        {
            key: None if isinstance(value, float) and not math.isfinite(value) else value
            for key, value in row.items()
        }
        for row in table
    ]
