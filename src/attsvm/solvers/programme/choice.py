"""Which solver takes which norm, and up to which sizes compiled code is quicker."""

from __future__ import annotations

import functools
import math

from attsvm.geometry import Frobenius, Lp, Norm, Schatten

SMALL = 1 << 17  # entries of the written-out programme that non-negative least squares takes
# rows up to which compiled code is quicker than the cascade on the random instances of the papers
FEW = 256


@functools.cache
def module_of(kind: type[Norm]) -> str:
    """The module whose ``solve`` is the default for norms of this class."""
    if issubclass(kind, Lp):
        return "attsvm.solvers.norms.entrywise"
    if issubclass(kind, Schatten):
        return "attsvm.solvers.norms.schatten"
    return "attsvm.solvers.frobenius" if kind is Frobenius else "attsvm.solvers.norms.general"


def pointed(norm: Norm) -> bool:
    """Whether small programmes of the norm are solved by interior points."""
    return isinstance(norm, Lp | Schatten) and norm.p in (1.0, math.inf)
