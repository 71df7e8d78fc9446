"""Compiled kernels: numba with the options of the house, typed for mypy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numba

Function = TypeVar("Function", bound=Callable[..., Any])


def kernel(function: Function) -> Function:
    """Compile a loop ahead of its first use in the process; the machine code is cached on disk."""
    compiled: Function = numba.njit(cache=True, fastmath=False, nogil=True)(function)
    return compiled


def parallel_kernel(function: Function) -> Function:
    """Like :func:`kernel`, with ``numba.prange`` loops spread over the cores."""
    compiled: Function = numba.njit(cache=True, fastmath=False, nogil=True, parallel=True)(function)
    return compiled
