"""What a benchmark keeps: cells while it runs, ``bench.json``, ``bench.md`` and ``report.html`` in
the end.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from attsvm.bench.machine import load, machine, now, versions
from attsvm.files import atomic_write
from attsvm.report.sections import from_markdown, sections_page
from attsvm.store import RunFolder, fingerprint, read_json, write_json

FORMAT = "attsvm-bench/1"
_HEADLINE = "attsvm and its peers on the same instances in the same run, on this machine."
_FILES = ("bench.md", "report.html", "bench.json")


class Cells:
    """Measured cells by what was measured, kept in a run's folder when there is one, each written
    whole as soon as it is known.
    """

    def __init__(self, run: RunFolder | None) -> None:
        self._run = run

    def get(self, identity: dict[str, Any]) -> dict[str, Any] | None:
        """The cell with this identity, or ``None`` when it has not been measured."""
        if self._run is None or not (path := self._run.path / _name(identity)).exists():
            return None
        return read_json(path)

    def put(self, identity: dict[str, Any], result: dict[str, Any]) -> dict[str, Any]:
        """Identity and result as one cell, kept."""
        cell = {**identity, **result}
        if self._run is not None:
            name = _name(identity)
            self._run.announce([name])
            (self._run.path / name).parent.mkdir(exist_ok=True)
            write_json(self._run.path / name, cell)
        return cell


def _name(identity: dict[str, Any]) -> str:
    readable = re.sub(r"[^\w.]+", "-", "-".join(str(value) for value in identity.values()))
    return f"cells/{readable[:80]}-{fingerprint(identity)[:8]}.json"


@contextmanager
def recording(
    out: Path | None,
    kind: str,
    settings: dict[str, Any],
    *,
    code: str = "",
    overwrite: bool = False,
) -> Iterator[Cells]:
    """The cells of one benchmark, measured by code of this fingerprint; in ``out`` those that an
    earlier process finished are there already.

    Raises:
        InputError: ``out`` holds another run, other files, or is being written by another process.
    """
    if out is None:
        yield Cells(None)
        return
    request = {"command": f"bench {kind}", **settings, "versions": versions(), "code": code}
    with RunFolder(out, request, files=_FILES, overwrite=overwrite) as run:
        yield Cells(run)


def document(
    kind: str,
    settings: dict[str, Any],
    command: str,
    load_before: float | None,
    threads: int,
    **content: Any,
) -> dict[str, Any]:
    """The content of ``bench.json``."""
    return {
        "format": FORMAT,
        "kind": kind,
        "command": command,
        "date": now(),
        "machine": machine(threads),
        "versions": versions(),
        "load": {"before": load_before, "after": load()},
        "settings": settings,
        **content,
    }


def write(out: Path, content: dict[str, Any], text: str) -> None:
    """``bench.md``, ``report.html`` and ``bench.json``, atomically, the last one last."""
    with atomic_write(out / "bench.md") as partial:
        partial.write_text(text + "\n", encoding="utf-8")
    page = sections_page(f"attsvm bench {content['kind']}", _HEADLINE, from_markdown(text))
    with atomic_write(out / "report.html") as partial:
        partial.write_bytes(page)
    write_json(out / "bench.json", content)
