"""Compiled kernels: numba with the options of the house, typed for mypy. Machine code is kept on
disk, see :mod:`attsvm.kernel_cache`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
from numba.core.dispatcher import Dispatcher

from attsvm.kernel_cache import keep

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function, **options: Any) -> Function:
    """Compile a loop with these options of numba, without the GIL, and keep its machine code."""
    found = numba.njit(nogil=True, **options)(function)
    if isinstance(found, Dispatcher):  # not with NUMBA_DISABLE_JIT
        keep(found)
    return cast("Function", found)


def kernel(function: Function) -> Function:
    """Compile a loop whose operations round in the order they are written."""
    return compiled(function)


def summing_kernel(function: Function) -> Function:
    """Compile a loop whose sums may be split over vector lanes and whose products may be fused into
    them.

    Other roundings than left to right, but the same in every call on one machine. Nothing else is
    relaxed.
    """
    return compiled(function, fastmath={"reassoc", "contract", "nsz"})


def fusing_kernel(function: Function) -> Function:
    """Like :func:`kernel`, but a product and a sum may round once instead of twice; division by
    zero gives what IEEE says.
    """
    return compiled(function, fastmath={"contract"}, error_model="numpy")
