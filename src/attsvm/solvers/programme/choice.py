"""Which solver takes which norm, and up to which sizes compiled code is quicker."""

from __future__ import annotations

import math

from attsvm.geometry import Frobenius, Lp, Norm

SMALL = 1 << 17  # entries of the written-out programme that non-negative least squares takes
# rows up to which compiled code is quicker than the cascade on the random instances of the papers
FEW = 256


def module_of(norm: Norm, soft: bool) -> str:
    """The module whose ``solve`` takes programmes of this norm, of soft or of hard margins."""
    if type(norm) is Frobenius:
        return "attsvm.solvers.frobenius"
    if isinstance(norm, Lp) and norm.p in (1.0, math.inf) and not soft:
        return "attsvm.solvers.polyhedral"
    return "attsvm.solvers.splitting"


def pointed(norm: Norm) -> bool:
    """Whether small programmes of the norm are solved by interior points."""
    return isinstance(norm, Lp) and norm.p in (1.0, math.inf)
