"""How many threads the numerical libraries of this process take, for a while.

Torch, numba and OpenMP keep a number for each thread that calls them, most BLAS libraries one for
the whole process. Blocks of :func:`at_most_threads` nest, and in different threads overlap: while
several hold, the smallest number counts, and when the last one ends everything is as it was before
the first.
"""

from __future__ import annotations

import functools
import importlib
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any


class _Limits:
    """The limits that hold now on a library, and how many threads it took before the first."""

    def __init__(self, library: Any) -> None:
        self._library, self._counts, self._ours = library, list[int](), False
        self._before: int | None = None

    def add(self, count: int) -> None:
        first = not self._counts
        if first:
            self._before = self._library.get_num_threads()
        self._counts.append(count)
        reached = self._set()
        if first:
            self._ours = reached

    def remove(self, count: int) -> None:
        self._counts.remove(count)
        if self._ours:
            self._set()

    def _set(self) -> bool:
        """Whether the library takes the number that it should: since threadpoolctl 3.8 one thread
        alone has the say over a BLAS, the first that sets its number.
        """
        if self._before is None:  # it does not tell
            return False
        wanted = min([self._before, *self._counts])
        if self._library.get_num_threads() != wanted:
            release = getattr(self._library, "clear_controlling_thread", lambda force: None)
            release(force=self._ours)
            self._library.set_num_threads(wanted)
            if not self._counts:
                release(force=True)
        return bool(self._library.get_num_threads() == wanted)


class _Own(threading.local):
    def __init__(self) -> None:
        self.limits: dict[Any, _Limits] = {}


_lock, _own = threading.Lock(), _Own()
_shared: dict[Any, _Limits] = {}


@contextmanager
def at_most_threads(count: int, *libraries: Any) -> Iterator[None]:
    """No more than ``count`` threads in this block, and no more than before it; after it as many as
    before, whatever the block itself has set.

    Args:
        count: of each library; ``sys.maxsize`` where the block sets numbers of its own.
        libraries: ``torch``, ``numba`` (once :func:`attsvm.parallel.start_threads` was called), and
            those of :func:`thread_pools`.
    """
    for library in libraries:
        _change(library, _Limits.add, count)
    try:
        yield
    finally:
        for library in reversed(libraries):
            _change(library, _Limits.remove, count)


def _change(library: Any, change: Any, count: int) -> None:
    layer = getattr(library, "threading_layer", getattr(library, "user_api", None))
    if isinstance(library, ModuleType) or layer == "openmp":  # a number for each thread
        change(_limits(_own.limits, library), count)
    else:
        with _lock:
            change(_limits(_shared, library), count)


def _limits(known: dict[Any, _Limits], library: Any) -> _Limits:
    key = getattr(library, "filepath", library)
    if key not in known:
        known[key] = _Limits(library)
    return known[key]


def thread_pools(*, scipy: bool) -> Sequence[Any]:
    """The libraries of BLAS and OpenMP in this process.

    Args:
        scipy: load SciPy's BLAS first; where it is left out SciPy may load it later.
    """
    if scipy:
        importlib.import_module("scipy.linalg.lapack")
    return _pools(*(name in sys.modules for name in ("scipy.linalg.lapack", "sklearn", "torch")))


@functools.cache
def _pools(*brought: bool) -> Sequence[Any]:
    from threadpoolctl import ThreadpoolController

    return list(ThreadpoolController().lib_controllers)
