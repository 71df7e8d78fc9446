"""The compiled core: the library that this processor takes, and mirrors of its structs.

The library is compiled when the package is built, by ``hatch_build.py``. A struct is filled once
for a programme, with arrays that are checked then; functions of the library look at no array again.
"""

from __future__ import annotations

import ctypes
import functools
import math
import os
import sys
from ctypes import POINTER, c_char_p, c_double, c_int64, c_uint64, c_void_p
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
    numbers: Any = array
    try:
        return ctypes.addressof(ctypes.c_char.from_buffer(numbers))
    except (TypeError, ValueError):  # of arrays that nobody writes to, or without numbers
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
        ("rank", c_int64),
        ("count", c_int64),
        ("factor", c_void_p),
        ("work", c_void_p),
        ("rows", c_void_p),
        ("side", c_void_p),
    )
    arrays: tuple[NDArray[Any], ...]


class Batch(ctypes.Structure):
    """Programmes that lie end to end, and what is found of each; made by
    :func:`attsvm.solvers.compiled.solve_many`.
    """

    _fields_ = (
        ("dx", c_int64),
        ("dz", c_int64),
        ("D", c_void_p),
        ("Z", c_void_p),
        ("b", c_void_p),
        ("offsets", c_void_p),
        ("instances", c_void_p),
        ("start", c_void_p),
        ("slack", c_double),
        ("W", c_void_p),
        ("dual", c_void_p),
        ("values", c_void_p),
        ("figures", c_void_p),
        ("outcome", c_void_p),
        ("steps", c_void_p),
    )
    arrays: tuple[NDArray[Any], ...]


_POINTS = ("lam", "s", "best_lam", "w", "u", "v", "zu", "zv", "best_w")
_ROUTINES = ("gemm", "potrf", "syrk", "trsm", "getrf", "getrs")


class Interior(ctypes.Structure):
    """State of interior points; made by :func:`interior`."""

    _fields_ = (
        *((name, c_int64) for name in ("box", "systems", "idle", "pattern", "tried", "patience")),
        *((name, c_double) for name in ("tau", "gap", "seconds")),
        ("cost", c_void_p),
        *((name, c_void_p) for name in _POINTS),
    )
    arrays: dict[str, NDArray[np.float64]]


class Blas(ctypes.Structure):
    """Routines of SciPy; see :func:`blas`."""

    _fields_ = tuple((name, c_void_p) for name in _ROUTINES)


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


class Sequences(ctypes.Structure):
    """The sequences of an instance; made by :func:`sequences`."""

    _fields_ = (
        *((name, c_int64) for name in ("n", "N", "d_k", "d_x", "d_z", "chunks", "longest")),
        *((name, c_void_p) for name in ("keys", "queries", "labels", "values", "means", "zero")),
        *((name, c_void_p) for name in ("start", "bounds")),
    )
    arrays: tuple[Any, ...]


class Rule(ctypes.Structure):
    """How a parameter moves along its gradient."""

    _fields_ = (
        *((name, c_int64) for name in ("kind", "normalize", "keeps")),
        *((name, c_double) for name in ("lr", "eps", "inverse_whole", "inverse_rest")),
        *((name, c_double) for name in ("forward_whole", "forward_rest")),
    )


class Descent(ctypes.Structure):
    """A run of descent; made by :mod:`attsvm.training.native_loop`."""

    _fields_ = (
        ("data", POINTER(Sequences)),
        *((name, c_int64) for name in ("loss", "width", "inner", "stacked", "stopped_at")),
        *((name, c_double) for name in ("penalty", "beyond", "factor")),
        ("rules", Rule * 2),
        *((name, c_void_p) for name in ("W", "moved", "K", "Q", "dual", "head_dual", "head")),
        *((name, c_void_p) for name in ("score", "shift", "best", "winner", "margin", "mass")),
        ("log_norm", c_double),
        ("value", c_double),
        ("room", c_void_p),
    )


class Corpus(ctypes.Structure):
    """Sentences; made by :func:`attsvm.theory.next_token.compiled_runs.sentences_struct`."""

    _fields_ = (
        *((name, c_int64) for name in ("K", "classes", "tokens", "sentences")),
        *((name, c_void_p) for name in ("token", "log_count", "start", "run_start", "query")),
        *((name, c_void_p) for name in ("own", "label", "log_weight", "gram", "orthonormal")),
    )
    arrays: list[NDArray[Any]]


