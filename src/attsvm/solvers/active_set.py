r"""The dual method of active sets on working sets of rows, for the Frobenius programme.

Rows enter one by one, the one missed most first, and leave when their multiplier reaches a bound
(Goldfarb and Idnani, *A numerically stable dual method for solving strictly convex quadratic
programs*, 1983). It always ends: in weights, or in multipliers whose rows add up to zero. The
compiled core (``native/active_set.hpp``) runs it on the Gram matrix of a working set; around it

1. the working set is the free rows, and the rows that are missed most; the multipliers of all
   others stay where they are;
2. the core solves the programme of these rows, or ends in a contradiction, which ends all;
3. the system of the partition that it found is refined on the rows themselves;
4. the signs of all rows are checked: none wrong is the solution, else the rows that are missed most
   join the working set.
"""

from __future__ import annotations

import ctypes
import math
import time
from typing import Any, NamedTuple

import numpy as np

from attsvm import native
from attsvm.datasets.attention_data import BoolArray, FloatArray, IntArray
from attsvm.native import address, library
from attsvm.native.lapack import lapack_routine
from attsvm.solvers.deadline import cholesky_work, steps_per_look, time_for
from attsvm.solvers.pivoting import (
    PIVOTING,
    Partition,
    SystemSolution,
    pivot,
    solve_system,
    without_negative,
    wrong_signs,
)
from attsvm.solvers.programme import DualPoint, Programme

_EPS = float(np.finfo(np.float64).eps)
_MISSED = 1e-14  # slopes that are zero in units of rows and right-hand sides at most one
_DEPENDENT = 1e-13  # square of a pivot, of its row's square, below which the row depends on others


class ActiveSetOptions(NamedTuple):
    """Limits of the method. They decide how long it takes and where it gives up.

    Attributes:
        rounds: working sets, at most; untuned.
        joining: rows that join in one round, at most.
        largest: rows of a working set, at most; their Gram matrix of 6000 rows takes 288 MB.
        slice: steps between two looks at the clock, at most.
    """

    rounds: int = 60
    joining: int = 400
    largest: int = PIVOTING.largest_system
    slice: int = 500


ACTIVE_SETS = ActiveSetOptions()


def pivot_or_active_set(p: Programme, dual: FloatArray, deadline: float) -> DualPoint:
    """The solution by pivoting from these multipliers, and where that does not settle, by active
    sets.
    """
    point = pivot(p, dual, deadline)
    return point if point.settled else active_set(p, point.dual, deadline)


def active_set(
    p: Programme, dual: FloatArray, deadline: float, options: ActiveSetOptions = ACTIVE_SETS
) -> DualPoint:
    """The solution or a contradiction by the method of this module. Of two opposite rows the first
    stands for both, with a multiplier of any sign.

    Args:
        p: the programme.
        dual: ``(m,)`` multipliers to begin with.
        deadline: of :func:`time.monotonic`.
        options: limits.

    Returns:
        Multipliers and weights, ``settled`` when no sign is wrong; of a ``contradiction``
        multipliers whose rows add up to zero.
    """
    dual = np.clip(p.cancelled(dual), 0.0, p.cap)
    usable, signed = p.diagonal > 0.0, np.zeros(p.m, dtype=np.bool_)
    if p.opposite is not None:
        signed = np.arange(p.m) < p.opposite
        usable &= (p.opposite < 0) | signed
        dual = np.where(signed, dual - dual[p.opposite], np.where(usable, dual, 0.0))
    rows = np.flatnonzero((dual != 0.0) & (dual < p.cap) & usable)
    if len(rows) > p.dof:  # not all of them can be independent
        contribution = np.abs(dual[rows]) * np.sqrt(p.diagonal[rows])
        order = np.argpartition(-contribution, p.dof)
        dual[rows[order[p.dof :]]] = 0.0
        rows = np.sort(rows[order[: p.dof]])
    best: DualPoint | None = None
    for _ in range(options.rounds):
        # 1. Without free rows the working set is the row that is missed most.
        if len(rows) == 0:
            slope = p.values(p.adjoint(dual)) - p.b
            slope = np.where(signed, -np.abs(slope), slope)
            rows = np.array([int(np.argmin(np.where(usable, slope, np.inf)))])
        if len(rows) > options.largest:
            break
        if not time_for(cholesky_work(len(rows), sum(p.shape)), deadline):
            break
        fixed = dual.copy()
        fixed[rows] = 0.0
        rhs = p.b[rows]
        if fixed.any():
            rhs = rhs - p.values(p.adjoint(fixed))[rows]
        # 2. The programme of the working set, around the multipliers that stay.
        outcome, multipliers = _solve_rows(
            p, rows, rhs, dual[rows], signed[rows], deadline, options.slice
        )
        dual = fixed
        dual[rows] = multipliers
        if outcome != native.SOLVED:
            is_contradiction = outcome == native.CONTRADICTION
            return DualPoint(without_negative(p, dual), p.adjoint(dual), False, is_contradiction)
        free = ((dual > 0.0) | (signed & (dual != 0.0))) & (dual < p.cap)
        partition = Partition(free, dual >= p.cap)
        # 3. Multipliers refined on the rows; where their system is singular, those of the core.
        solution = solve_system(p, partition)
        if solution is None:
            W = p.adjoint(dual)
            noise = 8.0 * _EPS * max(1.0, float(np.linalg.norm(W)))
            solution = SystemSolution(dual, p.values(W) - p.b, noise, math.inf, W)
        # 4. The signs of all rows, not of the working set alone.
        below, above, missed, exceeded = wrong_signs(p, partition, solution, usable)
        below &= ~signed
        outside = missed | exceeded
        outside |= signed & usable & ~free & (solution.slope > solution.noise)
        if not (below | above | outside).any():
            settled = solution.residual <= solution.noise
            return DualPoint(without_negative(p, solution.dual), solution.W, settled)
        outside[rows] = False
        entering = np.flatnonzero(outside)
        W = solution.W if np.array_equal(solution.dual, dual) else p.adjoint(dual)
        best = DualPoint(without_negative(p, dual.copy()), W, False)
        if len(entering) == 0:  # what is wrong is rounding in the Gram matrix
            clipped = np.where(signed, solution.dual, np.clip(solution.dual, 0.0, p.cap))
            unchanged = np.array_equal(clipped, solution.dual)
            W = solution.W if unchanged else p.adjoint(clipped)
            return DualPoint(without_negative(p, clipped), W, unchanged)
        # The rows that are missed most join the free ones.
        if len(entering) > options.joining:
            slopes = np.abs(solution.slope[entering])
            entering = entering[np.argpartition(-slopes, options.joining)[: options.joining]]
        rows = np.union1d(np.flatnonzero(free), entering)
    return DualPoint(without_negative(p, dual), p.adjoint(dual), False) if best is None else best


