"""The compiled core: the library that this processor takes, and mirrors of its structs.

The library is compiled when the package is built, by ``hatch_build.py``. A struct is filled once
for a programme, with arrays that are checked then; functions of the library look at no array again.
"""

from __future__ import annotations

import ctypes
import os
import sys
from ctypes import POINTER, c_char_p, c_double, c_int64, c_void_p
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

SOLVED, CONTRADICTION, STOPPED = 0, 1, 2  # how the method of active sets ends
_HERE = Path(os.environ.get("ATTSVM_NATIVE") or Path(__file__).parent)
_SUFFIX = {"darwin": ".dylib", "win32": ".dll"}.get(sys.platform, ".so")


def address(array: NDArray[Any], dtype: type, *shape: int) -> int:
    """Where the numbers of an array lie.

    Raises:
        TypeError: another type, shape or order than the library takes: a defect of the caller.
    """
    if array.dtype != dtype or array.shape != shape or not array.flags.c_contiguous:
        raise TypeError(
            f"an array of {array.dtype} {array.shape} with strides {array.strides}, where the"
            f" compiled core takes {np.dtype(dtype)} {shape} in C order"
        )
    found: int = array.__array_interface__["data"][0]
    return found


class Programme(ctypes.Structure):
    """Rows of a programme; made by :func:`programme`."""

    _fields_ = (
        ("m", c_int64),
        ("n", c_int64),
        ("dx", c_int64),
        ("dz", c_int64),
        ("D", c_void_p),
        ("Z", c_void_p),
        ("b", c_void_p),
        ("cap", c_void_p),
        ("offsets", c_void_p),
        ("free_sign", c_void_p),
    )
    arrays: tuple[NDArray[Any], ...]


class ActiveSet(ctypes.Structure):
    """Free rows and the factor of their Gram matrix; made by :func:`active_set`."""

    _fields_ = (
        ("m", c_int64),
        ("count", c_int64),
        ("factor", c_void_p),
        ("work", c_void_p),
        ("rows", c_void_p),
        ("side", c_void_p),
    )
    arrays: tuple[NDArray[Any], ...]


class Gauge(ctypes.Structure):
    """The function that a splitting minimises."""

    _fields_ = (("lift", c_int64), ("p", c_double), ("degree", c_double), ("svd", c_void_p))


class Iterate(ctypes.Structure):
    """Where a splitting is, and what it is asked."""

    _fields_ = (
        ("W", c_void_p),
        ("lam", c_void_p),
        ("room", c_void_p),
        ("t", c_double),
        ("target", c_double),
        ("enough", c_double),
        ("error", c_double),
        ("most", c_int64),
        ("warm", c_int64),
        ("easy", c_int64),
        ("iterations", c_int64),
        ("exchanges", c_int64),
    )


def programme(
    D: NDArray[np.float64],
    Z: NDArray[np.float64],
    b: NDArray[np.float64],
    cap: NDArray[np.float64],
    offsets: NDArray[np.int64],
    free_sign: NDArray[np.uint8],
) -> Programme:
    """The struct of these arrays, which it keeps alive; shapes are those of ``attsvm.h``."""
    (m, dx), (n, dz) = D.shape, Z.shape
    made = Programme(
        m,
        n,
        dx,
        dz,
        address(D, np.float64, m, dx),
        address(Z, np.float64, n, dz),
        address(b, np.float64, m),
        address(cap, np.float64, m),
        address(offsets, np.int64, n + 1),
        address(free_sign, np.uint8, m),
    )
    if offsets[0] != 0 or offsets[-1] != m or (np.diff(offsets) < 0).any():
        raise TypeError("the offsets of a programme must rise from 0 to the number of its rows")
    made.arrays = D, Z, b, cap, offsets, free_sign
    return made


def active_set(m: int) -> ActiveSet:
    """An empty set of free rows out of ``m``, with room for its factor."""
    arrays = np.empty((m, m)), np.empty(4 * m), np.empty(m, np.int64), np.zeros(m, np.uint8)
    made = ActiveSet(m, 0, *(each.__array_interface__["data"][0] for each in arrays))
    made.arrays = arrays
    return made


STRUCTS: tuple[type[ctypes.Structure], ...] = (Programme, ActiveSet, Gauge, Iterate)
_P, _A, _I, _F, _V = POINTER(Programme), POINTER(ActiveSet), c_int64, c_double, c_void_p
_SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "fast_processor": (_I, []),
    "sources": (c_char_p, []),
    "layout": (_I, [_V]),
    "values": (None, [_P, _I, _I, _V, _V, _V]),
    "adjoint": (None, [_P, _I, _I, _V, _V, _V]),
    "row_values": (None, [_V, _V, _I, _I, _V, _V]),
    "pull_rows": (None, [_V, _V, _I, _I, _V, _V]),
    "row_exponents": (None, [_V, _I, _I, _V]),
    "splitting_room": (_I, [_I, _I, _I, _I]),
    "splitting": (_I, [_P, POINTER(Gauge), _V, _V, POINTER(Iterate)]),
    "measure_room": (_I, [_I, _I]),
    "measure": (_F, [POINTER(Gauge), _I, _I, _V, _I, _V]),
    "proximal": (_F, [POINTER(Gauge), _I, _I, _V, _F, _V, _V]),
    "active_set_begin": (None, [_V, _V, _V, _A, _V]),
    "active_set": (_I, [_V, _V, _V, _V, _A, _F, _I, _V, _V, POINTER(c_int64)]),
}


def _open(level: str) -> ctypes.CDLL:
    path = _HERE / f"attsvm.{level}{_SUFFIX}"
    try:
        found = ctypes.CDLL(str(path))
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(found, name)
            function.restype, function.argtypes = result, arguments
    except (OSError, AttributeError) as error:
        raise ImportError(
            f"the compiled core of attsvm cannot be used: {error}; install attsvm again with pip,"
            " or run `python hatch_build.py` in a checkout after its sources have changed"
        ) from error
    return found


def _chosen() -> tuple[ctypes.CDLL, str]:
    """The library of this processor, or of the level that ``ATTSVM_PROCESSOR`` names."""
    asked = os.environ.get("ATTSVM_PROCESSOR")
    if asked not in (None, "", "baseline", "avx2"):
        raise ImportError(f"ATTSVM_PROCESSOR is {asked!r}; it must be baseline or avx2")
    library = _open("baseline")
    fast = (_HERE / f"attsvm.avx2{_SUFFIX}").exists() and library.fast_processor()
    if asked == "avx2" and not fast:
        raise ImportError("ATTSVM_PROCESSOR is avx2, which this processor does not have")
    return (_open("avx2"), "avx2") if fast and asked != "baseline" else (library, "baseline")


library, LEVEL = _chosen()
