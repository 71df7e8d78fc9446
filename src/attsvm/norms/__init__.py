"""Norms of weight matrices and the potentials of mirror descent: one geometry, read by optimisers
and by solvers.
"""

from __future__ import annotations

from attsvm.norms.entrywise import Lp
from attsvm.norms.frobenius import Frobenius
from attsvm.norms.names import as_norm, norm_names, parse_norm
from attsvm.norms.norm import Norm
from attsvm.norms.potential import PowerPotential
from attsvm.norms.row_norms import MaxRow, Rows
from attsvm.norms.schatten import Nuclear, Schatten, Spectral

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
