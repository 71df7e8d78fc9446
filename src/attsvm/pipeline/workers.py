"""Processes that stay for as long as there is work: what they have imported and compiled, they
keep.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from types import TracebackType
from typing import Any

_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")

Arguments = tuple[Any, ...]


class Workers:
    """Up to ``jobs`` processes that call one function, a thread each; a single one is this process,
    with all threads.

    Args:
        function: what is called with each tuple of arguments; picklable, as they are. Its result is
            dropped.
        jobs: processes.
    """

    def __init__(self, function: Callable[..., None], jobs: int) -> None:
        self._function = function
        self._jobs = jobs
        self._pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> Workers:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=error is None, cancel_futures=True)

    def start(self, batches: Sequence[Sequence[Arguments]]) -> list[Iterator[None]]:
        """Take on the work of all batches, in order.

        Returns:
            One iterator per batch. It yields whenever a piece of work is done and raises what the
            function raised. Processes work whether or not anybody looks; without them a piece is
            done when it is asked for.
        """
        if self._pool is None:
            if min(self._jobs, sum(len(batch) for batch in batches)) <= 1:
                return [self._alone(batch) for batch in batches]
            self._pool = ProcessPoolExecutor(self._jobs, multiprocessing.get_context("spawn"))
        with _one_thread_each():
            return [
                _finished([self._pool.submit(self._function, *arguments) for arguments in batch])
                for batch in batches
            ]

    def _alone(self, batch: Sequence[Arguments]) -> Iterator[None]:
        for arguments in batch:
            self._function(*arguments)
            yield


def _finished(futures: Sequence[Future[None]]) -> Iterator[None]:
    for future in as_completed(futures):
        future.result()
        yield


@contextmanager
def _one_thread_each() -> Iterator[None]:
    """Processes started inside compute with one thread each: they share the cores among
    themselves.
    """
    before = {name: os.environ.get(name) for name in _THREADS}
    os.environ.update(dict.fromkeys(_THREADS, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
