r"""Block principal pivoting on the dual of the Frobenius programme.

With the multipliers split into free rows :math:`F`, rows at zero and rows at their bound,
optimality is one linear system
:math:`G_{FF}\lambda_F = b_F - G_{FU}C_U` plus signs. Each round solves it by Cholesky with
iterative refinement on the original rows and moves every row with a wrong sign to its other side;
when full exchanges stop helping, one row moves at a time (Júdice and Pires, *A block principal
pivoting algorithm for large-scale strictly monotone linear complementarity problems*, 1994).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from attsvm.data import BoolArray, FloatArray, IntArray
from attsvm.solvers.programme.programme import Programme, explicit_rows
from attsvm.solvers.programme.threads import all_threads

LARGEST_SYSTEM = 6000  # free rows: a Cholesky factor of 288 MB
_PATIENCE = 3  # full exchanges without progress before single ones
_REFINEMENTS = 6
# entries of the written-out free rows up to which a poor Gram matrix is replaced by their QR
# factorisation
_SMALL = 1 << 18
_RIDGE = 1e-14  # relative to the diagonal; refinement takes its effect away again
_HOPELESS = 1e100  # a step of this size comes from a singular system
_EPS = float(np.finfo(np.float64).eps)


@dataclass(frozen=True)
class PivotResult:
    """``settled`` is True when every sign is right; otherwise ``dual`` is the last point, clipped
    into the box.

    ``W`` is ``adjoint(dual)`` refined on its own, so that cancellation among large multipliers does
    not blur its margins.
    """

    dual: FloatArray
    W: FloatArray
    settled: bool
    rounds: int


def pivot(programme: Programme, dual: FloatArray, rounds: int, deadline: float) -> PivotResult:
    """Exchange rows from the split that ``dual`` suggests until all signs are right or ``rounds``
    systems are solved.
    """
    p = programme
    dual = p.cancelled(dual)
    upper = (dual >= p.cap) if not p.hard else np.zeros(p.m, dtype=np.bool_)
    free = (dual > 0.0) & ~upper
    usable = p.diagonal > 0.0
    signed = np.zeros(p.m, dtype=np.bool_)
    if p.opposite is not None:
        # Of two opposite rows the one with the larger multiplier stands for both: always free, of
        # any sign.
        other = dual[p.opposite]
        signed = (
            (p.opposite >= 0)
            & usable
            & ((dual > other) | ((dual == other) & (np.arange(p.m) < p.opposite)))
        )
        usable &= (p.opposite < 0) | signed
        free = (free & usable) | signed
    fewest, patience = p.m + 1, _PATIENCE
    current, W = dual, p.adjoint(dual)
    for count in range(1, rounds + 1):
        if free.sum() > min(LARGEST_SYSTEM, p.dof):
            return PivotResult(current, W, False, count - 1)
        solved = _solve_free(p, free, upper)
        if solved is None:
            return PivotResult(current, W, False, count)
        trial, slope, noise, refined = solved
        current = np.where(signed, trial, np.clip(trial, 0.0, p.cap))
        W = refined if np.array_equal(current, trial) else p.adjoint(current)
        current = _unsigned(p, current)
        low, high = free & (trial < 0.0) & ~signed, free & (trial > p.cap)
        enter_low, enter_high = ~free & ~upper & usable & (slope < -noise), upper & (slope > noise)
        wrong = np.flatnonzero(low | high | enter_low | enter_high)
        if len(wrong) == 0:
            return PivotResult(current, W, True, count)
        if time.monotonic() > deadline:
            break
        if len(wrong) < fewest:
            fewest, patience = len(wrong), _PATIENCE
        elif patience > 0:
            patience -= 1
        else:
            wrong = wrong[-1:]
        moving = np.zeros(p.m, dtype=np.bool_)
        moving[wrong] = True
        free, upper = (
            (free & ~moving) | ((enter_low | enter_high) & moving),
            (upper & ~moving) | (high & moving),
        )
    return PivotResult(current, W, False, count)


def _unsigned(p: Programme, dual: FloatArray) -> FloatArray:
    """Negative multipliers moved to the opposite rows."""
    negative = np.flatnonzero(dual < 0.0)
    if p.opposite is not None and len(negative):
        dual[p.opposite[negative]] = -dual[negative]
        dual[negative] = 0.0
    return dual


def _solve_free(
    p: Programme, free: BoolArray, upper: BoolArray
) -> tuple[FloatArray, FloatArray, float, FloatArray] | None:
    """Multipliers whose free rows are tight, their slopes ``values - b``, the rounding level of the
    slopes, and the weights.
    """
    from scipy.linalg.lapack import dpotrf, dpotrs

    rows: IntArray = np.flatnonzero(free)
    dual = np.where(upper, p.cap, 0.0)
    W = p.adjoint(dual)
    if len(rows) == 0:
        return dual, p.values(W) - p.b, 0.0, W
    G = p.gram(rows)
    G[np.diag_indices(len(rows))] *= 1.0 + _RIDGE * len(rows)
    with all_threads(len(G)):
        factor, failed = dpotrf(G, lower=1, overwrite_a=1, clean=0)
    found = None if failed else _refine(p, rows, dual, W, lambda r: dpotrs(factor, r, lower=1)[0])
    if (found is None or found[3] > found[2]) and len(rows) * p.dof <= _SMALL:
        # The Gram matrix squares the condition of the rows; a QR factorisation of the rows
        # themselves does not.
        from scipy.linalg import qr

        (R,) = qr(explicit_rows(p, rows).T, mode="r", check_finite=False)
        R = R[: len(rows)]
        if (np.diag(R) != 0.0).all():
            again = _refine(p, rows, dual, W, lambda r: dpotrs(R, r, lower=0)[0])
            found = again if found is None or (again is not None and again[3] < found[3]) else found
    return None if found is None else (found[0], found[1], found[2], found[4])


def _refine(
    p: Programme,
    rows: IntArray,
    dual: FloatArray,
    W: FloatArray,
    inverse: Callable[[FloatArray], FloatArray],
) -> tuple[FloatArray, FloatArray, float, float, FloatArray] | None:
    """Refinement with an approximate inverse Gram matrix.

    Returns:
        Multipliers, slopes, rounding level, largest slope of ``rows``, weights; ``None`` when the
        system is singular.
    """
    best = None
    slope = p.values(W) - p.b
    for _ in range(1 + _REFINEMENTS):
        step = inverse(slope[rows])
        if not np.abs(step).max() < _HOPELESS:
            break
        change = np.zeros(p.m)
        change[rows] = step
        dual, W = dual - change, W - p.adjoint(change)
        slope = p.values(W) - p.b
        noise = 8.0 * _EPS * max(1.0, float(np.linalg.norm(W)))
        missed = float(np.abs(slope[rows]).max())
        if best is not None and missed > best[3] / 2:
            break
        best = (dual, slope, noise, missed, W)
        if missed <= noise / 4:
            break
    return best