class Course(ctypes.Structure):
    """Descent on sentences; made by ``training_struct`` of
    :mod:`attsvm.theory.next_token.compiled_runs`.
    """

    _fields_ = (
        *((name, c_int64) for name in ("rule", "loss", "textbook", "watch", "together")),
        *((name, c_double) for name in ("decay", "factor")),
        *((name, c_void_p) for name in ("lr", "lr_output", "floor")),
        ("count", c_int64),
        *((name, c_void_p) for name in ("marks", "A", "scores", "B", "values", "looks")),
        *((name, c_void_p) for name in ("outputs", "ends")),
    )
    arrays: dict[str, NDArray[Any]]


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


def active_set(m: int, rank: int) -> ActiveSet:
    """An empty set of free rows out of ``m``, of which so many can be independent, with room for
    its factor.
    """
    arrays = np.empty((m, m)), np.empty(4 * m), np.empty(m, np.int64), np.zeros(m, np.uint8)
    made = ActiveSet(m, rank, 0, *(each.__array_interface__["data"][0] for each in arrays))
    made.arrays = arrays
    return made


def interior(m: int, cost: NDArray[np.float64], box: bool, patience: int) -> Interior:
    """Room for the interior points of ``m`` rows and of weights that count so much in the norm, at
    a gap of infinity.
    """
    k = len(cost)
    arrays = {name: np.zeros(m if name in ("lam", "s", "best_lam") else k) for name in _POINTS}
    of = (each.__array_interface__["data"][0] for each in arrays.values())
    at = address(cost, np.float64, k)
    made = Interior(box, 0, 0, 0, 0, patience, -1.0, math.inf, math.inf, at, *of)
    made.arrays = {**arrays, "cost": cost}
    return made


@functools.cache
def blas() -> Blas:
    """SciPy's matrix product and factorisations, for kernels on matrices of many rows."""
    from scipy.linalg import cython_blas, cython_lapack

    name, pointer = ctypes.pythonapi.PyCapsule_GetName, ctypes.pythonapi.PyCapsule_GetPointer
    name.argtypes, name.restype = [ctypes.py_object], c_char_p
    pointer.argtypes, pointer.restype = [ctypes.py_object, c_char_p], c_void_p
    known = {**cython_blas.__pyx_capi__, **cython_lapack.__pyx_capi__}
    capsules = [known[f"d{routine}"] for routine in _ROUTINES]
    return Blas(*(pointer(each, name(each)) for each in capsules))


_WHOLE, _CHUNKS = 1 << 16, 32  # numbers of keys that one chunk holds


def sequences(
    keys: NDArray[np.float64],
    queries: NDArray[np.float64],
    labels: NDArray[np.float64],
    start: NDArray[np.int64],
    values: tuple[NDArray[Any], ...] | None = None,
    chunks: int | None = None,
) -> Sequences:
    """The struct of these arrays, which it keeps alive.

    Args:
        keys: ``(N, d_k)``, sequences end to end.
        queries: ``(n, d_z)``.
        labels: ``(n,)``.
        start: ``(n + 1,)``, where each sequence begins; none is empty.
        values: tokens ``(N, d_x)`` less means ``(n, d_x)``, the means, and which tokens are zero.
        chunks: groups of sequences whose sums are taken apart; as many as the size asks for when
            left out.
    """
    keys = np.ascontiguousarray(keys)
    (N, d_k), (n, d_z), lengths = keys.shape, queries.shape, np.diff(start)
    if start[0] != 0 or start[-1] != N or lengths.min() < 1:
        raise TypeError("starts of sequences must rise from 0 to the number of their tokens")
    count = chunks or (1 if N * d_k <= _WHOLE else min(_CHUNKS, n))
    # a sequence costs about one token beside its tokens
    goals = np.linspace(0, N + n, count + 1)
    bounds = np.searchsorted(start + np.arange(n + 1), goals).astype(np.int64)
    made = Sequences(n, N, d_k, 0, d_z, count, int(lengths.max()))
    made.keys, made.queries = (
        address(keys, np.float64, N, d_k),
        address(queries, np.float64, n, d_z),
    )
    made.labels, made.start = address(labels, np.float64, n), address(start, np.int64, n + 1)
    made.bounds = address(bounds, np.int64, count + 1)
    made.arrays = keys, queries, labels, start, bounds, values
    if values is not None:
        tokens, means, zero = values
        made.d_x = tokens.shape[1]
        made.values = address(tokens, np.float64, N, made.d_x)
        made.means = address(means, np.float64, n, made.d_x)
        made.zero = address(zero, np.bool_, N) if zero.any() else None
    return made


