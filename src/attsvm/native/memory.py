"""Addresses of arrays and of SciPy's routines, as the compiled core takes them."""

from __future__ import annotations

import ctypes
import functools
from ctypes import c_char_p, c_void_p
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


@functools.cache
def lapack_address(routine: str) -> int:
    """The address of a routine of SciPy's BLAS or LAPACK, ``dgemm`` for instance."""
    from scipy.linalg import cython_blas, cython_lapack

    # SciPy publishes its routines as capsules: a pointer beside the text of its C type
    python = ctypes.pythonapi
    name_of = ctypes.PYFUNCTYPE(c_char_p, ctypes.py_object)(("PyCapsule_GetName", python))
    pointer_of = ctypes.PYFUNCTYPE(c_void_p, ctypes.py_object, c_char_p)(
        ("PyCapsule_GetPointer", python)
    )
    table = cython_blas if routine in cython_blas.__pyx_capi__ else cython_lapack
    capsule = table.__pyx_capi__[routine]
    pointer: int = pointer_of(capsule, name_of(capsule))
    return pointer
