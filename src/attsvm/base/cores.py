"""Threads: work that is shared out among our own, and how many of their own the numerical
libraries take for a while.

Torch and OpenMP keep a number for each thread that calls them, most BLAS libraries one for
the whole process. Blocks of :func:`at_most_threads` nest, and in different threads overlap: while
several hold, the smallest number counts, and when the last one ends everything is as it was before
the first.
"""

from __future__ import annotations

import functools
import importlib
import itertools
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import copy_context
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

Share = TypeVar("Share")
Result = TypeVar("Result")

VARIABLE = "ATTSVM_THREADS"
_LAPACK = "scipy.linalg.lapack"
_here = threading.local()


def threads() -> int:
    """Number of threads that work is shared out among: the environment variable
    ``ATTSVM_THREADS``, all processors otherwise; one in work that is shared out already.
    """
    if getattr(_here, "at_work", False):
        return 1
    return max(1, int(os.environ.get(VARIABLE) or _processors()))


def _processors() -> int:
    """Number of processors that this process may run on."""
    allowed = getattr(os, "sched_getaffinity", None)
    return (os.cpu_count() or 1) if allowed is None else len(allowed(0))


WORTH_SHARING = 1e6
"""Operations from which on threads save more than their start costs: about half a millisecond."""


def task_ranges(count: int, workers: int) -> list[tuple[int, int]]:
    """First and one past last of up to four consecutive shares of ``count`` for each of the
    workers, so that none waits long for another.
    """
    return even_shares(count, 4 * workers)


def even_shares(count: int, most: int) -> list[tuple[int, int]]:
    """First and one past last of at most ``most`` consecutive shares of ``count``."""
    most = max(1, min(count, most))
    return list(itertools.pairwise(count * k // most for k in range(most + 1)))


def map_on_threads(
    work: Callable[[Share], Result], shares: Sequence[Share], most: int | None = None
) -> list[Result]:
    """Results of ``work`` on every share, on all cores or on as many as ``most``.

    Compiled functions run without the GIL. The caller is one of the threads; the others wait
    between calls.

    Raises:
        Exception: that of the first share, in their order, which has one.
    """
    count = len(shares)
    if count > 1:
        count = min(threads() if most is None else most, count)
    if count < 2 or getattr(_here, "at_work", False):
        return [work(share) for share in shares]
    left = deque(enumerate(shares))
    results, errors = dict[int, Result](), dict[int, BaseException]()

    def take() -> None:
        _here.at_work = True
        try:
            while left:
                try:
                    k, share = left.popleft()
                except IndexError:  # another thread was faster
                    break
                try:
                    results[k] = work(share)
                except BaseException as error:
                    errors[k] = error
                    left.clear()
        finally:
            _here.at_work = False

    pool = _helpers(os.getpid(), count - 1)  # threads do not survive a fork
    others = [pool.submit(copy_context().run, take) for _ in range(count - 1)]

    def wait() -> None:
        for other in others:
            if not other.cancel():  # one that has not begun finds nothing left to do
                other.result()

    try:
        take()
        wait()
    except BaseException:  # an interrupt: no share begins any more, and those that run end
        left.clear()
        wait()
        raise
    if errors:
        raise errors[min(errors)]
    return [results[k] for k in range(len(shares))]


@functools.cache
def _helpers(process: int, count: int) -> ThreadPoolExecutor:
    """Threads that wait for work, as long as this process runs."""
    from concurrent.futures import ThreadPoolExecutor  # where it is needed

    return ThreadPoolExecutor(count, "attsvm")


class _Limits:
    """The limits that hold now on a library with one number for the whole process, and how many
    threads it took before the first.
    """

    def __init__(self, library: Any) -> None:
        self._library = library
        self._counts: list[int] = []
        self._ours = False
        self._before: int | None = None
        self._lifts = 0

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

    def lift(self, change: int) -> None:
        self._lifts += change
        if self._ours:
            self._set()

    def _set(self) -> bool:
        """Whether the library takes the number that it should: since threadpoolctl 3.8 one thread
        alone has the say over a BLAS, the first that sets its number.
        """
        if self._before is None:  # it does not tell
            return False
        count = self._before if self._lifts else min([self._before, *self._counts])
        if self._library.get_num_threads() == count:
            return True
        release = getattr(self._library, "clear_controlling_thread", lambda force: None)
        release(force=self._ours)
        self._library.set_num_threads(count)
        if not self._counts:
            release(force=True)
        return bool(self._library.get_num_threads() == count)


_lock = threading.Lock()
_shared: dict[str, _Limits] = {}


@contextmanager
def at_most_threads(count: int, *libraries: Any) -> Iterator[None]:
    """No more than ``count`` threads in this block, and no more than before it; after it as many as
    before, whatever the block itself has set.

    Args:
        count: of each library; ``sys.maxsize`` where the block sets numbers of its own.
        libraries: ``torch``, and those of :func:`thread_pools`.
    """
    of_caller: list[tuple[Any, int]] = []
    shared: list[_Limits] = []
    for library in libraries:
        if isinstance(library, ModuleType) or _threads_of_caller(library):
            before = library.get_num_threads()
            of_caller.append((library, before))
            if before > count:
                library.set_num_threads(count)
        else:
            with _lock:
                limits = _shared.get(library.filepath) or _Limits(library)
                _shared[library.filepath] = limits
                shared.append(limits)
                limits.add(count)
    try:
        yield
    finally:
        for library, before in reversed(of_caller):
            library.set_num_threads(before)
        with _lock:
            for limits in shared:
                limits.remove(count)


def one_thread(*, scipy: bool = False) -> AbstractContextManager[None]:
    """One thread of BLAS, of SciPy's too if asked, inside; as before after it."""
    return at_most_threads(1, *thread_pools("blas", scipy=scipy))


@contextmanager
def lifted(*libraries: Any) -> Iterator[None]:
    """As many threads in this block as before all limits of :func:`at_most_threads` that hold.

    Args:
        libraries: of :func:`thread_pools`; one that keeps a number for each thread keeps its limit.
    """
    with _lock:
        held = [_shared[library.filepath] for library in libraries if library.filepath in _shared]
        for limits in held:
            limits.lift(1)
    try:
        yield
    finally:
        with _lock:
            for limits in held:
                limits.lift(-1)


@functools.cache
def _threads_of_caller(library: Any) -> bool:
    return bool(library.user_api == "openmp")


def thread_pools(*apis: str, scipy: bool) -> Sequence[Any]:
    """The libraries in this process that make threads.

    Args:
        apis: ``blas``, ``openmp``.
        scipy: load SciPy's BLAS first; where it is left out SciPy may load it later.
    """
    loaded = sys.modules
    if scipy and _LAPACK not in loaded:
        importlib.import_module(_LAPACK)
    return _pools(apis, _LAPACK in loaded, "sklearn" in loaded, "torch" in loaded)


@functools.cache
def _pools(apis: tuple[str, ...], *brought: bool) -> Sequence[Any]:
    from threadpoolctl import ThreadpoolController

    return [
        controller
        for controller in ThreadpoolController().lib_controllers
        if controller.user_api in apis
    ]
