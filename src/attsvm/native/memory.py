"""Addresses of arrays, as the compiled core takes them."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from numpy.typing import NDArray


def address(array: NDArray[Any], dtype: type, *shape: int) -> int:
    """The address of the first number of an array.

    Raises:
        TypeError: another type, shape or order than the library takes: a defect of the caller.
    """
    if array.dtype != dtype or array.shape != shape or not array.flags.c_contiguous:
        raise TypeError(
            f"an array of {array.dtype} {array.shape} with strides {array.strides}, where the"
            f" compiled core takes {np.dtype(dtype)} {shape} in C order"
        )
    # half the time of array.ctypes.data, which small programmes would notice
    numbers: Any = array
    try:
        return ctypes.addressof(ctypes.c_char.from_buffer(numbers))
    except (TypeError, ValueError):  # read-only or empty: slower, but needs no writable buffer
        position: int = array.__array_interface__["data"][0]
        return position
