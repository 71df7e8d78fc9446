"""Arrays of every library: the functions of each, and its numbers as floats."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from array_api_compat import array_namespace

Array = Any  # numpy.ndarray or torch.Tensor: whatever array_api_compat understands
INFINITY = float("inf")
_NUMPY = frozenset({np.ndarray, np.float64, np.float32})


def namespace(*arrays: Array) -> Any:
    """The functions of the library that the arrays are of; for NumPy's without a question to each
    library, which takes longer than what a small matrix is asked for.
    """
    for array in arrays:
        if type(array) not in _NUMPY:
            return array_namespace(*arrays)
    return _numpy()


@cache
def _numpy() -> Any:
    """NumPy itself from 2.1 on, which has all functions of the standard that the norms take; the
    namespace of array_api_compat, whose import takes longer than most calls, before.
    """
    return np if hasattr(np, "cumulative_sum") else array_namespace(np.empty(0))


def floating(W: Array) -> Array:
    """``W``, with integers and booleans as float64."""
    if type(W) is np.ndarray and W.dtype.kind == "f":
        return W
    xp = namespace(W)
    return xp.astype(W, xp.float64) if xp.isdtype(W.dtype, ("bool", "integral")) else W


def divisor(number: Array) -> Array:
    """The number, or one where it is zero: a divisor."""
    if type(number) is np.float64:  # of one vector
        return number if number > 0 else np.float64(1)
    if type(number) is np.ndarray:
        return np.where(number > 0, number, number.dtype.type(1))
    xp = namespace(number)
    return xp.where(number > 0, number, xp.ones_like(number))
