"""The folder of an audit: ``run.json`` with every figure, and its page."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attsvm.base.files import digest, write_file
from attsvm.base.store import RunFolder, environment, finished_run
from attsvm.base.store.run_folder import FORMAT
from attsvm.transformers.audit_page import (
    AuditOrCheckpoints,
    detail,
    headline,
    notes,
    render_audit_page,
)

PAGE = "report.html"

Table = list[dict[str, Any]]
"""Flat rows, a head each."""


def save_audit(
    audit: AuditOrCheckpoints, table: Table, folder: Path, title: str, overwrite: bool
) -> Path:
    """Write an audit, whose table this is, into a folder of its own; return the page."""
    request = {"command": "probe", "title": title, "sha256": digest(_without_nan(table))}
    # the same table in the same folder is written once
    if not finished_run(folder, request):
        with RunFolder(folder, request, files=[PAGE], overwrite=overwrite) as run:
            write_audit(run, audit, table, request, title or folder.name, "")
    return folder / PAGE


def write_audit(
    run: RunFolder,
    audit: AuditOrCheckpoints,
    table: Table,
    request: dict[str, Any],
    title: str,
    command: str,
    notes_before: Sequence[str] = (),
    entries: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Write page and record of an audit into an open folder; return the content of ``run.json``.

    Args:
        run: the folder.
        audit: what the page shows.
        table: its rows, for the record.
        request: what decides the result.
        title: of the page.
        command: what made it, printed at its end.
        notes_before: sentences before the audit's own notes.
        entries: further entries of the record.
    """
    write_audit_page(run.path / PAGE, audit, title, command, notes_before)
    return run.finish(
        {
            "format": FORMAT,
            "request": request,
            "environment": environment(),
            "headline": headline(audit),
            "detail": detail(audit),
            "notes": [*notes_before, *notes(audit)],
            **(entries or {}),
            "heads": _without_nan(table),
        }
    )


def write_audit_page(
    path: Path,
    audit: AuditOrCheckpoints,
    title: str,
    command: str,
    notes_before: Sequence[str] = (),
) -> None:
    """Write the page of an audit, of which heads may be pending."""
    write_file(path, render_audit_page(audit, title, command, notes_before))


def _without_nan(table: Table) -> Table:
    """The table, ``None`` for what is not a number."""
    return [
        {
            key: None if isinstance(value, float) and not math.isfinite(value) else value
            for key, value in row.items()
        }
        for row in table
    ]
