"""Where and with what a benchmark ran: versions, processor, load."""

from __future__ import annotations

import datetime
import os
import platform
from importlib import metadata
from pathlib import Path
from typing import Any

_PACKAGES = (
    *("attsvm", "numpy", "scipy", "numba", "scikit-learn", "torch", "cvxpy"),
    *("clarabel", "daqp", "highspy", "osqp", "piqp", "quadprog", "scs"),
)


def versions() -> dict[str, str]:
    """Installed versions, read from package metadata, so nothing is imported."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


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


def now() -> str:
    """Date and time, UTC, to the second."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


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
