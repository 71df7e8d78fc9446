"""Compiled kernels: numba with the options of the house, typed for mypy. Machine code is cached on
disk beside the module.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

Function = TypeVar("Function", bound=Callable[..., Any])


def kernel(function: Function) -> Function:
    """Compile a loop whose operations round in the order they are written."""
    return cast("Function", numba.njit(cache=True, nogil=True)(function))


def summing_kernel(function: Function) -> Function:
    """Compile a loop whose sums may be split over vector lanes and whose products may be fused into
    them.

    Other roundings than left to right, but the same in every call on one machine. Nothing else is
    relaxed.
    """
    return cast(
        "Function",
        numba.njit(cache=True, nogil=True, fastmath={"reassoc", "contract", "nsz"})(function),
    )


def fusing_kernel(function: Function) -> Function:
    """Like :func:`kernel`, but a product and a sum may round once instead of twice; division by
    zero gives what IEEE says.
    """
    return cast(
        "Function",
        numba.njit(cache=True, nogil=True, fastmath={"contract"}, error_model="numpy")(function),
    )
