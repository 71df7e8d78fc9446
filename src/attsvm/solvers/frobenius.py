r"""The Frobenius max-margin programme, hard and soft.

.. math:: \min_W \|W\|_F \ \text{ s.t. }\ \langle A_c,W\rangle\ge b_c
   \qquad\text{or}\qquad
   \min_W \tfrac12\|W\|_F^2 + C\sum_c(b_c-\langle A_c,W\rangle)_+ .

Programme Att-SVM of Tarzanagh et al., *Transformers as Support Vector Machines* (2023). Both have
the dual
:math:`\max_{0\le\lambda\le C} b^\top\lambda-\frac12\|\sum_c\lambda_cA_c\|_F^2` with
:math:`W=\sum_c\lambda_cA_c`. Programmes of few rows take one compiled call
(:mod:`attsvm.solvers.compiled`). The others, and what is left open there, go through stages, each
of which is entered only where those before it have not come to an end:

1. where the columns are of very different sizes, proximal steps on capped columns
   (:mod:`attsvm.solvers.columns`);
2. block coordinate ascent (:mod:`attsvm.solvers.ascent`) finds roughly which rows are active, and
   block principal pivoting (:mod:`attsvm.solvers.pivoting`) makes the answer exact;
3. soft margins with smoothed hinges (:mod:`attsvm.solvers.hinges`), and pivoting from there;
4. the dual method of active sets (:mod:`attsvm.solvers.active_set`), which ends in weights or in a
   contradiction;
5. exact integers (:mod:`attsvm.solvers.integers`), where float64 decides nothing;
6. long block ascent, where there is neither a contradiction nor a good certificate.

The best certified answer met on the way is what is returned.
"""

from __future__ import annotations

import math
import time
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from attsvm.datasets.attention_data import FloatArray, IntArray
from attsvm.margins import Margins
from attsvm.norms import Norm
from attsvm.solvers import compiled, integers
from attsvm.solvers.active_set import active_set, pivot_or_active_set
from attsvm.solvers.ascent import ASCENT, AscentOptions, BlockAscent
from attsvm.solvers.column_sizes import SIZES, uneven_columns
from attsvm.solvers.outcomes import (
    STATUS,
    Request,
    certified_solution,
    infeasible_solution,
    zero_solution,
)
from attsvm.solvers.pivoting import PIVOTING, PivotOptions, pivot
from attsvm.solvers.programme import DualPoint, Programme, empty_rows, equilibrate
from attsvm.solvers.proofs import Certificate, certify_hard, certify_soft
from attsvm.solvers.solution import MarginSolution


class FrobeniusOptions(NamedTuple):
    """When the solver goes from one stage to the next. They decide how long it takes, never what is
    certified; chosen on random programmes of 50 to 10,000 rows unless said otherwise.

    Attributes:
        few_rows: rows up to which one compiled call is tried first.
        rough: residual of ascent at which the active rows are worth a first factorisation.
        first_epochs: epochs of ascent before it.
        most_epochs: epochs of one run of ascent; also of the long ascent at the end.
        rough_epochs: epochs between certificates where a rough answer is asked for, and
        most_rough_epochs: how many of them are worth while no factorisation is possible.
        epochs_per_certificate: of the long ascent; a certificate costs about one epoch.
        patience: epochs that a run to the target may take, in units of those expected.
        more_epochs: epochs after pivoting that did not settle, until the residual is
        nearer: of what it was.
        streaming_cost: time of a multiply-add in an epoch, which waits for memory, over one in a
            factorisation.
        looser: errors of weights that are rounded together in integers, in units of the tolerance;
            untuned.
        polished: error that is aimed at whatever the tolerance: it costs little more.
        idle: share of the largest multiplier of a contradiction below which one is rounding.
        tiny_factor: exponent of a row's scaled right-hand side over its own, below which the
            rounding of the weights hides its margin, and
        raised: what such a row is asked for in addition.
        pivoting: limits of pivoting.
        ascent: of block ascent.
    """

    few_rows: int = compiled.BATCH.few_rows
    rough: float = 1e-2
    first_epochs: int = 40
    most_epochs: int = 5000
    rough_epochs: int = 10
    most_rough_epochs: int = 200
    epochs_per_certificate: int = 200
    patience: float = 1.5
    more_epochs: int = 160
    nearer: float = 0.03
    streaming_cost: float = 4.0
    looser: tuple[float, ...] = (1.0, 1e2, 1e4)
    polished: float = 1e-13
    idle: float = 1e-12
    tiny_factor: int = -16
    raised: float = 1e-13
    pivoting: PivotOptions = PIVOTING
    ascent: AscentOptions = ASCENT

    @property
    def target(self) -> float:
        """Residual that ascent is run to: a hundredth of the error that is aimed at."""
        return 0.01 * self.polished


