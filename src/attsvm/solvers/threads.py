"""How many threads BLAS takes while a programme is solved.

Products and factorisations of the usual programmes are so small that a second thread costs more
than it saves: it waits for the first one, at full load, between any two calls. They are solved with
one thread; programmes whose matrices are large keep the threads that the process has. Where the
number belongs to the whole process it is taken once for all solves that run at the same time, and
given back when the last of them ends; where every thread has its own (OpenMP), by each.
"""

from __future__ import annotations

import functools
import importlib
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from attsvm.margins import Margins
from attsvm.solvers.choice import FEW

_LARGE = 1 << 30  # rows times the rows that can be active from which threads pay


class _Taken:
    """Solves that run, and the numbers of threads that they found."""

    def __init__(self) -> None:
        self.solves = 0
        self.before: list[tuple[Any, int]] = []

    def enter(self, libraries: list[Any]) -> None:
        self.solves += 1
        for library in libraries if self.solves == 1 else ():
            count = library.get_num_threads()
            if count is not None and count > 1:
                library.set_num_threads(1)
                if library.get_num_threads() == 1:  # not where another thread has the say
                    self.before.append((library, count))

    def leave(self) -> None:
        self.solves -= 1
        while self.solves == 0 and self.before:
            library, count = self.before.pop()
            # Since threadpoolctl 3.8 the thread that sets the number first keeps the say.
            release = getattr(library, "clear_controlling_thread", lambda force: None)
            release(force=True)
            library.set_num_threads(count)
            release(force=True)


class _OwnTaken(_Taken, threading.local):
    """The same for each thread."""


_lock, _process, _own = threading.Lock(), _Taken(), _OwnTaken()


@contextmanager
def threads_that_pay(margins: Margins) -> Iterator[None]:
    """One thread of BLAS in this block unless the programme is large; as before after it."""
    if margins.m * min(margins.m, margins.shape[0] * margins.shape[1]) >= _LARGE:
        yield
        return
    if margins.m > FEW:  # smaller ones may do without it
        importlib.import_module("scipy.linalg.lapack")
    with one_thread():
        yield


@contextmanager
def one_thread() -> Iterator[None]:
    """One thread of BLAS in this block; as before after it."""
    shared, single = _libraries("scipy.linalg.lapack" in sys.modules)
    with _lock:
        _process.enter(shared)
    _own.enter(single)
    try:
        yield
    finally:
        _own.leave()
        with _lock:
            _process.leave()


@functools.cache
def _libraries(scipy_too: bool) -> tuple[list[Any], list[Any]]:
    """The BLAS libraries of this process, those with a number of threads for each thread apart;
    SciPy brings its own.
    """
    from threadpoolctl import ThreadpoolController

    found = ThreadpoolController().select(user_api="blas").lib_controllers
    single = [each for each in found if getattr(each, "threading_layer", "") == "openmp"]
    return [each for each in found if each not in single], single
