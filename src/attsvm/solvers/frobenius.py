r"""The Frobenius max-margin programme, hard and soft.

.. math:: \min_W \|W\|_F \ \text{ s.t. }\ \langle A_c,W\rangle\ge b_c
   \qquad\text{or}\qquad
   \min_W \tfrac12\|W\|_F^2 + C\sum_c(b_c-\langle A_c,W\rangle)_+ .

Programme Att-SVM of Tarzanagh et al., *Transformers as Support Vector Machines* (2023). Both have
the dual
:math:`\max_{0\le\lambda\le C} b^\top\lambda-\frac12\|\sum_c\lambda_cA_c\|_F^2` with
:math:`W=\sum_c\lambda_cA_c`. There are three stages:

* block coordinate ascent (:mod:`attsvm.solvers.ascent`) finds roughly which rows are active;
* block principal pivoting makes the answer exact. With the multipliers split into free rows
  :math:`F`, rows at zero and rows at their bound, optimality is one linear system
  :math:`G_{FF}\lambda_F = b_F - G_{FU}C_U` plus signs. Each round solves it by Cholesky with
  iterative refinement on the rows themselves and moves every row with a wrong sign to its other
  side; when full exchanges stop helping, one row moves at a time (Júdice and Pires, *A block
  principal pivoting algorithm for large-scale strictly monotone linear complementarity problems*,
  1994);
* where that does not settle, the dual method of active sets (Goldfarb and Idnani, *A numerically
  stable dual method for solving strictly convex quadratic programs*, 1983) on the Gram matrix of a
  working set of rows, which always ends: in weights, or in multipliers whose rows add up to zero.

Programmes of few rows take all of this in one compiled call, alone or many at a time
(:func:`settle`); what float64 leaves open of them is settled in integers
(:mod:`attsvm.solvers.integers`). The best certified answer met on the way is what is returned.
"""

from __future__ import annotations

import ctypes
import itertools
import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from attsvm import native
from attsvm.base.cores import shared_out, threads
from attsvm.datasets.attention_data import BoolArray, FloatArray, IntArray
from attsvm.margins import Margins
from attsvm.native import address, library
from attsvm.norms import Frobenius, Norm
from attsvm.solvers import columns, integers
from attsvm.solvers.ascent import BlockAscent
from attsvm.solvers.hinges import smoothed
from attsvm.solvers.outcomes import (
    HOPELESS,
    Request,
    infeasible_solution,
    solved,
    zero_solution,
)
from attsvm.solvers.programme import (
    Point,
    Programme,
    empty_rows,
    equilibrate,
    explicit_rows,
)
from attsvm.solvers.proofs import NO_MATTER, Certificate, certify_hard, certify_soft
from attsvm.solvers.solution import MarginSolution
from attsvm.solvers.threads import all_threads

UNSETTLED, WEIGHTS, CONTRADICTION = 0, 1, 2  # what is found of a programme of few rows
FEW = 320
"""Rows up to which one compiled call is quicker than stages of array operations."""
LARGEST_SYSTEM = 6000
"""Free rows: a Cholesky factor of 288 MB."""
JOINING = 400
"""Rows that join a working set in one round, at most."""

_WORTH_SHARING = 4000  # rows of a batch from which on threads save more than their start costs
_EPS = float(np.finfo(np.float64).eps)
# the accuracy that is aimed at whatever the tolerance, because it costs little more
_POLISHED = 1e-13
_ROUGH = 1e-2  # residual at which the active rows are worth a first factorisation
_FIRST_EPOCHS, _MOST_EPOCHS = 40, 5000
_LOOSER = 1.0, 1e2, 1e4  # errors of weights that are rounded together, in units of the tolerance
_ROUGH_EPOCHS, _MOST_ROUGH_EPOCHS = 10, 200
_CERTIFIED_EVERY = 200  # epochs between certificates, each of which costs about one more
# time of a multiply-add in an epoch (memory bound) over one in a factorisation
_STREAMING_COST = 4.0
_PIVOTS = 12  # systems of one run of pivoting
_PATIENCE = 3  # full exchanges without progress before single ones
_REFINEMENTS = 6
# entries of the written-out free rows up to which a poor Gram matrix is replaced by their QR
# factorisation
_WRITTEN = 1 << 18
_RIDGE = 1e-14  # relative to the diagonal; refinement takes its effect away again
_HOPELESS = 1e100  # a step of this size comes from a singular system
_ROUNDS = 60  # working sets of the method of active sets
_SLICE = 500  # steps between two looks at the clock
_MISSED = 1e-14  # slopes that are zero in units of rows and right-hand sides at most one
_DEPENDENT = 1e-13  # square of a pivot, of its row's square, below which the row depends on others
_TINY_UNIT, _RAISED = -16, 1e-13  # exponent of a margin's unit, and what is asked for in addition
_IDLE = 1e-12  # share of the largest multiplier of a contradiction that is rounding


