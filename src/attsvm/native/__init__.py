"""The compiled core: the library that this processor takes, and mirrors of its structs.

The library is compiled when the package is built, by ``hatch_build.py``, and bound by ctypes, so
that one wheel serves every Python.

* :mod:`attsvm.native.memory`: addresses of arrays.
* :mod:`attsvm.native.lapack`: SciPy's BLAS and LAPACK.
* :mod:`attsvm.native.structs`: the structs of ``attsvm.h``, each with one checked constructor.
* :mod:`attsvm.native.loading`: the library, and what its functions take.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from attsvm.native.loading import fastest_library, open_library
from attsvm.native.memory import address
from attsvm.native.structs import (
    STRUCTS,
    ActiveSet,
    Batch,
    Corpus,
    DescentRun,
    GaugeFunction,
    Interior,
    ParameterRule,
    ProgrammeRows,
    SentenceDescent,
    SequenceArrays,
    SplittingState,
    blas,
    check_offsets,
    pointers,
)

__all__ = [
    "CONTRADICTION",
    "LEVEL",
    "SOLVED",
    "STOPPED",
    "STRUCTS",
    "ActiveSet",
    "Batch",
    "Corpus",
    "DescentRun",
    "GaugeFunction",
    "Interior",
    "ParameterRule",
    "ProgrammeRows",
    "SentenceDescent",
    "SequenceArrays",
    "SplittingState",
    "address",
    "blas",
    "check_offsets",
    "library",
    "open_library",
    "pointers",
    "products_by_row",
]

# How the method of active sets and the splitting end.
SOLVED, CONTRADICTION, STOPPED = 0, 1, 2

library, LEVEL = fastest_library()


def products_by_row(rows: NDArray[np.float64], basis: NDArray[np.float64]) -> NDArray[np.float64]:
    """``rows @ basis.T``, ``(count, k)``, row by row, so that equal rows have equal bits."""
    (count, d), k = rows.shape, len(basis)
    out = np.empty((count, k))
    # the names hold the copies while the library reads them
    rows, basis = np.ascontiguousarray(rows), np.ascontiguousarray(basis)
    library.products(
        *(address(rows, np.float64, count, d), count, d),
        *(address(basis, np.float64, k, d), k),
        address(out, np.float64, count, k),
    )
    return out
