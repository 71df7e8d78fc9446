"""Projections onto the margins, the half of both splittings that does not depend on the norm.

The weights that keep all margins and are closest to a centre solve a Frobenius programme with other
right-hand sides. Two epochs of block coordinate ascent from the multipliers of the last centre are
enough, except in a narrow cone of weights, where the best margin is thousands of times smaller than
the rows: there epochs crawl, and a factorisation does not.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from attsvm.data import FloatArray
from attsvm.solvers.ascent import BlockAscent
from attsvm.solvers.frobenius import active_set, pivot
from attsvm.solvers.programme.programme import Programme

EPOCHS = 2
_SWEEPS = 3
_ROUNDS = 12  # factorisations; from multipliers of a centre nearby, one
_NARROW = 300.0


def is_narrow(W: FloatArray) -> bool:
    """Whether the Frobenius solution of a programme whose rows are at most one says that exact
    projections pay from the beginning.
    """
    return bool(np.linalg.norm(W) > _NARROW)


def approach(ascent: BlockAscent, centre: FloatArray, *, exact: bool) -> tuple[FloatArray, bool]:
    """The projection of ``centre`` and whether it is exact; by :data:`EPOCHS` of ascent unless
    ``exact`` is asked for and found. The multipliers of ``ascent`` follow in place.
    """
    p, dual = ascent.programme, ascent.dual
    found = projected(p, centre, dual) if exact else None
    if found is not None:
        W, dual[:] = found
        return W, True
    W = centre + p.adjoint(dual)
    for _ in range(EPOCHS):
        ascent.sweep(dual, W, _SWEEPS)
    return W, False


def projected(
    p: Programme, centre: FloatArray, dual: FloatArray
) -> tuple[FloatArray, FloatArray] | None:
    r""":math:`\arg\min\{\|W-C\|_F:\langle A_c,W\rangle\ge b_c\}` and its multipliers; None where
    rounding leaves the active rows open.

    Args:
        p: a hard programme.
        centre: ``(d_x, d_z)``.
        dual: ``(m,)`` multipliers from which the search for active rows starts.
    """
    shifted = replace(p, b=p.b - p.values(centre))
    found = pivot(shifted, dual, _ROUNDS, math.inf)
    if not found.settled:  # dependent rows: active sets know an independent choice of them
        found = active_set(shifted, dual, math.inf)
    return (centre + found.W, found.dual) if found.settled else None
