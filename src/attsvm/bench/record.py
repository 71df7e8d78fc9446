"""What a benchmark keeps: cells while it runs, ``bench.json`` and ``bench.md`` when it is done."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from attsvm.bench.machine import load, machine, now, versions
from attsvm.files import atomic_write
from attsvm.store import RunFolder, fingerprint, read_json, write_json

FORMAT = "attsvm-bench/1"


class Cells:
    """Measured cells by what was measured, kept in a folder when there is one, each written whole
    as soon as it is known.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = None if folder is None else folder / "cells"
        if self._folder is not None:
            self._folder.mkdir(exist_ok=True)

    def get(self, identity: dict[str, Any]) -> dict[str, Any] | None:
        """The cell with this identity, or ``None`` when it has not been measured."""
        if self._folder is None or not self._path(identity).exists():
            return None
        cell: dict[str, Any] = read_json(self._path(identity))
        return cell

    def put(self, identity: dict[str, Any], result: dict[str, Any]) -> dict[str, Any]:
        """Identity and result as one cell, kept."""
        cell = {**identity, **result}
        if self._folder is not None:
            write_json(self._path(identity), cell)
        return cell

    def _path(self, identity: dict[str, Any]) -> Path:
        assert self._folder is not None
        readable = re.sub(r"[^\w.]+", "-", "-".join(str(value) for value in identity.values()))
        return self._folder / f"{readable[:80]}-{fingerprint(identity)[:8]}.json"


@contextmanager
def recording(
    out: Path | None, kind: str, settings: dict[str, Any], *, overwrite: bool = False
) -> Iterator[Cells]:
    """The cells of one benchmark; in ``out`` those that an earlier process finished are there
    already.

    Raises:
        InputError: ``out`` holds another run, other files, or is being written by another process.
    """
    if out is None:
        yield Cells(None)
        return
    with RunFolder(
        out, {"command": f"bench {kind}", **settings, "versions": versions()}, overwrite=overwrite
    ):
        yield Cells(out)


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
    """``bench.md`` and ``bench.json``, atomically, the latter last."""
    with atomic_write(out / "bench.md") as partial:
        partial.write_text(text + "\n", encoding="utf-8")
    write_json(out / "bench.json", content)
