"""What a result was computed with."""

from __future__ import annotations

import os
import platform
from importlib import metadata

_DECIDING = ("numpy", "scipy", "numba", "torch")
_OTHERS = ("scikit-learn", "safetensors", "matplotlib")


def environment() -> dict[str, str | int]:
    """Versions and machine, JSON-ready; read from package metadata, so nothing is imported."""
    return {
        **versions(*_DECIDING, *_OTHERS),
        "platform": platform.platform(),
        "cpu_count": os.cpu_count() or 1,
    }


def versions(*packages: str) -> dict[str, str]:
    """Versions of Python and of the packages that are installed; by default of those whose
    versions decide the bits of a result.
    """
    found = {"python": platform.python_version()}
    for package in packages or _DECIDING:
        try:
            found[package.replace("-", "_")] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found
