r"""The Frobenius max-margin programme, hard and soft.

.. math:: \min_W \|W\|_F \ \text{ s.t. }\ \langle A_c,W\rangle\ge b_c
   \qquad\text{or}\qquad
   \min_W \tfrac12\|W\|_F^2 + C\sum_c(b_c-\langle A_c,W\rangle)_+ .

Programme Att-SVM of Tarzanagh et al., *Transformers as Support Vector Machines* (2023). Both have
the dual
:math:`\max_{0\le\lambda\le C} b^\top\lambda-\frac12\|\sum_c\lambda_cA_c\|_F^2` with
:math:`W=\sum_c\lambda_cA_c`. Block coordinate ascent finds roughly which rows are active; block
principal pivoting makes the answer exact. Where pivoting does not settle, small programmes go to
non-negative least squares and large ones to proximal multipliers, and both of these end in weights
or in a Farkas certificate. The best certified answer met on the way is what is returned.
"""

from __future__ import annotations

import math
import time

import numpy as np

from attsvm.data import FloatArray
from attsvm.geometry import Norm
from attsvm.margins import Margins
from attsvm.solvers import farkas
from attsvm.solvers.answers.outcomes import Request, infeasible_solution, solved, zero_solution
from attsvm.solvers.answers.solution import MarginSolution
from attsvm.solvers.large.batch import Found
from attsvm.solvers.methods import infeasibility
from attsvm.solvers.methods.block_ascent import BlockAscent
from attsvm.solvers.methods.pivoting import LARGEST_SYSTEM, pivot
from attsvm.solvers.methods.proximal import ProximalMultipliers
from attsvm.solvers.programme.choice import FEW
from attsvm.solvers.programme.choice import SMALL as _SMALL
from attsvm.solvers.programme.programme import empty_rows, equilibrate
from attsvm.solvers.proofs import Certificate, certify_hard, certify_soft
from attsvm.solvers.small import small_frobenius

_ROUGH = 1e-2  # residual at which the active rows are worth a first factorisation
_FIRST_EPOCHS = 40
_ROUGH_EPOCHS, _MOST_ROUGH_EPOCHS = 10, 200
# the accuracy that is aimed at whatever the tolerance, because it costs little more
_POLISHED = 1e-13
# distance below which the least-squares multipliers are tried as a contradiction
_NEARLY_ZERO = 1e-9
# factorisations' worth of ascent before the proximal method: a better start saves more of them
_EXTRA_ASCENT = 8.0
# epochs of that ascent between certificates, each of which costs about one more
_CERTIFIED_EVERY = 200
_FIRST_SIGMA, _LAST_SIGMA = 1e4, 1e9
_INNER_STEPS, _MOST_NEWTON_STEPS = 60, 500
_INEXACT = 1e-3  # gradient tolerance of the first inner problems
_MOST_EPOCHS = 5000
# time of a multiply-add in an epoch (memory bound) over one in a factorisation
_STREAMING_COST = 4.0


def solve(margins: Margins, norm: Norm, request: Request) -> MarginSolution:
    """Solve the programme of this module; see :func:`attsvm.solvers.max_margin`."""
    if not (margins.rhs > 0).any():
        return zero_solution(margins, norm, request)
    if request.slack is None:
        if margins.m <= FEW and request.opposite is None:
            solution = _at_once(margins, request)
            if solution is not None:
                return solution
        impossible = empty_rows(margins) & (margins.rhs > 0)
        if impossible.any():
            dual = np.zeros(margins.m)
            dual[np.flatnonzero(impossible)[0]] = 1.0
            return infeasible_solution(margins, dual, request, "inspection", 0)
    return _Search(margins, norm, request).run()


def _at_once(margins: Margins, request: Request) -> MarginSolution | None:
    """The solution or the contradiction of a small programme, ``None`` where compiled code does not
    settle it.
    """
    found = small_frobenius.settle(
        margins.differences, margins.queries, margins.offsets, np.array([0, margins.n]), margins.rhs
    )
    if found.outcome[0] == small_frobenius.UNSETTLED:
        return None
    solution = Found(found.W[0], found.dual, *found.figures[0].tolist()).solution(
        margins, request, int(found.systems[0])
    )
    return solution if solution.status in ("optimal", "infeasible") else None


