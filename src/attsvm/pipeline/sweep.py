"""Many results computed by many workers into one folder that all of them see.

Whoever computes a result has a lease on it (:mod:`attsvm.store.leases`): several clients on one
folder share the work, a lost worker's result is computed by another, and a client that was killed
goes on when it is called again.
"""

from __future__ import annotations

import contextlib
import math
import pickle
import threading
import time
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any, NamedTuple

from attsvm.errors import AttsvmError
from attsvm.pipeline.cells import work
from attsvm.store.leases import Watch, take
from attsvm.store.ledger import remove_partials
from attsvm.thread_limits import at_most_threads, thread_pools
from attsvm.workers import PROCESS_ENDED, Workers, wait_for_any

_CALL = 1.0  # seconds of work in one call, where calls are cheap
_MANY = 64  # tasks in one call
_LOOK = 0.5  # seconds between looks at what others are doing
_LOSSES = 10  # calls lost one after the other, without a result between them

Task = tuple[str, dict[str, Any], Path]
"""An experiment, a cell and its file: the arguments of :func:`attsvm.pipeline.cells.work`."""


class Outcome(NamedTuple):
    """What a call has seen.

    Attributes:
        done: files that are there.
        failed: the file of the cell that raised an error, which ended the call.
        error: what it raised.
    """

    done: list[Path]
    failed: Path | None = None
    error: Exception | None = None


class Sweep:
    """The tasks of one client.

    Args:
        workers: those that compute; made for :func:`compute`.
    """

    def __init__(self, workers: Workers[Outcome]) -> None:
        self._workers = workers
        self._waiting: dict[Path, Task] = {}
        self._errors: dict[Path, Exception] = {}
        self._calls: dict[Any, Sequence[Task]] = {}
        self._others: dict[Path, float] = {}
        self._watch = Watch()
        self._losses = 0

    def add(self, tasks: Collection[Task]) -> None:
        """Have further results computed, after those that were added before."""
        self._waiting.update((task[2], task) for task in tasks)
        self._submit()

    def finish(self, paths: Collection[Path]) -> Iterator[int]:
        """Wait until all these files are there.

        Yields:
            How many are missing, after each change.

        Raises:
            AttsvmError: a process of our own was killed, or an executor loses its workers again and
                again.
            Exception: what computing one of the files raised.
        """
        missing = len(paths)
        while missing:
            now = sum(path in self._waiting for path in paths)
            if now != missing:
                missing = now
                yield missing
            for path in self._errors.keys() & set(paths):
                raise self._errors[path]
            if missing:
                self._step(paths)

    def _step(self, wanted: Collection[Path]) -> None:
        """Let something happen, for half a second at most where others work."""
        if self._workers.alone(len(self._waiting)):
            tasks = self._next(1, wanted)
            if tasks:
                self._take(compute(tasks, 0.0))
            else:
                time.sleep(_LOOK)
            return
        self._submit()
        if not self._calls:
            time.sleep(_LOOK)
            return
        for call in wait_for_any(list(self._calls), _LOOK):
            del self._calls[call]
            try:
                self._take(call.result())
            except BrokenProcessPool:
                raise AttsvmError(PROCESS_ENDED) from None
            except Exception as error:  # of the executor: compute raises none
                self._losses += 1
                if self._losses > _LOSSES + self._workers.slots:
                    raise AttsvmError(
                        f"the executor has lost {self._losses} calls one after the other without a"
                        f" result ({type(error).__name__}: {error}); look at the logs of its"
                        " workers, and call again with the same folder to go on"
                    ) from error

    def _take(self, outcome: Outcome) -> None:
        for path in outcome.done:
            self._losses = 0
            self._waiting.pop(path, None)
        if outcome.failed is not None and outcome.error is not None:
            self._errors[outcome.failed] = outcome.error

    def _submit(self) -> None:
        if self._workers.alone(len(self._waiting)):
            return
        slots = self._workers.slots
        while len(self._calls) < slots and len(self._calls) < len(self._waiting):
            cheap = self._workers.keeps_processes
            count = max(1, min(len(self._waiting) // (4 * slots), _MANY))
            tasks = self._next(count if cheap else len(self._waiting), self._waiting)
            if not tasks:
                return
            if not cheap:  # every call may do all; leases say who does what
                turn = len(self._calls) * len(tasks) // slots
                tasks = tasks[turn:] + tasks[:turn]
            seconds = _CALL if cheap else math.inf
            call = self._workers.submit(tasks, seconds, self._workers.limit)
            self._calls[call] = tasks if cheap else ()

    def _next(self, count: int, among: Collection[Path]) -> list[Task]:
        """Tasks for another call: not those of a call that is under way, nor of others."""
        given = {task[2] for tasks in self._calls.values() for task in tasks}
        now = time.monotonic()
        chosen: list[Task] = []
        for path in among:
            if len(chosen) == count:
                break
            if path not in self._waiting or path in given or path in self._errors:
                continue
            if now < self._others.get(path, 0.0):
                continue
            if self._watch.held(path) and not path.exists():
                self._others[path] = now + _LOOK
                continue
            chosen.append(self._waiting[path])
        return chosen


_ALONE = threading.Lock()
"""Threads of one process take turns: what they call sets options of the whole process."""


def compute(tasks: Sequence[Task], seconds: float, threads: int | None = None) -> Outcome:
    """Compute those of the tasks that nobody is at work on, in order.

    Args:
        tasks: what there is to do.
        seconds: no further task is begun after these.
        threads: of every numerical library; as many as there are when left out.
    """
    done: list[Path] = []
    began = time.monotonic()
    with _ALONE, _at_most(threads):
        for task in tasks:
            try:
                if _compute(task):
                    done.append(task[2])
            except Exception as error:
                return Outcome(done, task[2], _portable(error))
            if time.monotonic() - began > seconds:
                break
    return Outcome(done)


@contextlib.contextmanager
def _at_most(threads: int | None) -> Iterator[None]:
    """No more than so many threads of BLAS, OpenMP, torch and numba inside; as many as there are
    with None.
    """
    if threads is None:
        yield
        return
    import numba
    import torch

    from attsvm.parallel import start_threads

    start_threads()
    with at_most_threads(threads, torch, numba, *thread_pools(scipy=True)):
        yield


def _compute(task: Task) -> bool:
    """Whether the task's file is there now."""
    path = task[2]
    if path.exists():
        return True
    lease = take(path)
    if lease is None:
        return False
    with lease:
        if lease.number:  # somebody was killed here
            remove_partials(path.parent, {path.name})
        if not path.exists():
            work(*task)
    return True


def _portable(error: Exception) -> Exception:
    """The error, or where it cannot be sent to another process, its words."""
    with contextlib.suppress(Exception):
        pickle.loads(pickle.dumps(error))
        return error
    notes = getattr(error, "__notes__", [])
    return AttsvmError("; ".join([f"{type(error).__name__}: {error}", *notes]))
