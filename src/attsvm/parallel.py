"""Kernels whose loops are spread over the cores; torch keeps its own number of threads."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, cast

import numba

from attsvm.cores import shared_out, shares
from attsvm.cores import threads as available
from attsvm.jit import compiled, kernel
from attsvm.thread_limits import at_most_threads

Function = TypeVar("Function", bound=Callable[..., Any])

_WORTH_SHARING = 500.0  # microseconds


def parallel_kernel(function: Function) -> Function:
    """Like :func:`attsvm.jit.kernel`, with ``numba.prange`` loops spread over the cores. To be
    called from Python, not from a kernel.
    """
    return _started(compiled(function, parallel=True), function)


def shareable(function: Function) -> tuple[Function, Function]:
    """The kernel of a function whose ``numba.prange`` loops one core runs through, and the
    :func:`parallel_kernel` of the same.
    """
    return kernel(function), parallel_kernel(function)


def parallel_part(function: Function) -> Function:
    """Like :func:`parallel_kernel`, to be called from other kernels alone, and those inside
    :func:`threads_for`.
    """
    return compiled(function, parallel=True)


def parallel_fusing_kernel(function: Function) -> Function:
    """Like :func:`attsvm.jit.fusing_kernel`, with ``numba.prange`` loops spread over the cores. To
    be called from Python.
    """
    fast = compiled(function, parallel=True, fastmath={"contract"}, error_model="numpy")
    return _started(fast, function)


@contextmanager
def threads_for(microseconds: float) -> Iterator[None]:
    """One thread for a parallel section that is too short to share: waiting for another core would
    cost more than it saves.
    """
    start_threads()
    with at_most_threads(1 if microseconds < _WORTH_SHARING else sys.maxsize, numba):
        yield


def share_runs(run: Callable[..., None], runs: int, microseconds: float, *arguments: Any) -> None:
    """``run(start, stop, *arguments)``, a kernel without the GIL, over shares of ``runs``, on as
    many threads as parallel sections may take.

    Args:
        run: computes the runs from ``start`` to before ``stop``.
        runs: how many there are.
        microseconds: what one of all takes; below half a millisecond one thread does it.
        *arguments: what the kernel reads and writes.
    """
    threads = 1 if microseconds * runs < _WORTH_SHARING else min(runs, available())
    if threads == 1:
        run(0, runs, *arguments)
        return
    # several shares per thread: runs that stop early leave some of them short
    shared_out(lambda part: run(*part, *arguments), shares(runs, threads), threads)


@functools.cache
def start_threads() -> None:
    """Start numba's threads, once in a process, without a change to torch's number of them.

    The start sets OpenMP's default for the whole process. Torch would from then on split its
    products over all cores whatever ``OMP_NUM_THREADS`` or ``torch.set_num_threads`` said: slower
    where they are small, and with other roundings than before.
    """
    import torch

    before = torch.get_num_threads()
    numba.get_num_threads()  # starts them
    torch.set_num_threads(before)


def _started(fast: Callable[..., Any], function: Function) -> Function:
    @functools.wraps(function)
    def call(*arguments: Any) -> Any:
        start_threads()
        return fast(*arguments)

    return cast("Function", call)
