"""What a benchmark keeps: cells while it runs, ``bench.json``, ``bench.md`` and ``report.html`` in
the end.
"""

from __future__ import annotations

import datetime
import os
import platform
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from attsvm import store
from attsvm.files import write_file
from attsvm.report.sections import from_markdown, sections_page
from attsvm.store import RunFolder, fingerprint, read_json, write_json

_PACKAGES = (
    *("attsvm", "numpy", "scipy", "numba", "scikit-learn", "torch", "cvxpy"),
    *("clarabel", "daqp", "highspy", "osqp", "piqp", "quadprog", "scs"),
)


def versions() -> dict[str, str]:
    """Installed versions, read from package metadata, so nothing is imported."""
    return store.versions(*_PACKAGES)


def machine(threads: int) -> dict[str, Any]:
    """Processor, cores, memory, BLAS and the threads that it was allowed."""
    import numpy as np

    built: dict[str, Any] = dict(np.show_config(mode="dicts"))
    blas = built.get("Build Dependencies", {}).get("blas", {})
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count() or 1,
        "memory_gib": _memory_gib(),
        "platform": platform.platform(),
        "blas": f"{blas.get('name', 'unknown')} {blas.get('version', '')}".strip(),
        "threads": threads,
    }


def load() -> float | None:
    """Load average of the last minute; ``None`` where the system keeps none."""
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")),
        platform.machine(),
    )


def _memory_gib() -> float | None:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    except (AttributeError, ValueError, OSError):
        return None


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
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": machine(threads),
        "versions": versions(),
        "load": {"before": load_before, "after": load()},
        "settings": settings,
        **content,
    }


def write(out: Path, content: dict[str, Any], text: str) -> None:
    """``bench.md``, ``report.html`` and ``bench.json``, atomically, the last one last."""
    write_file(out / "bench.md", text + "\n")
    page = sections_page(f"attsvm bench {content['kind']}", _HEADLINE, from_markdown(text))
    write_file(out / "report.html", page)
    write_json(out / "bench.json", content)