def _solve_rows(
    p: Programme,
    rows: IntArray,
    rhs: FloatArray,
    start: FloatArray,
    signed: BoolArray,
    deadline: float,
    most_per_look: int,
) -> tuple[int, FloatArray]:
    """How the compiled method ends on these rows, and their multipliers, some of any sign."""
    count = len(rows)
    G, lam, b = p.gram(rows).T, start.copy(), np.ascontiguousarray(rhs)
    cap, signs, slope = p.cap[rows], signed.astype(np.uint8), np.empty(count)
    state = native.ActiveSet(count, p.dof)
    gram, sides_at, multipliers, slopes = (
        address(x, np.float64, *x.shape) for x in (G, b, lam, slope)
    )
    shared = address(cap, np.float64, count), address(signs, np.uint8, count), state
    # LAPACK factors many free rows faster than the core appends them one by one.
    if not _start_from_cholesky(state, G, lam, cap, signed):
        library.active_set_begin(gram, *shared, multipliers)
    steps = ctypes.c_int64()
    outcome = native.STOPPED
    per_look = steps_per_look(count, deadline, most_per_look)
    for _ in range(1 + (20 * count + 200) // per_look):
        outcome = library.active_set(
            gram, sides_at, *shared, _MISSED, per_look, multipliers, slopes, steps
        )
        if outcome != native.STOPPED or time.monotonic() > deadline:
            break
    return outcome, lam


def _start_from_cholesky(
    state: Any, G: FloatArray, lam: FloatArray, cap: FloatArray, signed: BoolArray
) -> bool:
    """Write the free rows and their Cholesky factor into ``state``; whether none of them depends on
    others.
    """
    factor, rows, side = (state.arrays[name] for name in ("factor", "rows", "side"))
    inside = ((lam > 0.0) | (signed & (lam != 0.0))) & (lam < cap)
    free = np.flatnonzero(inside & (np.diag(G) > 0.0))
    count = len(free)
    if count == 0:
        return False
    block = G if count == len(G) else G[np.ix_(free, free)]
    L, failed = lapack_routine("dpotrf")(block.T, lower=0, clean=0)
    pivots = np.diag(L) ** 2
    if failed or (pivots <= _DEPENDENT * np.diag(block)).any():
        return False
    factor[:count, :count] = L.T
    factor[np.diag_indices(count)] = 1.0 / np.diag(L)  # the core keeps inverse pivots
    rows[:count] = free
    # 0 where a multiplier is zero, 1 where it is free, 2 at its upper bound
    side[:] = 2 * (lam >= cap)
    side[free] = 1
    state.count = count
    return True