def products(rows: NDArray[np.float64], basis: NDArray[np.float64]) -> NDArray[np.float64]:
    """``rows @ basis.T``, row by row, so that equal rows have equal bits."""
    (count, d), k = rows.shape, len(basis)
    out = np.empty((count, k))
    rows, basis = np.ascontiguousarray(rows), np.ascontiguousarray(basis)
    where = address(rows, np.float64, count, d), address(basis, np.float64, k, d)
    library.products(where[0], count, d, where[1], k, address(out, np.float64, count, k))
    return out


STRUCTS: tuple[type[ctypes.Structure], ...] = (
    *(Programme, ActiveSet, Batch, Interior, Blas, Gauge, Iterate),
    *(Sequences, Rule, Descent, Corpus, Course),
)
_P, _A, _B = POINTER(Programme), POINTER(ActiveSet), POINTER(Batch)
_D, _I, _F, _V = POINTER(Descent), c_int64, c_double, c_void_p
_SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "fast_processor": (_I, []),
    "sources": (c_char_p, []),
    "layout": (_I, [_V]),
    "values": (None, [_P, _I, _I, _V, _V, _V]),
    "adjoint": (None, [_P, _I, _I, _V, _V, _V]),
    "row_values": (None, [_V, _V, _I, _I, _V, _V]),
    "pull_rows": (None, [_V, _V, _I, _I, _V, _V]),
    "row_exponents": (None, [_V, _I, _I, _V]),
    "exact_values": (None, [_V, _V, _V, _I, _I, _I, _V, _V, _V, _V]),
    "exact_adjoint": (None, [_V, _V, _V, _I, _I, _I, _V, _V, _V, _V, _V]),
    "exact_dot": (None, [_V, _V, _I, _V]),
    "checksum": (c_uint64, [_V, _I, c_uint64, c_uint64]),
    "block_grams": (None, [_P, _V, _V]),
    "ascend": (_F, [_P, _V, _V, _V, _V, _V, _V, _F, _I, _V]),
    "solve_programmes": (_I, [_B, _I, _I]),
    "interior_begin": (_I, [_P, POINTER(Interior)]),
    "interior": (_I, [_P, POINTER(Interior), POINTER(Blas), _F, _I]),
    "interior_many": (_I, [_P, _V, _I, _I, _I, _F, _V, _V, _V, _V]),
    "splitting_room": (_I, [_I, _I, _I, _I]),
    "splitting": (_I, [_P, POINTER(Gauge), _V, _V, POINTER(Iterate)]),
    "measure_room": (_I, [_I, _I]),
    "measure": (_F, [POINTER(Gauge), _I, _I, _V, _I, _V]),
    "proximal": (_F, [POINTER(Gauge), _I, _I, _V, _F, _V, _V]),
    "active_set_begin": (None, [_V, _V, _V, _A, _V]),
    "descent_room": (_I, [_D]),
    "descend": (None, [_D, _I, _I, _I, _V, _V, _I, _V]),
    "form_weights": (None, [_D]),
    "read_chunks": (None, [_D, _I, _I]),
    "sum_chunks": (None, [_D, _I, _I]),
    "finish_step": (None, [_D, _I, _F, _F]),
    "look": (None, [_D, _I, _I, _V]),
    "losses": (None, [_D, _I, _I, _I, _I, _V, _V, _V, _V]),
    "sentences_room": (_I, [POINTER(Corpus)]),
    "train_attention": (None, [POINTER(Corpus), POINTER(Course), _I, _I, _V]),
    "train_output": (None, [POINTER(Corpus), POINTER(Course), _I, _I, _V]),
    "train_both": (None, [POINTER(Corpus), POINTER(Course), _I, _I, _V]),
    "look_at": (None, [POINTER(Corpus), _I, _I, _I, _I, _I, _V, _V, _V, _V, _V, _V]),
    "output_losses": (None, [POINTER(Corpus), _I, _I, _V, _V, _V]),
    "signed_powers": (None, [_V, _V, _I, _F, _F]),
    "exponentials": (None, [_V, _V, _I]),
    "log_excess_of": (_F, [_F, _F, _I]),
    "products": (None, [_V, _I, _I, _V, _I, _V]),
    "mirror_step_f32": (None, [_V, _V, _V, _I, _F, _F, _F, _F]),
    "mirror_step_f64": (None, [_V, _V, _V, _I, _F, _F, _F, _F]),
    "normalized_step_f32": (None, [_V, _V, _I, _I, _F, _F]),
    "normalized_step_f64": (None, [_V, _V, _I, _I, _F, _F]),
    "sign_step_f32": (None, [_V, _V, _I, _I, _F, _F]),
    "sign_step_f64": (None, [_V, _V, _I, _I, _F, _F]),
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
