"""Processes that compute: as many as there is work for, and none that outlives who started it."""

from __future__ import annotations

import contextlib
import ctypes
import math
import multiprocessing
import multiprocessing.connection
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from types import TracebackType
from typing import Any, Generic, TypeVar

from attsvm.errors import AttsvmError

Arguments = tuple[Any, ...]
Result = TypeVar("Result")

_THREADS = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "ATTSVM_THREADS",
    "RAYON_NUM_THREADS",
)
_PR_SET_PDEATHSIG = 1
_POLL = 0.2  # seconds
_ASK = 0.5
_FORGOTTEN = 16  # calls that may be done before anybody looks


class Workers(Generic[Result]):
    """Up to ``jobs`` processes that call one function; they stay for as long as there is work and
    keep what they have imported and compiled. A single one is this process, with all its threads.

    Args:
        function: what is called with each tuple of arguments; picklable, as they and its results
            are.
        jobs: processes, or calls at a time of ``executor``; as many as that has slots, or one per
            core, when left out.
        threads: of every numerical library in each process.
        executor: calls the function instead of processes of our own: a
            :class:`concurrent.futures.Executor`, or another object whose ``submit`` returns what
            has ``done``, ``result`` and ``cancel``, such as ``submitit.AutoExecutor``.
    """

    def __init__(
        self,
        function: Callable[..., Result],
        jobs: int | None = None,
        threads: int = 1,
        executor: Any = None,
    ) -> None:
        self._function = function
        self._jobs = jobs
        self._threads = threads
        self._executor = executor
        self._pool: ProcessPoolExecutor | None = None
        self._calls: list[Any] = []
        self._looked = 0
        self._asked = -math.inf
        self._slots: int | None = None

    def __enter__(self) -> Workers[Result]:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._pool is not None:
            if error is not None and not isinstance(error, Exception):  # interrupted: nobody waits
                for process in list(self._pool._processes.values()):
                    process.kill()
            self._pool.shutdown(cancel_futures=True)
        elif self._executor is not None:  # it is the caller's, its calls are ours
            for call in self._calls:
                call.cancel()

    @property
    def slots(self) -> int:
        """How many calls can run at a time, asked anew twice a second."""
        now = time.monotonic()
        if now >= self._asked + _ASK:
            self._asked, self._slots = now, executor_slots(self._executor)
        return self._jobs or self._slots or os.cpu_count() or 1

    @property
    def keeps_processes(self) -> bool:
        """Whether a call is cheap, because processes stay; a job of a cluster's queue is not."""
        return self._executor is None or isinstance(self._executor, Executor)

    @property
    def limit(self) -> int | None:
        """Threads to which a call must limit itself: processes of others are as they are."""
        return None if self._executor is None else self._threads

    def alone(self, calls: int) -> bool:
        """Whether so many calls are made in this process."""
        return self._executor is None and self._pool is None and min(self.slots, calls) <= 1

    def submit(self, *arguments: Any) -> Any:
        """Have the function called; returns what has ``done`` and ``result``."""
        executor = self._executor or self._pool
        if executor is None:
            executor = self._pool = ProcessPoolExecutor(
                self.slots, multiprocessing.get_context("spawn"), begin_process, (self._threads,)
            )
        call = executor.submit(self._function, *arguments)
        self._calls.append(call)
        if len(self._calls) > 2 * self._looked + _FORGOTTEN:  # twice a call is asked, on average
            self._calls = [each for each in self._calls if not each.done()]
            self._looked = len(self._calls)
        return call

    def start(self, batch: Sequence[Arguments]) -> Iterator[Result]:
        """Take on the work of a batch, in order.

        Returns:
            An iterator that yields each result as it is there and raises what the function raised.
            Processes work whether or not anybody looks; without them a piece is done when it is
            asked for.

        Raises:
            AttsvmError: by the iterator: a process was killed.
        """
        if self.alone(len(batch)):
            return (self._function(*arguments) for arguments in batch)
        return _finished([self.submit(*arguments) for arguments in batch])


def _finished(calls: Sequence[Any]) -> Iterator[Any]:
    waiting = list(calls)
    while waiting:
        for call in wait_for_any(waiting, None):
            waiting.remove(call)
            try:
                yield call.result()
            except BrokenProcessPool:
                raise AttsvmError(PROCESS_ENDED) from None


PROCESS_ENDED = (
    "a process ended before its run did (killed, out of memory, or a script without the line if"
    ' __name__ == "__main__":); call again with the same folder to go on, or with fewer processes'
)


def wait_for_any(calls: Sequence[Any], seconds: float | None) -> list[Any]:
    """Those of the calls that are done, as soon as there is one; none after ``seconds``."""
    if all(isinstance(call, Future) for call in calls):
        return list(wait(calls, seconds, FIRST_COMPLETED).done)
    done: list[Any] = []
    deadline = float("inf") if seconds is None else time.monotonic() + seconds
    while not (done := [call for call in calls if call.done()]) and time.monotonic() < deadline:
        time.sleep(_POLL)
    return done


def executor_slots(executor: Any) -> int | None:
    """How many calls an executor can run at a time, at this moment; None when it does not tell."""
    client = getattr(executor, "_client", None)  # of Dask, whose workers come and go
    if client is not None:
        return max(1, sum(map(int, client.ncores().values())))
    return getattr(executor, "_max_workers", None)


def begin_process(threads: int) -> None:
    """To be called first in a process that :mod:`multiprocessing` has started here: it computes
    with so many threads, ends with the process that started it, and leaves Ctrl-C to that one.

    The number is set here and not in the environment that a process inherits: other threads of the
    one that starts it would see it too.
    """
    end_with_parent()
    os.environ.update(dict.fromkeys(_THREADS, str(threads)))  # for what is loaded from now on
    loaded = sys.modules
    if "numpy" in loaded:  # by the script that is this process's main module
        from attsvm.thread_limits import thread_pools

        for library in thread_pools("blas", "openmp", scipy=False):
            library.set_num_threads(threads)
    if "torch" in loaded:
        loaded["torch"].set_num_threads(threads)


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
    multiprocessing.connection.wait([sentinel])
    os._exit(1)
