"""Many results computed by many workers into one folder that all of them see.

Whoever computes a result has a lease on it (:mod:`attsvm.store.leases`): several clients on one
folder share the work, a lost worker's result is computed by another, and a client that was killed
goes on when it is called again.
"""

from __future__ import annotations

import contextlib
import math
import os
import pickle
import threading
import time
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any, NamedTuple

from attsvm.cores import at_most
from attsvm.errors import AttsvmError
from attsvm.pipeline.cells import work
from attsvm.store.leases import Watch, leased_name, take
from attsvm.store.ledger import remove_partials
from attsvm.thread_limits import at_most_threads, thread_pools
from attsvm.workers import PROCESS_ENDED, Workers, wait_for_any

_CALL = 1.0  # seconds of work in one call, where calls are cheap
_MANY = 64  # tasks in one call
_MUCH = 8  # tasks for each process, from which on calls wait in line
_LOOK = 0.5  # seconds between looks at what others are doing, and ...
_REST = 20.0  # ... times what the last one took: folders of a network may be slow to list
_LOSSES = 10  # calls lost one after the other, without a result between them

Task = tuple[str, dict[str, Any], Path]
"""An experiment, a cell and its file: the arguments of :func:`attsvm.pipeline.cells.work`."""


class Outcome(NamedTuple):
    """What a call has seen.

    Attributes:
        done: files that are there.
        held: files that others are at work on.
        failed: the file of the cell that raised an error, which ended the call.
        error: what it raised.
    """

    done: list[Path]
    held: list[Path]
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
        self._names: dict[Path, dict[str, Path]] = {}  # of the same, by folder
        self._wanted: dict[Path, None] = {}
        self._errors: dict[Path, Exception] = {}
        self._calls: dict[Any, Sequence[Task]] = {}
        self._held: set[Path] = set()
        self._watch, self._looks_at = Watch(), 0.0
        self._losses = 0

    def add(self, tasks: Collection[Task], *, first: bool = False) -> None:
        """Have further results computed, after those that were added before, or ahead of them."""
        added = {task[2]: task for task in tasks}
        if first:
            self._waiting = {**added, **self._waiting}
        else:
            self._waiting.update(added)
        for task in tasks:
            self._names.setdefault(task[2].parent, {})[task[2].name] = task[2]
        self._looks_at = 0.0
        if self._workers.keeps_processes:  # a job is asked for when all work is known
            self._submit()

    def waits_for(self, path: Path) -> bool:
        """Whether a result was asked for and is not there yet."""
        return path in self._waiting

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
        self._wanted = {path: None for path in paths if path in self._waiting}
        if not missing and self._waiting:  # the caller was busy: hand out more before it is again
            self._collect(0.0)
            self._submit()
        while missing:
            if len(self._wanted) != missing:
                missing = len(self._wanted)
                yield missing
            for path, error in self._errors.items():
                if path in self._wanted:
                    raise error
            if missing:
                self._step()

    def _step(self) -> None:
        """Let something happen, for half a second at most where others work."""
        if self._workers.alone(len(self._waiting)):
            self._look()
            tasks = self._next(1, self._wanted)
            if tasks:
                self._take(compute(tasks, 0.0))
            else:
                time.sleep(_LOOK)
            return
        self._submit()
        if not self._calls:
            time.sleep(_LOOK)
            return
        self._collect(_LOOK)

    def _collect(self, seconds: float) -> None:
        """Take what calls have computed, waiting so long at most for the first of them."""
        for call in wait_for_any(list(self._calls), seconds):
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

    def _look(self) -> bool:
        """See which files others have written and which they hold: a listing of each folder, never
        a question for each file.

        Returns:
            False: it is too early for another look.
        """
        began = time.monotonic()
        if began < self._looks_at:
            return False
        leases: set[Path] = set()
        for folder, names in self._names.items():
            if not names:
                continue
            with contextlib.suppress(OSError), os.scandir(folder) as entries:
                for entry in entries:
                    if path := names.get(entry.name):
                        self._settle(path)
                    elif path := names.get(leased_name(entry.name) or ""):
                        leases.add(path)
        self._held = set(filter(self._watch.held, leases & self._waiting.keys()))
        now = time.monotonic()
        self._looks_at = now + max(_LOOK, _REST * (now - began))
        return True

    def _settle(self, path: Path) -> None:
        self._losses = 0
        self._waiting.pop(path, None)
        self._wanted.pop(path, None)
        self._names[path.parent].pop(path.name, None)

    def _take(self, outcome: Outcome) -> None:
        self._held.update(outcome.held)  # until the next look
        for path in outcome.done:
            self._settle(path)
        if outcome.failed is not None and outcome.error is not None:
            self._errors[outcome.failed] = outcome.error

    def _submit(self) -> None:
        if self._workers.alone(len(self._waiting)):
            return
        slots, cheap = self._workers.slots, self._workers.keeps_processes
        if not self._look() and not cheap:  # a job is asked for by what is known now
            return
        # While there is much to do, a call waits behind each that runs: no process waits for us.
        calls = 2 * slots if cheap and len(self._waiting) > _MUCH * slots else slots
        while len(self._calls) < min(calls, len(self._waiting)):
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
        chosen: list[Task] = []
        for path in among:
            if len(chosen) == count:
                break
            if path not in given and path not in self._errors and path not in self._held:
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

    Raises:
        Exception: what submitit raises where a job's time is over; errors of tasks are handed back.
    """
    done: list[Path] = []
    held: list[Path] = []
    began = time.monotonic()
    with _ALONE, _at_most(threads):
        for task in tasks:
            try:
                (done if _compute(task) else held).append(task[2])
            except Exception as error:
                if type(error).__module__.startswith("submitit."):  # the job's time is over
                    raise
                return Outcome(done, held, task[2], _portable(error))
            if time.monotonic() - began > seconds:
                break
    return Outcome(done, held)


@contextlib.contextmanager
def _at_most(threads: int | None) -> Iterator[None]:
    """No more than so many threads of BLAS, OpenMP, torch and our own inside; as many as there are
    with None.
    """
    if threads is None:
        yield
        return
    import torch

    pools = thread_pools("blas", "openmp", scipy=True)
    with at_most(threads), at_most_threads(threads, torch, *pools):
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
