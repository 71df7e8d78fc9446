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

_LIBRARY = Path(__file__).resolve().parents[2]
_IDLE = ("cli", "report")  # rooms that decide no result
_SOURCES = (".py", ".cpp", ".hpp", ".h")
_IMPORT = re.compile(r"^\s*(?:from\s+([\w.]+)\s+)?import\s+(\([^)]*\)|.+)", re.MULTILINE)


def code_fingerprint(*functions: Any) -> str:
    """SHA-256 of the code that decides what these functions return.

    The library counts whole, but for what prints and draws. Of another package, the folder inside
    it that a function is from counts, and those folders of it that this one imports, and so do
    other packages and scripts that are imported, but for Python's own and installed ones: these
    have versions.

    Args:
        functions: functions or classes.
    """
    digest = hashlib.sha256(_library().encode())
    files = set[Path]()
    left = {function.__module__ for function in functions}
    own = {name.partition(".")[0] for name in left}
    seen = {""}
    while left:
        seen |= left
        units = (_unit(name, own) for name in left)
        new = {path: home for unit in units for path, home in unit if path not in files}
        files.update(new)
        left = {name for path, home in new.items() for name in _imports(path, home)} - seen
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


def _unit(name: str, own: set[str]) -> Iterator[tuple[Path, str]]:
    """The files of the folder, or the file, that a module's name begins with, each with the package
    that its relative imports start from.
    """
    package, _, rest = name.partition(".")
    module = sys.modules.get(package)
    where = Path(getattr(module, "__file__", None) or "/")
    is_folder = where.name == "__init__.py"
    if (
        where.suffix != ".py"
        or package == _LIBRARY.name
        or package in sys.stdlib_module_names
        or (package not in own and _is_installed(where.parents[is_folder]))
    ):
        return
    yield where, getattr(module, "__package__", None) or ""
    if rest and is_folder:
        inner = where.parent / rest.partition(".")[0]
        for path in (*inner.rglob("*.py"), *inner.parent.glob(f"{inner.name}.py")):
            yield path, ".".join((package, *path.parent.relative_to(where.parent).parts))


@functools.cache
def _is_installed(folder: Path) -> bool:
    """Whether packages are installed in this folder."""
    return next(folder.glob("*.dist-info"), None) is not None


def _imports(path: Path, home: str) -> Iterator[str]:
    """Names of the modules that a file imports, and of others that there may not be."""
    for origin, names in _IMPORT.findall(path.read_text(encoding="utf-8", errors="replace")):
        inner = origin.lstrip(".")
        up = len(origin) - len(inner)
        above = home.split(".")[: home.count(".") + 2 - up] if up else []
        for name in re.findall(r"[\w.]+|\*", names):
            parts = (*above, *inner.split("."), *name.strip("*").split("."))
            yield ".".join([part for part in parts if part][:2])
