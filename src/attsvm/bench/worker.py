"""A process that works for as long as it is allowed to, and is ended when it does not end itself.

Peers are other people's compiled code: they crash, eat memory and never return. Each runs in a
process of its own. The limit is CPU time, kept by the kernel (``ITIMER_PROF``), so that a busy
machine does not fail anybody; a wall-clock limit several times longer catches those who wait
instead of working.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import time
import warnings
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any

from attsvm.workers import begin_process

Work = Callable[[Any], dict[str, Any]]

OVER = "over the limit"
FAILED = "failed"

_WALL_PER_CPU = 3.0


class Worker:
    """Calls ``work`` in another process, one job at a time, each within a limit; a process that was
    ended is replaced.

    Args:
        work: a function of a job that the other process can import; what it returns must pickle.
        threads: of every numerical library in the process.
        startup: wall seconds until the process answers at all.
        grace: wall seconds of a job on top of its limit, for what is not limited: imports,
            compiling, drawing the instance, certifying the answer.
    """

    def __init__(
        self, work: Work, *, threads: int = 1, startup: float = 60.0, grace: float = 120.0
    ) -> None:
        self._work = work
        self._threads = threads
        self._startup = startup
        self._grace = grace
        self._process: Any = None
        self._connection: Any = None

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __call__(self, job: Any, seconds: float) -> dict[str, Any]:
        """What ``work(job)`` returns; ``{"outcome": OVER or FAILED, "reason": ...}`` when it did
        not.
        """
        if self._process is None:
            self._start()
            if not self._connection.poll(self._startup):
                return self._ended(OVER, f"not ready after {self._startup:g} s")
            if self._receive() is None:
                return self._died()
        try:
            self._connection.send((job, seconds))
        except OSError:  # it died after its last answer
            return self._died()
        wall = _WALL_PER_CPU * seconds + self._grace
        if not self._connection.poll(wall):
            return self._ended(OVER, f"ended after {wall:g} s of wall clock")
        answer = self._receive()
        return self._died() if answer is None else answer

    def stop(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._connection.close()
            self._process = None

    def _start(self) -> None:
        # a forked process would inherit threads that no longer run
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, self._threads), daemon=True)
        self._process.start()
        theirs.close()
        with contextlib.suppress(OSError):  # it died already, which the caller will see
            self._connection.send(self._work)  # now, so that it is loaded with these threads

    def _receive(self) -> dict[str, Any] | None:
        try:
            return self._connection.recv()
        except (EOFError, OSError):
            return None

    def _died(self) -> dict[str, Any]:
        self._process.join()
        code = self._process.exitcode
        if hasattr(signal, "SIGPROF") and code == -signal.SIGPROF:
            return self._ended(OVER, "")
        return self._ended(
            FAILED,
            f"the process ended with signal {-code}"
            if code < 0
            else f"the process ended with code {code}",
        )

    def _ended(self, outcome: str, reason: str) -> dict[str, Any]:
        self.stop()
        return {"outcome": outcome, "reason": reason}


@contextlib.contextmanager
def cpu_limit(seconds: float) -> Iterator[None]:
    """End this process when the block uses more CPU time than that; no limit where the system has
    no such timer.
    """
    if not hasattr(signal, "setitimer"):
        yield
        return
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        _until_cpu_time_is_fine()


def _until_cpu_time_is_fine() -> None:
    """While a timer is armed, and until the next tick after it, Linux counts CPU time in ticks: too
    coarse to time what follows.
    """
    deadline, last = time.perf_counter() + 0.1, time.process_time()
    while time.perf_counter() < deadline:
        now = time.process_time()
        if 0.0 < now - last < 1e-3:
            return
        last = now


def _serve(connection: Connection, threads: int) -> None:
    begin_process(threads)
    with open(os.devnull, "w") as nowhere:  # noqa: PTH123 - a device, not a path; peers print
        os.dup2(nowhere.fileno(), 1)
    warnings.simplefilter("ignore")  # what a peer warns about, its certified gap says
    work: Work = connection.recv()
    connection.send({})
    while True:
        try:
            job, seconds = connection.recv()
        except EOFError:
            return
        try:
            answer = work((job, seconds))
        except MemoryError:
            answer = {"outcome": FAILED, "reason": "out of memory"}
        except Exception as error:  # a peer that fails is a result
            answer = {"outcome": FAILED, "reason": f"{type(error).__name__}: {error}"[:200]}
        connection.send(answer)
