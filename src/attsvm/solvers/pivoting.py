r"""Block principal pivoting: the Frobenius programme as one linear system and signs.

With the multipliers split into free rows :math:`F`, rows at zero and rows at their bound
:math:`U`, optimality of :math:`\max_{0\le\lambda\le C}b^\top\lambda-\frac12\|A^\top\lambda\|_F^2`
is the system

.. math:: G_{FF}\lambda_F = b_F - G_{FU}C_U, \qquad G = AA^\top,

and signs: free multipliers in their box, margins at least :math:`b` on rows at zero and at most
:math:`b` on rows at their bound. Each round

1. solves the system by Cholesky, with iterative refinement on the rows themselves;
2. collects the rows whose sign is wrong, and ends when there are none;
3. moves all of them between free and bound; one alone, the last, when full exchanges stop helping
   (Júdice and Pires, *A block principal pivoting algorithm for large-scale strictly monotone linear
   complementarity problems*, 1994).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from attsvm.datasets.attention_data import BoolArray, FloatArray, IntArray
from attsvm.native.lapack import lapack_routine
from attsvm.solvers.deadline import cholesky_work, time_for
from attsvm.solvers.programme import DualPoint, Programme, explicit_rows
from attsvm.solvers.threads import all_threads

_EPS = float(np.finfo(np.float64).eps)
_RIDGE = 1e-14  # relative to the diagonal; refinement takes its effect away again
_SINGULAR_STEP = 1e100  # a step of this size comes from a singular system


class PivotOptions(NamedTuple):
    """Limits of pivoting. They decide how long it takes and where it gives up, never what is
    certified; all were chosen on random programmes of 50 to 10,000 rows.

    Attributes:
        systems: linear systems of one run, at most.
        patience: full exchanges in a row that do not lower the number of wrong signs before single
            ones.
        refinements: steps of iterative refinement, at most.
        largest_system: free rows, at most; a Cholesky factor of 6000 rows takes 288 MB.
        written: entries of the written-out free rows up to which a poor Gram matrix is replaced by
            their QR factorisation.
    """

    systems: int = 12
    patience: int = 3
    refinements: int = 6
    largest_system: int = 6000
    written: int = 1 << 18


PIVOTING = PivotOptions()


class Partition(NamedTuple):
    """``(m,)`` masks: rows whose multiplier is free, and rows where it is at its upper bound; the
    others are at zero.
    """

    free: BoolArray
    upper: BoolArray


class SystemSolution(NamedTuple):
    """Multipliers under which free rows are tight.

    Attributes:
        dual: ``(m,)`` multipliers.
        slope: ``(m,)`` margins less right-hand sides.
        noise: rounding level of the slopes.
        residual: largest slope of a free row, in size.
        W: ``(d_x, d_z)`` weights.
    """

    dual: FloatArray
    slope: FloatArray
    noise: float
    residual: float
    W: FloatArray


class WrongSigns(NamedTuple):
    """``(m,)`` masks of the rows whose multiplier or margin has the wrong sign.

    Attributes:
        below: free rows with a negative multiplier.
        above: free rows with a multiplier above its bound.
        missed: rows at zero whose margin is missed.
        exceeded: rows at their bound whose margin is exceeded.
    """

    below: BoolArray
    above: BoolArray
    missed: BoolArray
    exceeded: BoolArray


def wrong_signs(
    p: Programme, partition: Partition, solution: SystemSolution, usable: BoolArray
) -> WrongSigns:
    """The rows with a wrong sign by more than rounding; only ``usable`` rows leave zero."""
    free, upper = partition
    return WrongSigns(
        free & (solution.dual < 0.0),
        free & (solution.dual > p.cap),
        ~free & ~upper & usable & (solution.slope < -solution.noise),
        upper & (solution.slope > solution.noise),
    )


def pivot(
    p: Programme, dual: FloatArray, deadline: float, options: PivotOptions = PIVOTING
) -> DualPoint:
    """Exchange rows, from the partition that ``dual`` suggests, until all signs are right; the
    steps are those of this module.

    Args:
        p: the programme.
        dual: ``(m,)`` multipliers to begin with.
        deadline: of :func:`time.monotonic`.
        options: limits.

    Returns:
        The last multipliers, clipped into their box, and their weights; ``settled`` when no sign is
        wrong.
    """
    dual = p.cancelled(dual)
    # Begin with the partition that the multipliers suggest.
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
    fewest, patience = p.m + 1, options.patience
    current, W = dual, p.adjoint(dual)
    for _ in range(options.systems):
        size = int(free.sum())
        if size > min(options.largest_system, p.dof):
            break
        if not time_for(cholesky_work(size, sum(p.shape)), deadline):
            break
        # 1. The multipliers of this partition, clipped into their box where they are no solution.
        solution = solve_system(p, Partition(free, upper), options)
        if solution is None:
            break
        current = np.where(signed, solution.dual, np.clip(solution.dual, 0.0, p.cap))
        W = solution.W if np.array_equal(current, solution.dual) else p.adjoint(current)
        current = without_negative(p, current)
        # 2. The rows with a wrong sign.
        below, above, missed, exceeded = wrong_signs(p, Partition(free, upper), solution, usable)
        below &= ~signed
        wrong = np.flatnonzero(below | above | missed | exceeded)
        if len(wrong) == 0:
            return DualPoint(current, W, True)
        # 3. All of them move; after some rounds without progress only the last one, which cannot
        # cycle.
        if len(wrong) < fewest:
            fewest, patience = len(wrong), options.patience
        elif patience > 0:
            patience -= 1
        else:
            wrong = wrong[-1:]
        moving = np.zeros(p.m, dtype=np.bool_)
        moving[wrong] = True
        free, upper = (
            (free & ~moving) | ((missed | exceeded) & moving),
            (upper & ~moving) | (above & moving),
        )
    return DualPoint(current, W, False)


def without_negative(p: Programme, dual: FloatArray) -> FloatArray:
    """Negative multipliers moved to the opposite rows, in place."""
    negative = np.flatnonzero(dual < 0.0)
    if p.opposite is not None and len(negative):
        dual[p.opposite[negative]] = -dual[negative]
        dual[negative] = 0.0
    return dual


def solve_system(
    p: Programme, partition: Partition, options: PivotOptions = PIVOTING
) -> SystemSolution | None:
    """The multipliers that make free rows tight, with the others at zero or their bound; ``None``
    where the system is singular.
    """
    rows: IntArray = np.flatnonzero(partition.free)
    dual = np.where(partition.upper, p.cap, 0.0)
    W = p.adjoint(dual)
    if len(rows) == 0:
        return SystemSolution(dual, p.values(W) - p.b, 0.0, 0.0, W)
    factor = _cholesky(p, rows)
    solution, potrs = None, lapack_routine("dpotrs")
    if factor is not None:
        solution = _refined(p, rows, dual, W, lambda r: potrs(factor, r, lower=1)[0], options)
    poor = solution is None or solution.residual > solution.noise
    if poor and len(rows) <= p.dof and len(rows) * p.dof <= options.written:
        # The Gram matrix squares the condition of the rows; a QR factorisation of the rows
        # themselves does not.
        from scipy.linalg import qr

        (R,) = qr(explicit_rows(p, rows).T, mode="r", check_finite=False)
        R = R[: len(rows)]
        if (np.diag(R) != 0.0).all():
            again = _refined(p, rows, dual, W, lambda r: potrs(R, r, lower=0)[0], options)
            if solution is None or (again is not None and again.residual < solution.residual):
                solution = again
    return solution


def _cholesky(p: Programme, rows: IntArray) -> FloatArray | None:
    """``(k, k)``: Cholesky factor of the Gram matrix of rows; ``None`` where it is singular."""
    G = p.gram(rows)
    G[np.diag_indices(len(rows))] *= 1.0 + _RIDGE * len(rows)
    with all_threads(len(G)):
        factor, failed = lapack_routine("dpotrf")(G, lower=1, overwrite_a=1, clean=0)
    return None if failed else factor


def _refined(
    p: Programme,
    rows: IntArray,
    dual: FloatArray,
    W: FloatArray,
    inverse: Callable[[FloatArray], FloatArray],
    options: PivotOptions,
) -> SystemSolution | None:
    """Multipliers refined in the weights with an approximate inverse Gram matrix of ``rows``, until
    the residual is rounding or no longer halved; ``None`` when the system is singular.
    """
    best = None
    slope = p.values(W) - p.b
    for _ in range(1 + options.refinements):
        step = inverse(slope[rows])
        if not np.abs(step).max() < _SINGULAR_STEP:
            break
        # Newton on the slopes of the free rows; the weights follow by the same change.
        change = np.zeros(p.m)
        change[rows] = step
        dual, W = dual - change, W - p.adjoint(change)
        slope = p.values(W) - p.b
        noise = 8.0 * _EPS * max(1.0, float(np.linalg.norm(W)))
        residual = float(np.abs(slope[rows]).max())
        # An inverse that no longer halves the residual has no more digits to give.
        if best is not None and residual > best.residual / 2:
            break
        best = SystemSolution(dual, slope, noise, residual, W)
        if residual <= noise / 4:
            break
    return best