def solve(margins: Margins, norm: Norm, request: Request) -> MarginSolution:
    """Solve the programme of this module; see :func:`attsvm.solvers.max_margin`."""
    if margins.m <= FEW and request.opposite is None:
        solution = _at_once(margins, request)
        if solution is not None:
            return solution
    if not np.count_nonzero(margins.rhs > 0.0):
        return zero_solution(margins, norm, request)
    if request.slack is None:
        impossible = empty_rows(margins) & (margins.rhs > 0)
        if impossible.any():
            dual = np.zeros(margins.m)
            dual[np.flatnonzero(impossible)[0]] = 1.0
            return infeasible_solution(margins, dual, request, "inspection", 0)
    with np.errstate(over="ignore"):  # what leaves float64 on the way is certified all the same
        return _Search(margins, norm, request).run()


def _at_once(margins: Margins, request: Request) -> MarginSolution | None:
    """The solution or the contradiction of a programme of few rows, ``None`` where compiled code
    does not settle it.
    """
    D, Z, offsets, b = margins.differences, margins.queries, margins.offsets, margins.rhs
    if margins.n > margins.m:  # of many sequences few have rows
        filled = np.flatnonzero(np.diff(offsets))
        Z, offsets = Z[filled], np.append(offsets[filled], margins.m)
    D, Z, b = np.ascontiguousarray(D), np.ascontiguousarray(Z), np.ascontiguousarray(b)
    offsets, parts = np.ascontiguousarray(offsets, np.int64), np.array([0, len(Z)])
    found, batch = _batch(D, Z, b, offsets, parts, request.slack, request.warm_start)
    _run(batch, 0, 1)
    if found.outcome[0] == UNSETTLED:
        return None
    size, gap, violation, rounding = found.figures[0].tolist()
    each = Found(found.W[0], found.dual, size, gap, violation, rounding, found.values)
    solution = each.solution(margins, request, int(found.systems[0]))
    return solution if solution.status in ("optimal", "infeasible") else None


def contradicted(
    margins: Margins, dual: FloatArray, request: Request, iterations: int
) -> MarginSolution:
    """The verdict on multipliers of active sets, whose rows but one are independent."""
    return infeasible_solution(margins, dual, request, "active set", iterations)


class Found(NamedTuple):
    """One programme's part of what :func:`settle` wrote."""

    W: FloatArray
    dual: FloatArray
    norm: float
    gap: float
    violation: float
    rounding: float
    values: FloatArray | None = None

    def solution(self, margins: Margins, request: Request, systems: int) -> MarginSolution:
        """The same with support, message and all the rest."""
        W, dual = self.W, self.dual
        if self.norm == np.inf:
            return contradicted(margins, dual, request, systems)
        if request.slack is not None:
            dual = np.minimum(dual, request.slack)
            proof = certify_soft(margins, Frobenius(), W, dual, request.slack)
        elif self.rounding > NO_MATTER:
            proof = certify_hard(margins, Frobenius(), W, dual)
        else:
            values = margins(W) if self.values is None else self.values
            figures = self.norm, self.gap, self.violation, self.rounding
            proof = Certificate(W, dual, values, *figures)
        return solved(margins, proof, request, "active set", systems)


