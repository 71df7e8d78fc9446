"""Machine code of compiled kernels, kept on disk from one process to the next.

Numba's own cache looks at the file of the kernel alone, so that a kernel keeps the old machine code
of what it calls in other modules. Here a folder is named by a digest of every module that holds
kernels: after an edit of any of them, and with another numba, everything is compiled anew. The
folder lies in ``$NUMBA_CACHE_DIR/attsvm`` where that is set, else in
:func:`attsvm.files.cache_home`; the :data:`KEPT` folders that were used last are kept. Processes
may share it: every file is written under another name first, holds its own digest, and is named by
all that decides its content (function, argument types, processor).
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import os
import pickle
import re
import secrets
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import llvmlite
import numba
import numpy as np
from numba.core.caching import CompileResultCacheImpl, FunctionCache
from numba.core.serialize import dumps

from attsvm.files import CACHE_VARIABLE, cache_home

KEPT = 8  # folders of other states of the sources; one holds some 20 MB
VARIABLE = "NUMBA_CACHE_DIR"

_FOLDER = re.compile(r"kernels-[0-9a-f]{32}")
_MARKS = (b"numba", b"attsvm.jit", b"attsvm.parallel")  # what a module with kernels mentions
_DAY = 86_400.0
# Variables that change no machine code; every other NUMBA_... one is part of the digest.
_HARMLESS = {VARIABLE, "NUMBA_NUM_THREADS", "NUMBA_THREADING_LAYER", "NUMBA_DEBUG_CACHE"}


def keep(dispatcher: Any) -> None:
    """Let a compiled function read its machine code from the folder, and write it there.

    Where that cannot be done, the function is compiled in every process, and one sentence on
    standard error (the logger ``attsvm``) says so, once.
    """
    function = dispatcher.py_func
    path = Path(function.__code__.co_filename)
    if _PACKAGE not in path.parents:  # the digest knows nothing of it
        return
    if _AT_START and _hash(path) != _AT_START.get(str(path)):
        _CHANGED.append(str(path))
    dispatcher._cache = _KernelCache(function, bool(dispatcher.targetoptions.get("parallel")))


def digest_of(sources: dict[str, str]) -> str:
    """Name of the state of these sources (path to digest), of the versions and of the options that
    decide about machine code.
    """
    root = str(_PACKAGE)
    parts = [f"{name.removeprefix(root)} {digest}" for name, digest in sorted(sources.items())]
    parts += [f"{module.__name__} {module.__version__}" for module in (numba, llvmlite, np)]
    parts += [sys.implementation.cache_tag or ""]
    parts += [
        f"{name}={value}"
        for name, value in sorted(os.environ.items())
        if name.startswith("NUMBA_") and name not in _HARMLESS
    ]
    return hashlib.sha256("\n".join(parts).encode("utf-8", "surrogateescape")).hexdigest()[:32]


class _Impl(CompileResultCacheImpl):
    """How numba turns a compiled function into bytes and back, without its search for a folder."""

    def __init__(self, function: Any) -> None:
        self._lineno = function.__code__.co_firstlineno
        self._locator = self  # numba asks it for the name of the file when it has to warn
        self._py_file = function.__code__.co_filename


class _KernelCache(FunctionCache):
    """The cache of one kernel, one file for each signature; without numba's index, in which two
    processes can take the same name for two signatures.
    """

    def __init__(self, function: Any, parallel: bool) -> None:
        self._py_func = function
        self._name = repr(function)
        self._parallel = parallel
        self._impl = _Impl(function)
        self._enabled = True

    @property
    def cache_path(self) -> str:
        """Where machine code is kept; empty when it is not."""
        return str(folder() or "")

    def flush(self) -> None:
        """Nothing: names say what files hold."""

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """The kept machine code; None when there is none, or it is damaged."""
        target_context.refresh()
        place = folder()
        if place is None or _CHANGED or not self._enabled:
            return None
        key = self._key(sig, target_context.codegen())
        try:
            content = (place / self._file(key)).read_bytes()
            if hashlib.sha256(content[32:]).digest() != content[:32]:
                return None
            kept, reduced = pickle.loads(content[32:])
            return self._impl.rebuild(target_context, reduced) if kept == key else None
        except OSError:
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep machine code, or say once that it cannot be kept."""
        if _CHANGED or not self._enabled or not self._impl.check_cachable(data):
            return None
        place = folder()
        if place is None:
            return _tell(_REASON[0])
        key = self._key(sig, data.codegen)
        content: bytes = dumps((key, self._impl.reduce(data)))  # type: ignore[no-untyped-call]
        path = place / self._file(key)
        partial = place / f".{secrets.token_hex(8)}.partial"
        try:
            place.mkdir(mode=0o700, exist_ok=True)  # another process may have cleared it away
            try:
                partial.write_bytes(hashlib.sha256(content).digest() + content)
                partial.replace(path)
            finally:
                partial.unlink(missing_ok=True)
        except OSError as error:
            return _tell(f"{place}: {error.strerror or error}")

    def _key(self, sig: Any, codegen: Any) -> Any:
        """Argument types, processor, bytecode, and whether loops are shared out: all that decides
        about machine code beside the sources.
        """
        return self._parallel, *self._index_key(sig, codegen)  # type: ignore[no-untyped-call]

    def _file(self, key: Any) -> str:
        function = self._py_func
        name = f"{function.__module__}.{function.__qualname__}".replace("<", "").replace(">", "")
        return f"{name[-120:]}-{hashlib.sha256(repr(key).encode()).hexdigest()[:24]}.kernel"


