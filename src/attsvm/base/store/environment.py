"""What a result was computed with."""

from __future__ import annotations

import functools
import os
import platform
from importlib import metadata

_DECIDING = ("numpy", "scipy", "torch")
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
        if version := _version(package):
            found[package.replace("-", "_")] = version
    return found


@functools.cache
def _version(package: str) -> str | None:
    """Read once: it is a millisecond, and a process keeps the package that it has loaded."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
