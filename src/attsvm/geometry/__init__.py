"""Norms of weight matrices and the potentials of mirror descent: one geometry, read by optimisers
and by solvers.
"""

from __future__ import annotations

from attsvm.geometry.entrywise import Lp
from attsvm.geometry.frobenius import Frobenius
from attsvm.geometry.names import as_norm, norm_names, parse_norm
from attsvm.geometry.norm import Norm
from attsvm.geometry.potential import PowerPotential
from attsvm.geometry.row_norms import MaxRow, Rows
from attsvm.geometry.schatten import Nuclear, Schatten, Spectral

__all__ = [
    "Frobenius",
    "Lp",
    "MaxRow",
    "Norm",
    "Nuclear",
    "PowerPotential",
    "Rows",
    "Schatten",
    "Spectral",
    "as_norm",
    "norm_names",
    "parse_norm",
]


def __dir__() -> list[str]:
    return __all__
