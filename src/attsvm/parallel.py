"""Kernels whose loops are spread over the cores; torch keeps its own number of threads."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, cast

import numba

from attsvm.jit import compiled
from attsvm.thread_limits import at_most_threads

Function = TypeVar("Function", bound=Callable[..., Any])

_WORTH_SHARING = 500.0  # microseconds


def parallel_kernel(function: Function) -> Function:
    """Like :func:`attsvm.jit.kernel`, with ``numba.prange`` loops spread over the cores. To be
    called from Python, not from a kernel.
    """
    return _started(compiled(function, parallel=True), function)


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