class Settled(NamedTuple):
    """What compiled code finds of programmes that lie end to end.

    Attributes:
        W: ``(B, d_x, d_z)`` weights.
        dual: ``(M,)`` multipliers.
        figures: ``(B, 4)`` norm, gap, violation and rounding of hard margins.
        outcome: ``(B,)`` ``UNSETTLED``, ``WEIGHTS`` or ``CONTRADICTION``.
        systems: ``(B,)`` steps of active sets.
        values: ``(M,)`` margins of the weights.
    """

    W: FloatArray
    dual: FloatArray
    figures: FloatArray
    outcome: IntArray
    systems: IntArray
    values: FloatArray


def settle(
    differences: FloatArray,
    queries: FloatArray,
    offsets: IntArray,
    instances: IntArray,
    rhs: FloatArray,
    slack: float | None = None,
    start: FloatArray | None = None,
) -> Settled:
    """Solve programmes of few rows that lie end to end, on all cores when there is work for them.

    What is unsettled costs time, never correctness: weights come with figures computed from the
    given numbers, contradictions have a residual at rounding level and are proved before they are
    told.

    Args:
        differences: ``(M, d_x)`` finite differences of all programmes.
        queries: ``(N, d_z)`` queries.
        offsets: ``(N + 1,)`` where the rows of each sequence begin.
        instances: ``(B + 1,)`` where the sequences of each programme begin.
        rhs: ``(M,)`` right-hand sides, none negative.
        slack: the penalty C of soft margins.
        start: ``(M,)`` multipliers to begin with.
    """
    D, Z, b = (np.ascontiguousarray(each, np.float64) for each in (differences, queries, rhs))
    starts, parts = (np.ascontiguousarray(each, np.int64) for each in (offsets, instances))
    begins = starts[parts]
    if not (
        parts[0] == begins[0] == 0
        and (parts[-1], begins[-1], len(b)) == (len(Z), len(D), len(D))
        and not (np.diff(parts) < 0).any()
        and not (np.diff(starts) < 0).any()
    ):
        raise ValueError(
            "offsets and instances must rise to the numbers of rows and queries, and rhs have one"
            " per row"
        )
    found, batch = _batch(D, Z, b, starts, parts, slack, start)
    every = [(0, len(parts) - 1)] if len(D) < _WORTH_SHARING else shares(begins)
    shared_out(lambda part: _run(batch, *part), every)
    return found


def _batch(
    D: FloatArray,
    Z: FloatArray,
    b: FloatArray,
    starts: IntArray,
    parts: IntArray,
    slack: float | None,
    start: FloatArray | None,
) -> tuple[Settled, native.Batch]:
    """Programmes for compiled code, and what it will have found."""
    settled = unsettled(D, Z, parts)
    batch = native.Batch(
        *(D, Z, b, starts, parts, start),
        math.inf if slack is None else slack,
        W=settled.W,
        dual=settled.dual,
        values=settled.values,
        figures=settled.figures,
        outcome=settled.outcome,
        steps=settled.systems,
    )
    return settled, batch


def _run(batch: native.Batch, first: int, last: int) -> None:
    if not library.solve_programmes(batch, first, last):
        raise MemoryError("no memory is left for the programmes of a batch")


def unsettled(D: FloatArray, Z: FloatArray, instances: IntArray) -> Settled:
    """Arrays for what is found in these programmes."""
    rows, count = len(D), len(instances) - 1
    return Settled(
        W=np.zeros((count, D.shape[1], Z.shape[1])),
        dual=np.zeros(rows),
        figures=np.zeros((count, 4)),
        outcome=np.zeros(count, np.int64),
        systems=np.zeros(count, np.int64),
        values=np.zeros(rows),
    )


def shares(rows: IntArray) -> list[tuple[int, int]]:
    """First and one past last of consecutive programmes for each share of the work, given where
    their rows begin: eight shares for each thread, so that none waits long for another.
    """
    cuts = np.searchsorted(rows, np.linspace(0, rows[-1], 8 * threads() + 1)[1:-1])
    ends = np.unique([0, *cuts, len(rows) - 1]).tolist()
    return list(itertools.pairwise(ends))