FROBENIUS = FrobeniusOptions()


def solve(
    margins: Margins, norm: Norm, request: Request, options: FrobeniusOptions = FROBENIUS
) -> MarginSolution:
    """Solve the programme of this module; see :func:`attsvm.solvers.max_margin`.

    1. One compiled call, where there are few rows; it may leave the programme open.
    2. What is seen at a glance: nothing to meet, or a row of zeros that cannot be met.
    3. The stages of this module.
    """
    # 1. The compiled call.
    if margins.m <= options.few_rows and request.opposite is None:
        solution = compiled.solve_one(margins, request)
        if solution is not None:
            return solution
    # 2. Without a computation.
    if not np.count_nonzero(margins.rhs > 0.0):
        return zero_solution(margins, norm, request)
    if request.slack is None:
        impossible = empty_rows(margins) & (margins.rhs > 0)
        if impossible.any():
            dual = np.zeros(margins.m)
            dual[np.flatnonzero(impossible)[0]] = 1.0
            return infeasible_solution(margins, dual, request, "inspection", 0)
    # 3. The stages; what leaves float64 on the way is certified all the same.
    with np.errstate(over="ignore"):
        return _FrobeniusSolve(margins, norm, request, options).run()


class _FrobeniusSolve:
    """One solve: the stages, the best certificate so far, and the clock.

    Attributes:
        margins: the caller's programme.
        equilibrated: the same with rows of one size.
        programme: the one that is solved: ``equilibrated``, with a little more asked of rows whose
            margins rounding would hide.
        best: the best certificate so far, made by the stage ``solver``.
        settled: whether all signs of the linear system of ``best`` are right.
    """

    def __init__(
        self, margins: Margins, norm: Norm, request: Request, options: FrobeniusOptions
    ) -> None:
        self.margins, self.norm, self.request, self.options = margins, norm, request, options
        self.equilibrated = equilibrate(margins, request.slack, request.opposite)
        self.programme = _raise_tiny_rows(self.equilibrated, options)
        self.best: Certificate | None = None
        self.solver = ""
        self.settled = False

    def run(self) -> MarginSolution:
        """The stages of this module, by number."""
        p = self.programme
        # 1. Columns of very different sizes.
        sizes = uneven_columns(self.equilibrated, SIZES.bits)
        if sizes is not None:
            solution = self._solve_capped_columns(sizes)
            if solution is not None:
                return solution
        ascent = BlockAscent(p, self._start(), self.options.ascent)
        # 2. Block ascent and pivoting, which end most programmes.
        if self._ascend_and_pivot(ascent) or self._is_late():
            return self._solution(ascent)
        # 3. Soft margins once more from smoothed hinges.
        if self._pivot_from_smoothed_hinges(ascent.dual):
            return self._solution(ascent)
        # 4. Active sets: weights, or a contradiction.
        point = self._active_set(ascent.dual)
        verdict = self._contradiction(point, ascent.epochs)
        if verdict is not None and verdict.status == "infeasible":
            return verdict
        if verdict is not None and not self._is_late():
            # weights that nearly do not exist are made of the rows that nearly contradict
            dual = p.scaled_dual(verdict.dual)
            self._consider_point(pivot(p, dual, self.request.deadline, self.options.pivoting))
        # 5. Integers, where the certificates so far do not decide.
        proved = self._solve_in_integers(ascent.epochs)
        if proved is not None:
            return proved
        if verdict is not None and (self.best is None or self.best.error > STATUS.hopeless):
            return verdict
        # 6. Nothing is left but to ascend.
        if verdict is None and not self._is_done():
            self._ascend_long(ascent)
        return self._solution(ascent)

    def _start(self) -> FloatArray:
        """``(m,)``: multipliers to begin with."""
        p = self.programme
        warm = self.request.warm_start
        start = np.zeros(p.m) if warm is None else p.scaled_dual(warm)
        if not p.hard:  # margins of rows of zeros are missed
            start = np.where((p.diagonal == 0.0) & (p.b > 0.0), p.cap, start)
        return start

    def _solution(self, ascent: BlockAscent) -> MarginSolution:
        """The solution of the best certificate."""
        assert self.best is not None
        return certified_solution(self.margins, self.best, self.request, self.solver, ascent.epochs)

    def _solve_capped_columns(self, sizes: IntArray) -> MarginSolution | None:
        """The solution where columns are of very different sizes, if that is reached."""
        # few programmes come here, and the import takes longer than most of them
        from attsvm.solvers import columns

        p = self.equilibrated
        least = columns.solve_uneven(p, sizes, self.request.deadline, pivot_or_active_set)
        if least is None:
            return None
        if least.contradiction:
            point = DualPoint(least.multipliers.high, np.zeros(p.shape), False, True)
            verdict = self._contradiction(point, 0)
            return verdict if verdict is not None and verdict.status == "infeasible" else None
        for dual in columns.rounded_multipliers(p, least, self.request.deadline):
            self._consider(dual, "capped columns", least.W.reshape(p.shape))
            if self._is_within_tolerance() or self._is_late():
                break
        if not self._is_within_tolerance():
            return None
        assert self.best is not None
        return certified_solution(self.margins, self.best, self.request, self.solver, 0)

    def _ascend_and_pivot(self, ascent: BlockAscent) -> bool:
        """Ascent to a rough point, then pivoting or, where that is cheaper, more ascent; whether
        that is the solution.
        """
        p, options = self.programme, self.options
        largest = options.pivoting.largest_system
        ascent.run(options.first_epochs, options.rough, self.request.deadline)
        if self.request.rough and self._ascend_roughly(ascent):
            return True
        for _ in range(2):
            free = self._free_rows(ascent.dual)
            # Epochs to the last digit at the rate of the last ones, against one factorisation.
            epochs = self._epochs_to_target(ascent)
            streaming = options.streaming_cost * epochs * ascent.epoch_cost
            if min(free, p.dof) > largest or streaming < self._factorisation_cost(ascent):
                most = min(math.ceil(options.patience * epochs) + 5, options.most_epochs)
                ascent.run(most, options.target, self.request.deadline)
                self._consider(ascent.dual, "block ascent")
                if self._is_done() or self._is_late():
                    return self._is_done()
            # More free rows than unknowns are not independent: their system is singular.
            if free > p.dof or free > largest:
                break
            self._consider_point(pivot(p, ascent.dual, self.request.deadline, options.pivoting))
            if self._is_done() or self._is_late():
                return self._is_done()
            if p.hard and p.m <= options.few_rows:
                break
            # Pivoting failed: the active rows were not yet guessed well enough.
            nearer = options.nearer * ascent.residual
            ascent.run(options.more_epochs, nearer, self.request.deadline)
        self._consider(ascent.dual, "block ascent")
        return self._is_done()

    def _ascend_roughly(self, ascent: BlockAscent) -> bool:
        """Whether ascent comes as near as was asked for, until factorisations are cheaper; where
        there can be none, what it has reached is enough.
        """
        spent, p, options = 0.0, self.programme, self.options
        largest = options.pivoting.largest_system
        while True:
            self._consider(ascent.dual, "block ascent")
            if self._is_done() or self._is_late():
                return True
            is_large = min(self._free_rows(ascent.dual), p.dof) > largest
            limit = 4.0 * self._factorisation_cost(ascent)
            if is_large:
                limit = options.streaming_cost * options.most_rough_epochs * ascent.epoch_cost
            if spent > limit:
                if is_large:  # of many positive multipliers in the middle of the way few are large
                    most = 4 * largest // 5
                    dual = np.where(ascent.dual > 0.0, ascent.dual, 0.0)
                    dual[np.argpartition(-dual, most)[most:]] = 0.0
                    self._consider_point(pivot(p, dual, self.request.deadline, options.pivoting))
                return is_large
            ascent.run(options.rough_epochs, options.target, self.request.deadline)
            spent += options.streaming_cost * options.rough_epochs * ascent.epoch_cost

    def _ascend_long(self, ascent: BlockAscent) -> None:
        """Ascent with a certificate now and then, until it is done or no longer comes nearer."""
        options = self.options
        for _ in range(options.most_epochs // options.epochs_per_certificate):
            before = ascent.residual
            ascent.run(options.epochs_per_certificate, options.target, self.request.deadline)
            self._consider(ascent.dual, "block ascent")
            if self._is_done() or self._is_late() or not ascent.residual < 0.9 * before:
                return

    def _epochs_to_target(self, ascent: BlockAscent) -> float:
        """Epochs until the residual is at the target, at the rate of the last ones."""
        log_reduction = max(0.0, math.log(max(ascent.residual, 1e-300) / self.options.target))
        return log_reduction / -math.log(min(max(ascent.rate, 1e-6), 0.999999))

    def _free_rows(self, dual: FloatArray) -> int:
        """Number of multipliers strictly inside their box."""
        dual = self.programme.cancelled(dual)
        return int(((dual > 0.0) & (dual < self.programme.cap)).sum())

    def _factorisation_cost(self, ascent: BlockAscent) -> float:
        """Multiply-adds of a Gram matrix of the active rows and its Cholesky factor, or of the
        equivalent in the weights' space.
        """
        p = self.programme
        size = min(self._free_rows(ascent.dual), p.dof)
        return float(size**3 / 3.0 + size**2 * sum(p.D.shape[1:] + p.Z.shape[1:]) / 2.0)

    def _consider_point(self, point: DualPoint, solver: str = "block ascent + pivoting") -> None:
        """:meth:`_consider` the multipliers and the weights of a stage, of pivoting by default."""
        self._consider(point.dual, solver, point.W, settled=point.settled)

    def _pivot_from_smoothed_hinges(self, dual: FloatArray) -> bool:
        """Pivoting from where soft margins with smoothed hinges come to rest; whether that is the
        solution, or the time is over.
        """
        p = self.programme
        if p.hard or p.opposite is not None:
            return False
        from attsvm.solvers.hinges import smoothed

        # One width after the other, until the rows that it frees make the exact system.
        for smoothed_dual in smoothed(p, dual, self.request.deadline):
            if self._free_rows(smoothed_dual) <= p.dof:
                point = pivot(p, smoothed_dual, self.request.deadline, self.options.pivoting)
                self._consider_point(point, "smoothed hinges + pivoting")
                if self._is_done():
                    return True
        return self._is_late()

    def _active_set(self, dual: FloatArray) -> DualPoint:
        """The end of the method of active sets, considered where it is no contradiction."""
        point = active_set(self.programme, dual, self.request.deadline)
        if not point.contradiction:
            self._consider_point(point, "active set")
        return point

    def _contradiction(self, point: DualPoint, epochs: int) -> MarginSolution | None:
        """The verdict on multipliers that contradict each other; ``None`` on others."""
        p = self.programme
        if not point.contradiction:
            return None
        dual = p.cancelled(
            np.where(point.dual > self.options.idle * point.dual.max(), point.dual, 0.0)
        )
        if not dual.any():
            return None  # rows that cancel to nothing contradict nobody
        return infeasible_solution(
            self.margins, p.unscaled_certificate(dual), self.request, "active set", epochs
        )

    def _solve_in_integers(self, epochs: int) -> MarginSolution | None:
        """Consider what integers say where float64 does not: better weights; the verdict on a
        contradiction is returned.
        """
        if self._is_within_tolerance() or self._is_late():
            return None
        p = self.equilibrated  # of raised rows no contradiction says anything
        point = integers.solve_in_integers(p, self.request.deadline)
        if point is None:
            return None
        if point.contradiction:
            dual = p.unscaled_certificate(point.dual)
            return infeasible_solution(
                self.margins, dual, self.request, "integers", epochs, exact=True
            )
        self._consider(point.dual, "integers", point.W, settled=True)
        if not p.hard or p.opposite is not None:
            return None
        for looser in self.options.looser:
            share = looser * self.request.tol
            has_reached = self.best is not None and self.best.error <= share
            if self._is_within_tolerance() or has_reached or self._is_late():
                break
            # No weights in float64 are nearer than their own rounding.
            if share < float(np.finfo(np.float64).eps):
                continue
            W = integers.round_weights(p, point, share, self.request.deadline)
            if W is not None:
                self._consider(point.dual, "integers", W, settled=True)
        return None

    def _consider(
        self,
        dual: FloatArray,
        solver: str,
        weights: FloatArray | None = None,
        settled: bool = False,
    ) -> None:
        """Keep ``dual`` and ``weights`` (the adjoint of ``dual`` when left out) if they are better
        certified than the best so far.
        """
        p = self.programme
        if not np.isfinite(dual).all():
            return
        began = time.monotonic()
        W, lam = p.restored(p.adjoint(dual) if weights is None else weights, dual)
        if self.request.slack is None:
            certificate = certify_hard(self.margins, self.norm, W, lam)
        else:
            certificate = certify_soft(
                self.margins, self.norm, W, np.minimum(lam, self.request.slack), self.request.slack
            )
        if self.best is None or certificate.error < self.best.error:
            self.best, self.solver, self.settled = certificate, solver, settled
        self.request = self.request.after_certificate(began)

    def _is_done(self) -> bool:
        """Whether the weights are at rounding level, or at the tolerance when all signs of the
        system are right.
        """
        if self.best is None:
            return False
        tol, enough = self.request.tol, self.settled or self.request.rough
        return self.best.error <= (tol if enough else min(tol, self.options.polished))

    def _is_within_tolerance(self) -> bool:
        return self.best is not None and self.best.error <= self.request.tol

    def _is_late(self) -> bool:
        return self.request.late


def _raise_tiny_rows(p: Programme, options: FrobeniusOptions) -> Programme:
    """The programme with a little more asked of rows so much larger than others that the rounding
    of weights hides their margins.
    """
    # b = 2^rhs_exponent * (the caller's right-hand side), and dual_exponent = row exponent +
    # weight_exponent
    rhs_exponent = p.dual_exponent - 2 * p.weight_exponent
    tiny = rhs_exponent < options.tiny_factor
    if not p.hard or p.opposite is not None or not tiny.any():
        return p
    return replace(p, b=p.b + options.raised * tiny)
