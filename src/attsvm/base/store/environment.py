"""What a result was computed with: versions, machine and code."""

from __future__ import annotations

import functools
import os
import platform
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

from attsvm.base.files import digest

_DECIDING = ("numpy", "scipy", "torch")
_OTHERS = ("scikit-learn", "safetensors", "matplotlib")
_LIBRARY = Path(__file__).resolve().parents[2]
_IDLE = ("cli", "report")  # rooms of the library that decide no result
_SOURCES = (".py", ".cpp", ".hpp", ".h")


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
    numbers = {"python": platform.python_version()}
    for package in packages or _DECIDING:
        if version := _version(package):
            numbers[package.replace("-", "_")] = version
    return numbers


@functools.cache
def _version(package: str) -> str | None:
    """Read once: it is a millisecond, and a process keeps the package that it has loaded."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def code_digest(function: Any = None, *, library: Path = _LIBRARY) -> str:
    """SHA-256 of the source files that decide what a function returns: those of this library, but
    for what prints and draws, and those of the package that the function is from.

    Of a script these are the script, the modules beside it and the packages beside it. What else is
    installed has a version.

    Args:
        function: a function or class; of this library when left out.
        library: the folder of this library.
    """
    sources = [_library_digest(library)]
    if function is not None:
        names = (function.__module__.partition(".")[0], function.__module__)
        files = [getattr(sys.modules.get(name), "__file__", None) for name in names]
        path = Path(files[0] or files[1] or _LIBRARY / "__init__.py")
        if path.name != "__init__.py":
            sources.append(digest(*_beside(path)))
        elif path.resolve().parent != _LIBRARY:
            sources.append(_sources_digest(path.parent))
    return digest(sources)


@functools.cache
def _library_digest(library: Path) -> str:
    """Read once: a process keeps the code that it has loaded."""
    return _sources_digest(library, _IDLE)


def _sources_digest(folder: Path, idle: tuple[str, ...] = ()) -> str:
    """SHA-256 of names and contents of the source files below a folder, but for some folders."""
    named_contents: list[str | Path] = []
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        if path.suffix in _SOURCES and name.parts[0] not in idle:
            named_contents += (f"{name.as_posix()}\0", path)
    return digest(*named_contents)


def _beside(script: Path) -> Iterator[str | Path]:
    """The names and contents of the modules beside a script, and of the packages there."""
    for path in sorted(script.parent.glob("*.py")):
        yield from (f"{path.name}\0", path)
    for package in sorted(script.parent.glob("*/__init__.py")):
        yield f"{package.parent.name}/{_sources_digest(package.parent)}\0"