class _Search:
    """One solve: the stages, the best certificate so far, and the clock."""

    def __init__(self, margins: Margins, norm: Norm, request: Request) -> None:
        self.margins, self.norm, self.request = margins, norm, request
        self.exact = equilibrate(margins, request.slack, request.opposite)
        self.programme = _raised(self.exact)
        self.deadline = (
            math.inf if request.max_seconds is None else time.monotonic() + request.max_seconds
        )
        self.best: Certificate | None = None
        self.solver = ""
        self.settled = False

    def run(self) -> MarginSolution:
        p = self.programme
        size = columns.uneven(self.exact, columns.OPTIONS.bits)
        if size is not None:
            solution = self._uneven(size)
            if solution is not None:
                return solution
        start = (
            np.zeros(p.m)
            if self.request.warm_start is None
            else p.scaled_dual(self.request.warm_start)
        )
        if not p.hard:  # margins of rows of zeros are missed
            start = np.where((p.diagonal == 0.0) & (p.b > 0.0), p.cap, start)
        ascent = BlockAscent(p, start)
        if not self._pivoted(ascent) and not self._late() and not self._smoothed(ascent.dual):
            found = self._active(ascent.dual)
            claim = self._claim(found, ascent.epochs)
            if claim is not None and claim.status == "infeasible":
                return claim
            if claim is not None and not self._late():
                # weights that nearly do not exist are made of the rows that nearly contradict
                self._pivot(p.scaled_dual(claim.dual))
            proved = self._in_integers(ascent.epochs)
            if proved is not None:
                return proved
            if claim is not None and (self.best is None or self.best.error > HOPELESS):
                return claim
            if claim is None and not self._done():
                self._ascended_long(ascent)
        assert self.best is not None
        return solved(self.margins, self.best, self.request, self.solver, ascent.epochs)

    def _uneven(self, size: IntArray) -> MarginSolution | None:
        """The solution where columns are of very different sizes, if that is found."""
        p = self.exact
        found = columns.least(p, size, self.deadline, nearest)
        if found is None:
            return None
        if found.contradiction:
            claim = self._claim(Point(found.multipliers.high, np.zeros(p.shape), False, True), 0)
            return claim if claim is not None and claim.status == "infeasible" else None
        for dual in columns.multipliers(p, found, self.deadline):
            self._consider(dual, "capped columns", found.W.reshape(p.shape))
            if self._good() or self._late():
                break
        if not self._good():
            return None
        assert self.best is not None
        return solved(self.margins, self.best, self.request, self.solver, 0)

    def _pivoted(self, ascent: BlockAscent) -> bool:
        """Ascent to a rough point, then pivoting or, where that is cheaper, more ascent."""
        p = self.programme
        ascent.run(_FIRST_EPOCHS, _ROUGH, self.deadline)
        if self.request.rough and self._ascended(ascent):
            return True
        for _ in range(2):
            free = self._free(ascent.dual)
            digits = max(0.0, math.log(max(ascent.residual, 1e-300) / (0.01 * _POLISHED)))
            wanted = digits / -math.log(min(max(ascent.rate, 1e-6), 0.999999))
            streaming = _STREAMING_COST * wanted * ascent.epoch_cost
            if min(free, p.dof) > LARGEST_SYSTEM or streaming < self._factorisation(ascent):
                ascent.run(
                    min(math.ceil(1.5 * wanted) + 5, _MOST_EPOCHS), 0.01 * _POLISHED, self.deadline
                )
                self._consider(ascent.dual, "block ascent")
                if self._done() or self._late():
                    return self._done()
            if free > p.dof or free > LARGEST_SYSTEM:
                break
            self._pivot(ascent.dual)
            if self._done() or self._late():
                return self._done()
            if p.hard and p.m <= FEW:
                break
            ascent.run(4 * _FIRST_EPOCHS, 0.03 * ascent.residual, self.deadline)
        self._consider(ascent.dual, "block ascent")
        return self._done()

    def _ascended(self, ascent: BlockAscent) -> bool:
        """Whether ascent comes as near as was asked for, until factorisations are cheaper; where
        there can be none, what it has reached is enough.
        """
        spent, p = 0.0, self.programme
        while True:
            self._consider(ascent.dual, "block ascent")
            if self._done() or self._late():
                return True
            large = min(self._free(ascent.dual), p.dof) > LARGEST_SYSTEM
            limit = 4.0 * self._factorisation(ascent)
            if large:
                limit = _STREAMING_COST * _MOST_ROUGH_EPOCHS * ascent.epoch_cost
            if spent > limit:
                if large:  # of many positive multipliers in the middle of the way few are large
                    most = 4 * LARGEST_SYSTEM // 5
                    some = np.where(ascent.dual > 0.0, ascent.dual, 0.0)
                    some[np.argpartition(-some, most)[most:]] = 0.0
                    self._pivot(some)
                return large
            ascent.run(_ROUGH_EPOCHS, 0.01 * _POLISHED, self.deadline)
            spent += _STREAMING_COST * _ROUGH_EPOCHS * ascent.epoch_cost

    def _ascended_long(self, ascent: BlockAscent) -> None:
        """Ascent with a certificate now and then, where nothing else is left."""
        for _ in range(_MOST_EPOCHS // _CERTIFIED_EVERY):
            before = ascent.residual
            ascent.run(_CERTIFIED_EVERY, 0.01 * _POLISHED, self.deadline)
            self._consider(ascent.dual, "block ascent")
            if self._done() or self._late() or not ascent.residual < 0.9 * before:
                return

    def _free(self, dual: FloatArray) -> int:
        """Number of multipliers strictly inside their box."""
        dual = self.programme.cancelled(dual)
        return int(((dual > 0.0) & (dual < self.programme.cap)).sum())

    def _factorisation(self, ascent: BlockAscent) -> float:
        """Multiply-adds of a Gram matrix of the active rows and its Cholesky factor, or of the
        equivalent in the weights' space.
        """
        p = self.programme
        size = min(self._free(ascent.dual), p.dof)
        return float(size**3 / 3.0 + size**2 * sum(p.D.shape[1:] + p.Z.shape[1:]) / 2.0)

    def _pivot(self, dual: FloatArray, solver: str = "block ascent + pivoting") -> None:
        found = pivot(self.programme, dual, _PIVOTS, self.deadline)
        self._consider(found.dual, solver, found.W)
        self.settled = found.settled

    def _smoothed(self, dual: FloatArray) -> bool:
        """Pivoting from where soft margins with smoothed hinges come to rest."""
        p = self.programme
        if p.hard or p.opposite is not None:
            return False
        for near in smoothed(p, dual, self.deadline):
            if self._free(near) <= p.dof:
                self._pivot(near, "smoothed hinges + pivoting")
                if self._done():
                    return True
        return self._late()

    def _active(self, dual: FloatArray) -> Point:
        """The method of active sets."""
        found = active_set(self.programme, dual, self.deadline)
        if not found.contradiction:
            self.settled = found.settled
            self._consider(found.dual, "active set", found.W)
        return found

    def _claim(self, found: Point, epochs: int) -> MarginSolution | None:
        """The verdict on multipliers that contradict each other."""
        p = self.programme
        if not found.contradiction:
            return None
        lam = p.cancelled(np.where(found.dual > _IDLE * found.dual.max(), found.dual, 0.0))
        if not lam.any():
            return None  # rows that cancel to nothing contradict nobody
        return contradicted(self.margins, p.lifted(lam), self.request, epochs)

    def _in_integers(self, epochs: int) -> MarginSolution | None:
        """What integers say where float64 does not: better weights, or the verdict on a
        contradiction.
        """
        if self._good() or self._late():
            return None
        p = self.exact  # of raised rows no contradiction says anything
        found = integers.settled(p, self.deadline)
        if found is None:
            return None
        if found.contradiction:
            dual = p.lifted(found.dual)
            return infeasible_solution(
                self.margins, dual, self.request, "integers", epochs, exact=True
            )
        self.settled = True
        self._consider(found.dual, "integers", found.W)
        if not p.hard or p.opposite is not None:
            return None
        for looser in _LOOSER:
            if self._good() or self._late():
                break
            share = looser * self.request.tol
            held = integers.held(p, found, share, self.deadline)
            if held is not None:
                self._consider(found.dual, "integers", held)
            if self.best is not None and self.best.error <= share:
                break
        return None

    def _consider(self, dual: FloatArray, solver: str, weights: FloatArray | None = None) -> None:
        """Keep ``dual`` and ``weights`` (its own when left out) if they are better certified than
        what is there.
        """
        p = self.programme
        if not np.isfinite(dual).all():
            return
        W, lam = p.restored(p.adjoint(dual) if weights is None else weights, dual)
        if self.request.slack is None:
            found = certify_hard(self.margins, self.norm, W, lam)
        else:
            found = certify_soft(
                self.margins, self.norm, W, np.minimum(lam, self.request.slack), self.request.slack
            )
        if self.best is None or found.error < self.best.error:
            self.best, self.solver = found, solver

    def _done(self) -> bool:
        """Weights at rounding level, or at the tolerance when all signs of the system are
        right.
        """
        if self.best is None:
            return False
        enough = self.settled or self.request.rough
        return self.best.error <= (self.request.tol if enough else min(self.request.tol, _POLISHED))

    def _good(self) -> bool:
        return self.best is not None and self.best.error <= self.request.tol

    def _late(self) -> bool:
        return time.monotonic() > self.deadline


def _raised(p: Programme) -> Programme:
    """The programme with a little more asked of rows so much larger than others that the rounding
    of weights hides their margins.
    """
    large = p.dual_exponent - 2 * p.weight_exponent < _TINY_UNIT
    if not p.hard or p.opposite is not None or not large.any():
        return p
    return replace(p, b=p.b + _RAISED * large)


class _System(NamedTuple):
    """Multipliers whose free rows are tight, their slopes ``values - b``, the rounding level of the
    slopes, the largest slope of free rows, and the weights.
    """

    dual: FloatArray
    slope: FloatArray
    noise: float
    missed: float
    W: FloatArray


class _Sides(NamedTuple):
    """Rows whose multiplier is free, and rows where it is at its bound; the others are at zero."""

    free: BoolArray
    upper: BoolArray


def _signs(p: Programme, sides: _Sides, at: _System, usable: BoolArray) -> tuple[BoolArray, ...]:
    """The rows on a wrong side: free ones below zero and above their bound, rows at zero and at
    their bound that should be free.
    """
    free, upper = sides
    return (
        free & (at.dual < 0.0),
        free & (at.dual > p.cap),
        ~free & ~upper & usable & (at.slope < -at.noise),
        upper & (at.slope > at.noise),
    )


def nearest(p: Programme, dual: FloatArray, deadline: float) -> Point:
    """Pivoting from these multipliers, and where that does not settle, active sets."""
    found = pivot(p, dual, _PIVOTS, deadline)
    return found if found.settled else active_set(p, found.dual, deadline)


def pivot(p: Programme, dual: FloatArray, rounds: int, deadline: float) -> Point:
    """Exchange rows from the split that ``dual`` suggests until all signs are right or ``rounds``
    systems are solved.
    """
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
    for _ in range(rounds):
        if free.sum() > min(LARGEST_SYSTEM, p.dof):
            break
        at = _system(p, free, upper)
        if at is None:
            break
        current = np.where(signed, at.dual, np.clip(at.dual, 0.0, p.cap))
        W = at.W if np.array_equal(current, at.dual) else p.adjoint(current)
        current = _unsigned(p, current)
        low, high, enter_low, enter_high = _signs(p, _Sides(free, upper), at, usable)
        low &= ~signed
        wrong = np.flatnonzero(low | high | enter_low | enter_high)
        if len(wrong) == 0:
            return Point(current, W, True)
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
    return Point(current, W, False)


def _unsigned(p: Programme, dual: FloatArray) -> FloatArray:
    """Negative multipliers moved to the opposite rows."""
    negative = np.flatnonzero(dual < 0.0)
    if p.opposite is not None and len(negative):
        dual[p.opposite[negative]] = -dual[negative]
        dual[negative] = 0.0
    return dual


def _factor(p: Programme, rows: IntArray) -> FloatArray | None:
    """Cholesky factor of the Gram matrix of rows; ``None`` where it is singular."""
    from scipy.linalg.lapack import dpotrf

    G = p.gram(rows)
    G[np.diag_indices(len(rows))] *= 1.0 + _RIDGE * len(rows)
    with all_threads(len(G)):
        factor, failed = dpotrf(G, lower=1, overwrite_a=1, clean=0)
    return None if failed else factor


def _system(p: Programme, free: BoolArray, upper: BoolArray) -> _System | None:
    """The system of a split into sides; ``None`` where it is singular."""
    from scipy.linalg.lapack import dpotrs

    rows: IntArray = np.flatnonzero(free)
    dual = np.where(upper, p.cap, 0.0)
    W = p.adjoint(dual)
    if len(rows) == 0:
        return _System(dual, p.values(W) - p.b, 0.0, 0.0, W)
    factor = _factor(p, rows)
    found = None
    if factor is not None:
        found = _refined(p, rows, dual, W, lambda r: dpotrs(factor, r, lower=1)[0])
    poor = found is None or found.missed > found.noise
    if poor and len(rows) <= p.dof and len(rows) * p.dof <= _WRITTEN:
        # The Gram matrix squares the condition of the rows; a QR factorisation of the rows
        # themselves does not.
        from scipy.linalg import qr

        (R,) = qr(explicit_rows(p, rows).T, mode="r", check_finite=False)
        R = R[: len(rows)]
        if (np.diag(R) != 0.0).all():
            again = _refined(p, rows, dual, W, lambda r: dpotrs(R, r, lower=0)[0])
            if found is None or (again is not None and again.missed < found.missed):
                found = again
    return found


def _refined(
    p: Programme,
    rows: IntArray,
    dual: FloatArray,
    W: FloatArray,
    inverse: Callable[[FloatArray], FloatArray],
) -> _System | None:
    """Refinement in the weights with an approximate inverse Gram matrix of ``rows``; ``None`` when
    the system is singular.
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
        if best is not None and missed > best.missed / 2:
            break
        best = _System(dual, slope, noise, missed, W)
        if missed <= noise / 4:
            break
    return best


def active_set(p: Programme, dual: FloatArray, deadline: float) -> Point:
    """The dual method of active sets on working sets: the rows that are free, and those that are
    missed most; the multipliers of the others stay where they are. Of two opposite rows the first
    stands for both, with a multiplier of any sign.
    """
    dual = np.clip(p.cancelled(dual), 0.0, p.cap)
    usable, signed = p.diagonal > 0.0, np.zeros(p.m, dtype=np.bool_)
    if p.opposite is not None:
        signed = np.arange(p.m) < p.opposite
        usable &= (p.opposite < 0) | signed
        dual = np.where(signed, dual - dual[p.opposite], np.where(usable, dual, 0.0))
    rows = np.flatnonzero((dual != 0.0) & (dual < p.cap) & usable)
    if len(rows) > p.dof:  # not all of them can be independent
        size = np.abs(dual[rows]) * np.sqrt(p.diagonal[rows])
        kept = np.argpartition(-size, p.dof)
        dual[rows[kept[p.dof :]]] = 0.0
        rows = np.sort(rows[kept[: p.dof]])
    best: Point | None = None
    for _ in range(_ROUNDS):
        if len(rows) == 0:
            slope = p.values(p.adjoint(dual)) - p.b
            slope = np.where(signed, -np.abs(slope), slope)
            rows = np.array([int(np.argmin(np.where(usable, slope, np.inf)))])
        if len(rows) > LARGEST_SYSTEM or time.monotonic() > deadline:
            break
        fixed = dual.copy()
        fixed[rows] = 0.0
        sides = p.b[rows]
        if fixed.any():
            sides = sides - p.values(p.adjoint(fixed))[rows]
        outcome, multipliers = _on_rows(p, rows, sides, dual[rows], signed[rows], deadline)
        dual = fixed
        dual[rows] = multipliers
        if outcome != native.SOLVED:
            contradiction = outcome == native.CONTRADICTION
            return Point(_unsigned(p, dual), p.adjoint(dual), False, contradiction)
        split = _Sides(((dual > 0.0) | (signed & (dual != 0.0))) & (dual < p.cap), dual >= p.cap)
        at = _system(p, *split)
        if at is None:
            W = p.adjoint(dual)
            noise = 8.0 * _EPS * max(1.0, float(np.linalg.norm(W)))
            at = _System(dual, p.values(W) - p.b, noise, math.inf, W)
        low, high, enter_low, enter_high = _signs(p, split, at, usable)
        low &= ~signed
        wrong = enter_low | enter_high | (signed & usable & ~split.free & (at.slope > at.noise))
        if not (low | high | wrong).any():
            return Point(_unsigned(p, at.dual), at.W, at.missed <= at.noise)
        wrong[rows] = False
        found = np.flatnonzero(wrong)
        W = at.W if np.array_equal(at.dual, dual) else p.adjoint(dual)
        best = Point(_unsigned(p, dual.copy()), W, False)
        if len(found) == 0:  # what is wrong is rounding in the Gram matrix
            clipped = np.where(signed, at.dual, np.clip(at.dual, 0.0, p.cap))
            plain = np.array_equal(clipped, at.dual)
            W = at.W if plain else p.adjoint(clipped)
            return Point(_unsigned(p, clipped), W, plain)
        if len(found) > JOINING:
            size = np.abs(at.slope[found])
            found = found[np.argpartition(-size, JOINING)[:JOINING]]
        rows = np.union1d(np.flatnonzero(split.free), found)
    return Point(_unsigned(p, dual), p.adjoint(dual), False) if best is None else best


def _on_rows(
    p: Programme,
    rows: IntArray,
    sides: FloatArray,
    start: FloatArray,
    signed: BoolArray,
    deadline: float,
) -> tuple[int, FloatArray]:
    """How the compiled method ends on these rows, and their multipliers, some of any sign."""
    count = len(rows)
    G, lam, b = p.gram(rows).T, start.copy(), np.ascontiguousarray(sides)
    cap, signs, slope = p.cap[rows], signed.astype(np.uint8), np.empty(count)
    state = native.ActiveSet(count, p.dof)
    gram, sides_at, multipliers, slopes = (
        address(x, np.float64, *x.shape) for x in (G, b, lam, slope)
    )
    given = address(cap, np.float64, count), address(signs, np.uint8, count), state
    if not _begun(state, G, lam, cap, signed):
        library.active_set_begin(gram, *given, multipliers)
    steps = ctypes.c_int64()
    outcome = native.STOPPED
    for _ in range(1 + (20 * count + 200) // _SLICE):
        outcome = library.active_set(
            gram, sides_at, *given, _MISSED, _SLICE, multipliers, slopes, steps
        )
        if outcome != native.STOPPED or time.monotonic() > deadline:
            break
    return outcome, lam


def _begun(state: Any, G: FloatArray, lam: FloatArray, cap: FloatArray, signed: BoolArray) -> bool:
    """Free rows and their factor by LAPACK, where none of them depends on others."""
    from scipy.linalg.lapack import dpotrf

    factor, rows, side = (state.arrays[name] for name in ("factor", "rows", "side"))
    inside = ((lam > 0.0) | (signed & (lam != 0.0))) & (lam < cap)
    free = np.flatnonzero(inside & (np.diag(G) > 0.0))
    count = len(free)
    if count == 0:
        return False
    part = G if count == len(G) else G[np.ix_(free, free)]
    L, failed = dpotrf(part.T, lower=0, clean=0)
    pivots = np.diag(L) ** 2
    if failed or (pivots <= _DEPENDENT * np.diag(part)).any():
        return False
    factor[:count, :count] = L.T
    factor[np.diag_indices(count)] = 1.0 / np.diag(L)
    rows[:count] = free
    side[:] = 2 * (lam >= cap)
    side[free] = 1
    state.count = count
    return True
