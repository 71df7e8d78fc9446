"""Which solver takes which norm, and up to which sizes compiled code is quicker."""

from __future__ import annotations

import functools
import math

from attsvm.geometry import Frobenius, Lp, Norm, Schatten

SMALL = 1 << 17  # entries of the written-out programme that non-negative least squares takes
# rows up to which compiled code is quicker than the cascade on the random instances of the papers
FEW = 256
_LEAST = 1.2  # exponent above one whose duality map interior points follow


@functools.cache
def module_of(kind: type[Norm]) -> str:
    """The module whose ``solve`` is the default for norms of this class."""
    if kind is Frobenius:
        return "attsvm.solvers.norms.frobenius"
    entries = issubclass(kind, Lp)
    return "attsvm.solvers.norms.entrywise" if entries else "attsvm.solvers.splitting"


def pointed(norm: Norm) -> bool:
    """Whether small programmes of the norm are solved by interior points."""
    if isinstance(norm, Lp):
        return norm.p in (1.0, math.inf) or _LEAST <= norm.p < 2.0
    return isinstance(norm, Schatten) and norm.p in (1.0, math.inf)