class _Search:
    """One solve: the stages, the best certificate so far, and the clock."""

    def __init__(self, margins: Margins, norm: Norm, request: Request) -> None:
        self.margins, self.norm, self.request = margins, norm, request
        self.programme = equilibrate(margins, request.slack, request.opposite)
        self.deadline = (
            math.inf if request.max_seconds is None else time.monotonic() + request.max_seconds
        )
        self.best: Certificate | None = None
        self.solver = ""
        self.epochs = 0
        self.farkas: FloatArray | None = None
        self.settled = False

    def run(self) -> MarginSolution:
        p = self.programme
        start = (
            np.zeros(p.m)
            if self.request.warm_start is None
            else p.scaled_dual(self.request.warm_start)
        )
        ascent = BlockAscent(p, start)
        if not self._pivoted(ascent) and not self._late():
            suspected = None
            if p.hard and p.m * p.dof <= _SMALL:
                self._least_distance()
                if self.farkas is not None and farkas.proved(self.margins, self._found()) is None:
                    suspected, self.farkas = self.farkas, None
            if not self._done():
                self.farkas = suspected
                if suspected is None:
                    self._proximal(ascent)
        self.epochs = ascent.epochs
        if self.farkas is not None:
            return infeasible_solution(
                self.margins, self._found(), self.request, self.solver, self.epochs
            )
        assert self.best is not None
        return solved(self.margins, self.best, self.request, self.solver, self.epochs)

    def _found(self) -> FloatArray:
        """The certificate in the caller's rows."""
        assert self.farkas is not None
        p = self.programme
        return p.restored(np.zeros((1, 1)), p.cancelled(self.farkas))[1]

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
            self._pivot(ascent.dual, 12, "block ascent + pivoting")
            if self._done() or self._late():
                return self._done()
            if p.hard and p.m * p.dof <= _SMALL:
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
                    self._pivot(some, 12, "block ascent + pivoting")
                return large
            ascent.run(_ROUGH_EPOCHS, 0.01 * _POLISHED, self.deadline)
            spent += _STREAMING_COST * _ROUGH_EPOCHS * ascent.epoch_cost

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

    def _pivot(self, dual: FloatArray, rounds: int, solver: str) -> None:
        result = pivot(self.programme, dual, rounds, self.deadline)
        self._consider(result.dual, solver, result.W)
        self.settled = result.settled

    def _least_distance(self) -> None:
        u, distance = infeasibility.least_distance(self.programme)
        if distance <= _NEARLY_ZERO and self._accept_certificate(u, "non-negative least squares"):
            return
        if distance > 0.0 and u.any():
            self._consider(u / distance, "non-negative least squares")
            if not self._done():
                self._pivot(u / distance, 12, "non-negative least squares + pivoting")

    def _proximal(self, ascent: BlockAscent) -> None:
        p = self.programme
        budget = 1 + int(
            _EXTRA_ASCENT * self._factorisation(ascent) / (_STREAMING_COST * ascent.epoch_cost)
        )
        while budget > 0 and ascent.residual > 0.01 * _POLISHED:
            ascent.run(min(budget, _CERTIFIED_EVERY), 0.01 * _POLISHED, self.deadline)
            budget -= _CERTIFIED_EVERY
            self._consider(ascent.dual, "block ascent")
            if self._done() or self._late():
                return
        # With a box, multipliers can move by C at most: a weight far above C would make the inner
        # problem all corners.
        sigma = _FIRST_SIGMA if p.hard else min(_FIRST_SIGMA, 10.0 * float(np.median(p.cap)))
        state = ProximalMultipliers(p, p.cancelled(ascent.dual).copy(), sigma)
        outer = enough = 0
        while state.newton_steps < _MOST_NEWTON_STEPS and enough < 4:
            outcome = state.advance(_INEXACT if outer < 3 else 1e-12, _INNER_STEPS, self.deadline)
            if outcome == "stopped":
                break
            if outcome == "stalled":
                state.sigma /= 10.0
                continue
            outer += 1
            self._consider(state.dual, "proximal multipliers")
            if self._done() or (
                p.hard
                and self._accept_certificate(np.maximum(state.moved, 0.0), "proximal multipliers")
            ):
                break
            if (
                self._free(state.dual) <= min(p.dof, LARGEST_SYSTEM)
                and self.best is not None
                and self.best.gap < 0.02
            ):
                self._pivot(state.dual, 12, "proximal multipliers + pivoting")
                if self._done():
                    break
            enough += self.best is not None and self.best.error <= self.request.tol
            enough += state.sigma >= _LAST_SIGMA
            state.sigma = min(10.0 * state.sigma, _LAST_SIGMA)

    def _accept_certificate(self, dual: FloatArray, solver: str) -> bool:
        p = self.programme
        if infeasibility.residual(p, dual) > 1e-3:
            return False
        exact = infeasibility.refined(p, dual)
        if exact is None:
            return False
        self.farkas, self.solver = exact, solver
        return True

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
        """A certificate of infeasibility, or weights at rounding level, or at the tolerance when
        all signs of the system are right.
        """
        if self.farkas is not None or self.best is None:
            return self.farkas is not None
        enough = self.settled or self.request.rough
        return self.best.error <= (self.request.tol if enough else min(self.request.tol, _POLISHED))

    def _late(self) -> bool:
        return time.monotonic() > self.deadline