@functools.cache
def folder() -> Path | None:
    """Where the machine code of this state of the sources is kept; None where it cannot be.

    The folder must belong to this user or to the administrator, because what lies in it is run.
    """
    if not _AT_START:
        _REASON.append("the sources of attsvm are not files")
        return None
    given = os.environ.get(VARIABLE)
    try:
        home = Path(given) / "attsvm" if given else cache_home()
        place = home / f"kernels-{digest_of(_AT_START)}"
        if not place.is_dir():
            place.mkdir(mode=0o700, parents=True, exist_ok=True)
            _clear(home, place)
        status = place.stat()
    except (OSError, RuntimeError) as error:
        _REASON.append(str(error))
        return None
    if hasattr(os, "geteuid") and status.st_uid not in (0, os.geteuid()):
        _REASON.append(f"{place} belongs to another user")
        return None
    if time.time() - status.st_mtime > _DAY:
        with contextlib.suppress(OSError):
            os.utime(place)  # in use
    return place


def _clear(home: Path, mine: Path) -> None:
    """Remove the folders of other states of the sources, but for those used last."""
    others = [
        (each.stat().st_mtime, each)
        for each in home.iterdir()
        if _FOLDER.fullmatch(each.name) and each != mine and each.is_dir()
    ]
    for _, old in sorted(others, reverse=True)[KEPT:]:
        aside = old.with_name(f".{old.name}.{secrets.token_hex(4)}")
        try:
            old.rename(aside)  # in one step, so that no process sees half of it
        except OSError:
            continue
        shutil.rmtree(aside, ignore_errors=True)


def _tell(why: str) -> None:
    if not _TOLD:
        _TOLD.append(why)
        logging.getLogger("attsvm").warning(
            "attsvm: compiled kernels cannot be kept (%s), so every process compiles them again;"
            " set %s to a folder that you may write to",
            " ".join(why.split()),
            CACHE_VARIABLE,
        )


def _hash(path: Path) -> str | None:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return None


def _sources() -> dict[str, str]:
    """The modules of this package that hold kernels, with the digests of their content."""
    found = {}
    for path in sorted(_PACKAGE.rglob("*.py")):
        try:
            content = path.read_bytes()
        except OSError:
            return {}
        if any(mark in content for mark in _MARKS):
            found[str(path)] = hashlib.sha256(content).hexdigest()
    return found


_PACKAGE = Path(__file__).parent
_AT_START = _sources()
_CHANGED: list[str] = []  # modules edited since: what they hold is of no known state
_REASON: list[str] = []
_TOLD: list[str] = []
