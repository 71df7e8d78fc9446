"""Processes that compute, and none that outlives who started it."""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import multiprocessing.connection
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from types import SimpleNamespace
from typing import Any

from attsvm.base.errors import AttsvmError
from attsvm.base.interruption import end_on_signals, end_processes, uninterrupted

_THREADS = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "ATTSVM_THREADS",
    "RAYON_NUM_THREADS",
)

PROCESS_ENDED = (
    "a process ended before its run did (killed, out of memory, or a script without the line if"
    ' __name__ == "__main__":); call again with the same folder to go on, or with fewer processes'
)


class _Pool(ProcessPoolExecutor):
    """Processes that are started by ``submit``, and do not hear Ctrl-C before they ignore it."""

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        try:
            with uninterrupted():
                return super().submit(function, *arguments, **named)
        except BrokenPipeError:  # one was killed before it knew what it is for
            raise BrokenProcessPool(PROCESS_ENDED) from None


class _Here:
    """An executor that is this process: a call is made when its result is asked for."""

    _max_workers = 1

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Any:
        call = partial(function, *arguments)
        return SimpleNamespace(done=lambda: True, result=call, cancel=lambda: None)


@contextlib.contextmanager
def workers(jobs: int | None = None, executor: Any = None) -> Iterator[Any]:
    """An executor for calls: a :class:`concurrent.futures.Executor`, or what has its ``submit``.

    Args:
        jobs: processes of our own, with one thread each; one per core when left out. A single one
            is this process, with all its threads.
        executor: makes the calls instead: a :class:`concurrent.futures.Executor`, or another object
            whose ``submit`` returns what has ``done``, ``result`` and ``cancel``.

    Raises:
        AttsvmError: a process was killed.
    """
    jobs = jobs or os.cpu_count() or 1
    pool = None
    if executor is None and jobs > 1:
        spawn = multiprocessing.get_context("spawn")
        pool = _Pool(jobs, spawn, _begin)
    try:
        yield executor or pool or _Here()
    except BrokenProcessPool:
        raise AttsvmError(PROCESS_ENDED) from None
    except Exception:
        raise
    except BaseException:  # interrupted: nobody waits for calls that run
        end_processes(pool._processes.values() if pool is not None else ())
        raise
    finally:
        if pool is not None:
            pool.shutdown(cancel_futures=True)


def results(
    executor: Any, function: Callable[..., Any], calls: Iterable[tuple[Any, ...]], ahead: int = 2
) -> Iterator[Any]:
    """Results of the function for each of these arguments, in the order in which they come.

    Of the calls ``ahead`` are taken from their iterator for each that can run at a time. Those that
    have not begun when the iterator is closed are cancelled.
    """
    waiting: list[Any] = []
    try:
        for arguments in calls:
            waiting.append(executor.submit(function, *arguments))
            while len(waiting) >= ahead * slots(executor):
                yield from _done(waiting)
        while waiting:
            yield from _done(waiting)
    finally:
        for call in waiting:
            call.cancel()


def _done(waiting: list[Any]) -> Iterator[Any]:
    for call in wait_for_any(waiting):
        waiting.remove(call)
        yield call.result()


def wait_for_any(calls: Sequence[Any], seconds: float = 0.2) -> list[Any]:
    """The calls that are done, as soon as there is one; those that cannot be waited for are looked
    at every ``seconds``.
    """
    if all(isinstance(call, Future) for call in calls):
        return list(wait(calls, return_when=FIRST_COMPLETED).done)
    while not (done := [call for call in calls if call.done()]):
        time.sleep(seconds)
    return done


def slots(executor: Any) -> int:
    """Number of calls that an executor can run at a time; of cores when it does not tell."""
    client = getattr(executor, "_client", None)  # of Dask, whose workers come and go
    if client is not None:
        return max(1, sum(map(int, client.ncores().values())))
    return getattr(executor, "_max_workers", None) or os.cpu_count() or 1


def _begin() -> None:
    """Called first in a process: it computes with one thread, ends with the process that started
    it, and leaves Ctrl-C to that one, which ends it with SIGTERM.

    Linux sends a signal at the end of the other process; everywhere a thread waits for the end of a
    pipe that the other one holds open for as long as it lives.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    end_on_signals(quiet=True)
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            pr_set_pdeathsig = 1  # of <sys/prctl.h>
            ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
    if (parent := multiprocessing.parent_process()) is not None:
        threading.Thread(target=_end_after, args=(parent.sentinel,), daemon=True).start()
    from threadpoolctl import threadpool_limits

    os.environ.update(dict.fromkeys(_THREADS, "1"))  # for what is loaded from now on
    threadpool_limits(1)  # of what the script that is this process's main module has loaded
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)


def _end_after(sentinel: int) -> None:
    multiprocessing.connection.wait([sentinel])
    os._exit(1)
