"""The library for this processor, with the types of its functions."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterable
from ctypes import POINTER, c_char_p, c_double, c_int64, c_uint64, c_void_p
from pathlib import Path
from typing import Any

from attsvm.native import structs

_FOLDER = Path(os.environ.get("ATTSVM_NATIVE") or Path(__file__).parent)
_SUFFIX = {"darwin": ".dylib", "win32": ".dll"}.get(sys.platform, ".so")

Integer, Real, Memory = c_int64, c_double, c_void_p
Programme, ActiveSet = POINTER(structs.ProgrammeRows), POINTER(structs.ActiveSet)
Batch, Interior, Blas = (
    POINTER(structs.Batch),
    POINTER(structs.Interior),
    POINTER(structs.Blas),
)
Gauge, Iterate = POINTER(structs.GaugeFunction), POINTER(structs.SplittingState)
Run, Runs = POINTER(structs.DescentRun), Memory
Corpus, Training = POINTER(structs.Corpus), POINTER(structs.SentenceDescent)

# What each function returns and takes, as attsvm.h and the sources declare it.
_SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    # the library itself
    "fast_processor": (Integer, []),
    "sources": (c_char_p, []),
    "layout": (Integer, [Memory]),
    # margins of rows, and sums of rows
    "values": (None, [Programme, Integer, Integer, *[Memory] * 3]),
    "adjoint": (None, [Programme, Integer, Integer, *[Memory] * 3]),
    "row_values": (None, [Memory, Memory, Integer, Integer, Memory, Memory]),
    "pull_rows": (None, [Memory, Memory, Integer, Integer, Memory, Memory]),
    "row_exponents": (None, [Memory, Integer, Integer, Memory]),
    "exact_values": (None, [*[Memory] * 3, *[Integer] * 3, *[Memory] * 4]),
    "exact_adjoint": (None, [*[Memory] * 3, *[Integer] * 3, *[Memory] * 5]),
    "exact_dot": (None, [Memory, Memory, Integer, Memory]),
    "products": (None, [Memory, Integer, Integer, Memory, Integer, Memory]),
    "checksum": (c_uint64, [Memory, Integer, c_uint64, c_uint64]),
    # solvers
    "block_grams": (None, [Programme, Memory, Memory]),
    "ascend": (Real, [Programme, *[Memory] * 6, Real, Integer, Memory]),
    "solve_programmes": (Integer, [Batch, Integer, Integer]),
    "interior_begin": (Integer, [Programme, Interior]),
    "interior": (Integer, [Programme, Interior, Blas, Real, Integer]),
    "interior_many": (Integer, [Programme, Memory, *[Integer] * 3, Real, *[Memory] * 4]),
    "splitting_room": (Integer, [Integer] * 4),
    "splitting": (Integer, [Programme, Gauge, Memory, Memory, Iterate]),
    "measure_room": (Integer, [Integer, Integer]),
    "measure": (Real, [Gauge, Integer, Integer, Memory, Integer, Memory]),
    "proximal": (Real, [Gauge, Integer, Integer, Memory, Real, Memory, Memory]),
    "active_set_begin": (None, [*[Memory] * 3, ActiveSet, Memory]),
    "active_set": (
        Integer,
        [*[Memory] * 4, ActiveSet, Real, Integer, Memory, Memory, POINTER(Integer)],
    ),
    # softmax attention
    "descent_room": (Integer, [Run]),
    "descend": (None, [Runs, *[Integer] * 3, Memory, Memory, Integer, Memory]),
    "form_weights": (None, [Run]),
    "read_chunks": (None, [Run, Integer, Integer]),
    "sum_chunks": (None, [Run, Integer, Integer]),
    "finish_step": (None, [Run, Integer, Real, Real]),
    "evaluate_runs": (None, [Runs, Integer, Integer, Memory]),
    "loss_gradients": (None, [Runs, *[Integer] * 4, *[Memory] * 4]),
    "log_excess_of": (Real, [Real, Real, Integer]),
    # next-token models
    "sentences_room": (Integer, [Corpus]),
    "train_attention": (None, [Corpus, Training, Integer, Integer, Memory]),
    "train_output": (None, [Corpus, Training, Integer, Integer, Memory]),
    "train_both": (None, [Corpus, Training, Integer, Integer, Memory]),
    "sentence_gradients": (None, [Corpus, *[Integer] * 5, *[Memory] * 6]),
    "output_losses": (None, [Corpus, Integer, Integer, *[Memory] * 3]),
    # steps of optimisers, and functions of numbers
    "signed_powers": (None, [Memory, Memory, Integer, Real, Real]),
    "exponentials": (None, [Memory, Memory, Integer]),
    **{
        f"mirror_step_{kind}": (None, [*[Memory] * 3, Integer, *[Real] * 4])
        for kind in ("f32", "f64")
    },
    **{
        f"{step}_step_{kind}": (None, [Memory, Memory, Integer, Integer, Real, Real])
        for step in ("normalized", "sign")
        for kind in ("f32", "f64")
    },
}


def open_library(level: str, names: Iterable[str] = _SIGNATURES) -> ctypes.CDLL:
    """The library of a level, ``baseline`` or ``avx2``, with these of its functions.

    Raises:
        ImportError: it is missing, of another platform, or older than this file.
    """
    path = _FOLDER / f"attsvm.{level}{_SUFFIX}"
    try:
        library = ctypes.CDLL(str(path))
        # a function that is missing is one that an older library does not have
        for name in names:
            function = getattr(library, name)
            function.restype, function.argtypes = _SIGNATURES[name]
    except (OSError, AttributeError) as error:
        raise ImportError(
            f"the compiled core of attsvm cannot be used: {error}; install attsvm again with pip,"
            " or run `python hatch_build.py` in a checkout after its sources have changed"
        ) from error
    return library


def fastest_library() -> tuple[ctypes.CDLL, str]:
    """The library of this processor, or of the level that ``ATTSVM_PROCESSOR`` names, and the
    level.
    """
    requested = os.environ.get("ATTSVM_PROCESSOR")
    if requested not in (None, "", "baseline", "avx2"):
        raise ImportError(f"ATTSVM_PROCESSOR is {requested!r}; it must be baseline or avx2")
    # the baseline runs everywhere, and says whether this processor has AVX2 and FMA
    is_fast = (_FOLDER / f"attsvm.avx2{_SUFFIX}").exists() and bool(
        open_library("baseline", ["fast_processor"]).fast_processor()
    )
    if requested == "avx2" and not is_fast:
        raise ImportError("ATTSVM_PROCESSOR is avx2, which this processor does not have")
    if is_fast and requested != "baseline":
        return open_library("avx2"), "avx2"
    return open_library("baseline"), "baseline"
