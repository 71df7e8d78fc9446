"""Processes that compute: as many as there is work for, and none that outlives who started it."""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import wait
from types import TracebackType
from typing import Any, Generic, TypeVar

from attsvm.errors import AttsvmError

Arguments = tuple[Any, ...]
Result = TypeVar("Result")

_THREADS = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMBA_NUM_THREADS",
    "RAYON_NUM_THREADS",
)
_PR_SET_PDEATHSIG = 1


class Workers(Generic[Result]):
    """Up to ``jobs`` processes that call one function; they stay for as long as there is work and
    keep what they have imported and compiled. A single one is this process, with all its threads.

    Args:
        function: what is called with each tuple of arguments; picklable, as they and its results
            are.
        jobs: processes.
        threads: of every numerical library in each process.
    """

    def __init__(self, function: Callable[..., Result], jobs: int, threads: int = 1) -> None:
        self._function = function
        self._jobs = jobs
        self._threads = threads
        self._pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> Workers[Result]:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._pool is None:
            return
        if error is not None and not isinstance(error, Exception):  # interrupted: nobody waits
            for process in list(self._pool._processes.values()):
                process.kill()
        self._pool.shutdown(cancel_futures=True)

    def start(self, batches: Sequence[Sequence[Arguments]]) -> list[Iterator[Result]]:
        """Take on the work of all batches, in order.

        Returns:
            One iterator per batch. It yields each result as it is there and raises what the
            function raised. Processes work whether or not anybody looks; without them a piece is
            done when it is asked for.

        Raises:
            AttsvmError: by the iterator: a process was killed.
        """
        if self._pool is None:
            if min(self._jobs, sum(len(batch) for batch in batches)) <= 1:
                return [self._alone(batch) for batch in batches]
            self._pool = ProcessPoolExecutor(
                self._jobs, multiprocessing.get_context("spawn"), end_with_parent
            )
        with threads_of_started(self._threads):
            return [
                _finished([self._pool.submit(self._function, *arguments) for arguments in batch])
                for batch in batches
            ]

    def _alone(self, batch: Sequence[Arguments]) -> Iterator[Result]:
        for arguments in batch:
            yield self._function(*arguments)


def _finished(futures: Sequence[Future[Result]]) -> Iterator[Result]:
    for future in as_completed(futures):
        try:
            yield future.result()
        except BrokenProcessPool:
            raise AttsvmError(
                "a process ended before its run did (killed, out of memory, or a script without the"
                ' line if __name__ == "__main__":); call again with the same folder to go on, or'
                " with fewer processes"
            ) from None


def end_with_parent() -> None:
    """To be called first in a process that :mod:`multiprocessing` has started: it ends as soon as
    the process that started it has ended, however that ended, and Ctrl-C is left to that one.

    Linux sends a signal; everywhere a thread waits for the end of a pipe that the other process
    holds open for as long as it lives.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is None:
        return
    signal_at_end_of_parent()
    threading.Thread(target=_end_after, args=(parent.sentinel,), daemon=True).start()


def signal_at_end_of_parent() -> None:
    """Have Linux kill this process when the one that started it ends; nothing elsewhere."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _end_after(sentinel: int) -> None:
    wait([sentinel])
    os._exit(1)


@contextlib.contextmanager
def threads_of_started(count: int) -> Iterator[None]:
    """Processes started inside compute with ``count`` threads each: they share the cores among
    themselves.
    """
    with _environment(dict.fromkeys(_THREADS, str(count))):
        yield


@contextlib.contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
