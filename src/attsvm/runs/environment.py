"""What a run was computed with."""

from __future__ import annotations

import os
import platform
from importlib import metadata

_PACKAGES = ("numpy", "scipy", "scikit-learn", "numba", "torch", "safetensors", "matplotlib")


def environment() -> dict[str, str | int]:
    """Versions and machine, JSON-ready; read from package metadata, so nothing is imported."""
    versions: dict[str, str | int] = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            versions[package.replace("-", "_")] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    versions["platform"] = platform.platform()
    versions["cpu_count"] = os.cpu_count() or 1
    return versions
