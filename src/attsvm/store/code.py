"""The code that a result depends on, as a fingerprint: files of the library, and of the folder that
its function is from with all that those import.
"""

from __future__ import annotations

import functools
import hashlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_LIBRARY = Path(__file__).resolve().parents[1]
_IDLE = ("cli", "report")  # rooms that decide no result
_SOURCES = (".py", ".cpp", ".hpp", ".h")
_IMPORT = re.compile(r"^\s*(?:from\s+([\w.]+)\s+)?import\s+(\([^)]*\)|.+)", re.MULTILINE)


def code_fingerprint(*functions: Any) -> str:
    """SHA-256 of the code that decides what these functions return.

    The library counts whole, but for what prints and draws. Of another package, the folder inside
    it that a function is from counts, and those folders of it that this one imports; of a script,
    itself and those beside it that it imports. Installed packages of others have versions.

    Args:
        functions: functions or classes.
    """
    digest = hashlib.sha256(_library().encode())
    files = set[Path]()
    left = {function.__module__ for function in functions}
    own = {name.partition(".")[0] for name in left} - {_LIBRARY.name}
    beside = {_file(name).parent for name in own if _file(name).name != "__init__.py"}
    seen = {""}
    while left:
        seen |= left
        new = {path for name in left for path in _unit(name, own, beside)} - files
        files |= new
        left = {name for path in new for name in _imports(path)} - seen
    for path in sorted(files, key=lambda path: (path.parent.name, path.name)):
        digest.update(f"{path.parent.name}/{path.name}\0".encode() + path.read_bytes())
    return digest.hexdigest()


@functools.cache
def _library() -> str:
    digest = hashlib.sha256()
    for path in sorted(_LIBRARY.rglob("*")):
        name = path.relative_to(_LIBRARY)
        if path.suffix in _SOURCES and name.parts[0] not in _IDLE:
            digest.update(f"{name.as_posix()}\0".encode() + path.read_bytes())
    return digest.hexdigest()


def _unit(name: str, own: set[str], beside: set[Path]) -> Iterator[Path]:
    """The files of the folder, or the file, that a module's name begins with, where it is of one of
    these packages or beside one of these scripts.
    """
    package, _, rest = name.partition(".")
    where = _file(package)
    is_folder = where.name == "__init__.py"
    home = where.parents[1] if is_folder else where.parent
    if where.suffix != ".py" or (package not in own and home not in beside):
        return
    yield where
    if rest and is_folder:
        inner = where.parent / rest.partition(".")[0]
        yield from inner.rglob("*.py")
        if inner.with_suffix(".py").is_file():
            yield inner.with_suffix(".py")


def _file(name: str) -> Path:
    """Where a module that is imported stands."""
    return Path(getattr(sys.modules.get(name), "__file__", None) or "/")


def _imports(path: Path) -> Iterator[str]:
    """Names of the modules that a file imports, and of others that there may not be."""
    for origin, names in _IMPORT.findall(path.read_text(encoding="utf-8")):
        for name in re.findall(r"[\w.]+", names):
            parts = f"{origin}.{name}".strip(".").split(".")
            yield ".".join(parts[:2])
