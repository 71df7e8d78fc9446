r"""The max-margin programme in every norm that is known by its value, its dual value and its
proximal map.

.. math:: \min_W \|W\| \ \text{ s.t. }\ \langle A_c,W\rangle\ge b_c
   \qquad\text{or}\qquad
   \min_W \tfrac12\|W\|^2 + C\sum_c(b_c-\langle A_c,W\rangle)_+ .

Douglas-Rachford splitting (Lions and Mercier 1979) of an energy :math:`f`, the norm, its half
square (soft margins) or its p-th power, against the margins. With step :math:`t`

.. math:: V=\operatorname{prox}_{tf}(z),\qquad W=P(2V-z),\qquad z\leftarrow z+(W-V),

where :math:`P` is the projection onto the margins, of soft margins the proximal map of their loss:
a Frobenius programme with other right-hand sides, :math:`W=2V-z+A^\top\lambda` with
:math:`0\le\lambda\le tC`. At the fixed point :math:`W=V` and
:math:`A^\top\lambda=z-V\in t\,\partial f(V)`, so :math:`\lambda` certifies :math:`V`. Projections
are those of :mod:`attsvm.solvers.projections`: exact, or where rows are many two warm epochs of
block ascent; iterations are extrapolated (:mod:`attsvm.solvers.anderson`). The better certified of
both, :math:`V` and :math:`W`, is the answer.

A norm that no rotation from the left changes is minimised in the span of the differences, and one
that none from the right changes in the span of the queries. A solve goes through these stages, and
ends with the first that is good enough:

1. begin from the caller's weights, or where the norm is next to a polyhedral one from the solution
   of the linear programme (:mod:`attsvm.solvers.polyhedral`);
2. programmes of few rows iterate in compiled code (``native/splitting.cpp``) in the norms that are
   gauges of entries, singular values or lengths of rows;
3. where columns are of very different sizes, split around the Frobenius solution in capped columns
   (:mod:`attsvm.solvers.columns`);
4. begin from the Frobenius solution, which also says which programmes have no solution;
5. attempts of more and more iterations of splitting, between which other methods go on where it
   crawls: Newton's for the nuclear and the spectral norm (:mod:`attsvm.solvers.newton`) and for
   strictly convex gauges of entries and singular values (:mod:`attsvm.solvers.reweighted`),
   interior points for the lengths of rows (:mod:`attsvm.solvers.conic`);
6. capped columns once more, where columns differ by less.
"""

from __future__ import annotations

import itertools
import math
import threading
import time
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from attsvm import native
from attsvm.datasets.attention_data import FloatArray, IntArray
from attsvm.margins import Margins
from attsvm.native import address, library
from attsvm.norms import Frobenius, Lp, Norm, Schatten
from attsvm.norms.lifts import Entrywise, Lifted, RowLengths
from attsvm.solvers import columns, conic, frobenius, newton, optimality_checks, reweighted
from attsvm.solvers.active_set import pivot_or_active_set
from attsvm.solvers.anderson import ANDERSON, AndersonOptions, Extrapolation
from attsvm.solvers.column_sizes import SIZES, uneven_columns
from attsvm.solvers.columns import Capped, DoubleDouble, UnevenSolution
from attsvm.solvers.deadline import time_for
from attsvm.solvers.energy import Energy
from attsvm.solvers.iterate import Iterate, Stop
from attsvm.solvers.optimality_checks import unique_weights
from attsvm.solvers.outcomes import STATUS, Request, certified_solution, zero_solution
from attsvm.solvers.programme import Programme, equilibrate, reduce
from attsvm.solvers.projections import (
    ActiveSetProjection,
    AscentProjection,
    CappedProjection,
    Projection,
)
from attsvm.solvers.proofs import Certificate, certify_hard, certify_soft, length_ratio
from attsvm.solvers.solution import MarginSolution

_ROUNDED = 1e-15  # relative gaps are rounded to about so much


class SplittingOptions(NamedTuple):
    """Numbers of the method. They decide how long it takes, never what is certified; chosen on
    random programmes of 50 to 30,000 rows unless said otherwise.

    Attributes:
        few_rows: rows up to which a programme runs in compiled code, and
        exact_rows: up to which later attempts have exact projections.
        aim: error that is aimed at, whatever the tolerance, and
        sharp_aim: in gauges of exponents between ``sharp_exponents``, which costs little.
        enough: error that is enough, in tolerances.
        sharp_exponents: least and largest exponent of gauges that reach rounding level.
        nearly_linear: distance of an exponent to one, or of its reciprocal to zero, up to which the
            linear programme comes first.
        written_out: entries of the rows written out up to which an exact start costs nothing.
        rough_start: gap of a start that need not be exact.
        compiled: iterations in compiled code, and
        compiled_spectra: of the nuclear and the spectral norm, which Newton's method ends, and
        compiled_brief: of other norms that Newton's method or interior points end.
        compiled_per_look: iterations in compiled code between two looks at the clock.
        attempts: iterations of the attempts elsewhere, one after the other.
        nearer: share of the error at which multipliers were rounded together last, below which
            they are again.
        per_check: iterations between two errors.
        stall: checks within which the first attempt must halve the error of spectra.
        epochs: of an inexact projection, in the first attempt and in later ones.
        balance_every: iterations between two changes of the step ``t``, and
        last_balance: the last that may change it.
        least_factor: factor below which the step stays, and
        largest_factor: at most.
        anderson: of the extrapolation.
    """

    few_rows: int = 600
    exact_rows: int = 3000
    aim: float = 3e-10
    sharp_aim: float = 1e-12
    enough: float = 0.3
    sharp_exponents: tuple[float, float] = (1.25, 6.0)
    nearly_linear: float = 2e-3
    written_out: int = 1 << 17
    rough_start: float = 3e-2
    compiled: int = 4000
    compiled_spectra: int = 300
    compiled_brief: int = 1000
    compiled_per_look: int = 500
    attempts: tuple[int, ...] = (150, 500, 2000, 6000)
    nearer: float = 0.1
    per_check: int = 5
    stall: int = 6
    epochs: tuple[int, int] = (2, 40)
    balance_every: int = 10
    last_balance: int = 400
    least_factor: float = 3.0**0.5
    largest_factor: float = 4.0
    anderson: AndersonOptions = ANDERSON


SPLITTING = SplittingOptions()


@np.errstate(over="ignore")  # what leaves float64 on the way is certified all the same
def solve(
    margins: Margins, norm: Norm, request: Request, options: SplittingOptions = SPLITTING
) -> MarginSolution:
    """Solve the programme of this module; see :func:`attsvm.solvers.max_margin`."""
    if not (margins.rhs > 0).any():
        return zero_solution(margins, norm, request)
    return _SplittingSolve(margins, norm, request, options).run()


_thread = threading.local()


def _scratch(size: int) -> FloatArray:
    """Scratch memory of so many numbers or more. Each thread keeps its own from one solve to
    the next: fresh memory costs a small programme a tenth of its time.
    """
    scratch = getattr(_thread, "scratch", None)
    if scratch is None or len(scratch) < size:
        scratch = _thread.scratch = np.empty(size)
    memory: FloatArray = scratch
    return memory


class _Scaled(NamedTuple):
    """A programme whose solution has norm about one, with an iterate of the energy's programme.

    Attributes:
        programme: the programme.
        W: weights, divided by ``scale``.
        dual: multipliers of the energy.
        scale: norm of the weights before.
    """

    programme: Programme
    W: FloatArray
    dual: FloatArray
    scale: float


class _SplittingSolve:
    """One solve: the stages of this module, and the best certificate so far.

    Attributes:
        margins: the caller's programme.
        full: the same with rows of one size.
        reduction: that one in the coordinates in which the norm is minimised.
        energy: what splitting minimises.
        aim: the error that is aimed at.
        best: the best certificate so far, made by the method ``solver``.
        iterations: iterations of splitting so far.
        is_spectral: whether Newton's method for the nuclear and the spectral norm goes on.
        is_curved: whether Newton's method for strictly convex gauges does, and
        is_conic: interior points for the lengths of rows.
    """

    def __init__(
        self, margins: Margins, norm: Norm, request: Request, options: SplittingOptions
    ) -> None:
        self.margins, self.norm, self.request, self.options = margins, norm, request, options
        self.full = equilibrate(margins, request.slack, request.opposite)
        self.reduction = reduce(self.full, *norm.invariant)
        self.energy = Energy(norm, request.slack is not None)
        least, largest = options.sharp_exponents
        is_sharp = isinstance(norm, Lifted) and least <= norm.p <= largest
        # Iterations in moderate gauges converge linearly, so more digits are cheap.
        aim = options.sharp_aim if is_sharp else options.aim
        self.aim = min(options.enough * request.tol, aim)
        self.best: Certificate | None = None
        self.solver, self.iterations = "splitting", 0
        # Newton's method knows hard margins of the nuclear and the spectral norm only.
        exponent = norm.p if isinstance(norm, Schatten) else 0.0
        self.is_spectral = request.slack is None and exponent in (1.0, math.inf)
        p = self.reduction.programme
        self.is_curved = reweighted.is_curved(norm) and reweighted.fits_reweighted(p)
        self.is_conic = (
            isinstance(norm, RowLengths) and norm.p in (1.0, math.inf) and conic.fits_conic(p)
        )

    def run(self) -> MarginSolution:
        """The best certified solution that the stages of this module reach."""
        p, options = self.reduction.programme, self.options
        # 1. Begin from the caller's weights, or from a linear programme.
        warm = self._caller_iterate()
        if warm is None:
            warm = self._linear_iterate()
        if self._is_within_tolerance():
            return self._solution()
        # 2. Few rows iterate in compiled code.
        is_compiled = self.energy.gauge is not None and p.m <= options.few_rows
        iterate = self._iterate_compiled(warm) if is_compiled else None
        if iterate is not None and self.request.slack is not None and self.norm.strictly_convex:
            self._consider_steepest(iterate.dual)
        # 3. Capped columns.
        sizes = None
        if not self._is_within_tolerance():
            sizes = uneven_columns(self.full, SIZES.bits)
        if sizes is not None and self._split_capped_columns(sizes):
            return self._solution()
        if warm is not None and not is_compiled:
            with np.errstate(all="ignore"):
                self._attempt(warm, 0, 2 * options.attempts[0])
        if self._is_within_tolerance():
            return self._solution()
        # 4. The Frobenius solution.
        start = self._frobenius_solution() if iterate is None else None
        if start is not None:
            iterate = self._iterate_of(start)
            if iterate is None:
                return start
            self._consider(*iterate, start.solver)
            # Whether weights exist does not depend on the norm.
            if start.status == "almost infeasible" and start.gap > STATUS.hopeless:
                return self._solution()
        assert iterate is not None
        # 5. Attempts. A method that loses its way leaves float64, and then nothing is kept of it.
        with np.errstate(all="ignore"):
            verdict = self._split(iterate, is_compiled, start)
        if verdict is not None:
            return verdict
        # 6. Capped columns once more.
        if sizes is None and not (self._is_within_tolerance() or self.request.late):
            sizes = uneven_columns(self.full, SIZES.last)
            if sizes is not None:
                self._split_capped_columns(sizes)
        return self._solution()

    def _split(
        self, iterate: Iterate, is_compiled: bool, start: MarginSolution | None
    ) -> MarginSolution | None:
        """Go on from an iterate until its error is small enough: attempts of splitting in turn with
        the second-order method of the norm; the verdict of the Frobenius solver, should that find a
        contradiction. Iterations in compiled code count as the first attempt.
        """
        ended = 0 if is_compiled else 1  # attempt after which splitting has had its time
        for attempt, most in enumerate(self.options.attempts):
            if self.request.late:
                break
            if iterate.is_usable() and (attempt > 0 or not is_compiled):
                iterate = self._attempt(iterate, attempt, most)
            if self._is_done() or self.request.late:
                break
            # Splitting and Newton's method take turns: each leads where the other begins well.
            if self.is_spectral and iterate.is_usable():
                iterate = self._finish_by_newton(iterate)
            elif (self.is_curved or self.is_conic) and attempt == ended:
                start = self._frobenius_solution() if start is None else start
                if start.status == "infeasible":
                    return start
                frobenius_iterate = self._iterate_of(start)
                self._finish_by_second_order(
                    iterate if frobenius_iterate is None else frobenius_iterate
                )
            if self._is_within_tolerance() or self.request.late or not iterate.is_usable():
                break
        return None

    def _linear_iterate(self) -> Iterate | None:
        """The solution of the linear programme where the exponent of entries is next to one or
        infinity, else ``None``; its gap is about the distance times the logarithm of the number of
        entries.
        """
        norm, nearly = self.norm, self.options.nearly_linear
        if not isinstance(norm, Lp) or self.request.slack is not None:
            return None
        if 1.0 + nearly < norm.p < 1.0 / nearly:
            return None
        from attsvm.solvers import polyhedral

        polyhedral_norm = Lp(1.0 if norm.p < 2.0 else math.inf)
        request = replace(self.request, warm_start=None)
        solution = polyhedral.solve(self.margins, polyhedral_norm, request)
        iterate = self._iterate_of(solution)
        if iterate is not None:
            self._consider(*iterate, solution.solver)
        return iterate

    def _caller_iterate(self) -> Iterate | None:
        """The caller's weights and multipliers, if both are there and not zero."""
        W, dual = self.request.warm_weights, self.request.warm_start
        if W is None or dual is None or not (W.any() and dual.any()):
            return None
        W = self._coordinates(W)
        return Iterate(W, self.full.scaled_dual(dual)) if np.abs(W).max() > 0.0 else None

    def _iterate_of(self, solution: MarginSolution) -> Iterate | None:
        """Weights and multipliers of a solution in another norm, if it has weights."""
        if not solution.has_weights or not np.abs(solution.W).max() > 0.0:
            return None
        return Iterate(self._coordinates(solution.W), self.full.scaled_dual(solution.dual))

    def _coordinates(self, W: FloatArray) -> FloatArray:
        """Weights of the caller's programme in coordinates."""
        return self.reduction.coordinates(np.ldexp(W, -self.full.weight_exponent))

    def _frobenius_solution(self) -> MarginSolution:
        """The solution in the Frobenius norm: to a few digits where all digits take several systems
        of many unknowns.
        """
        p = self.full
        precise = replace(self.request, tol=1e-9, rough=False, warm_start=None, warm_weights=None)
        # Rough weights can be scaled to their margins where all right-hand sides are positive.
        if p.m * p.dof > self.options.written_out and p.hard and bool((p.b > 0.0).all()):
            rough = replace(precise, tol=self.options.rough_start, rough=True)
            start = frobenius.solve(self.margins, Frobenius(), rough)
            if start.status in ("optimal", "infeasible"):
                return start
        return frobenius.solve(self.margins, Frobenius(), precise)

    def _iterate_compiled(self, start: Iterate | None) -> Iterate | None:
        """The iterate of the compiled iterations; ``None`` where they reach no weights."""
        p, options = self.reduction.programme, self.options
        shape = p.D.shape[1], p.Z.shape[1]
        rows = native.ProgrammeRows(p.D, p.Z, p.b, p.cap, p.offsets, np.zeros(p.m, np.uint8))
        order, side = np.empty(p.m, np.int64), np.zeros(p.m, np.uint8)
        W, dual = np.zeros(shape), np.zeros(p.m)
        state = native.SplittingState(
            *(W, dual, _scratch(library.splitting_room(p.m, len(p.Z), *shape))),
            target=self.aim,
            enough=0.5 * self.request.tol,
            easy=self.energy.is_easy,
        )
        if start is not None:
            W[:], dual[:], state.warm = start.W, start.dual, 1
        sides = address(order, np.int64, p.m), address(side, np.uint8, p.m)
        left = options.compiled
        if self.is_spectral:
            left = options.compiled_spectra
        elif self.is_curved or self.is_conic:
            left = options.compiled_brief
        while left > 0:
            # Compiled code does not look at the clock, so it gets so many iterations at a time.
            state.most = min(left, options.compiled_per_look)
            outcome = library.splitting(rows, self.energy.gauge, *sides, state)
            self.iterations += state.iterations
            left -= options.compiled_per_look
            if not state.error < math.inf:
                return None
            if outcome == native.SOLVED or self.request.late:
                break
            state.warm = 1
        self._consider(W, dual, "splitting")
        return Iterate(W, dual)

    def _consider_steepest(self, dual: FloatArray) -> None:
        """Consider the weights of a soft margin that its multipliers point to, which are exact
        where these are: the steepest direction of what they pull.
        """
        dual_all = self.full.restored(np.zeros((1, 1)), self.full.cancelled(dual))[1]
        pull = self.margins.adjoint(np.minimum(dual_all, self.request.slack or 0.0))
        W = float(self.norm.dual_value(pull)) * np.asarray(self.norm.steepest(pull))
        self._consider(self._coordinates(W), dual, "splitting", _ROUNDED)

    def _attempt(self, start: Iterate, attempt: int, most: int) -> Iterate:
        """The iterate after up to ``most`` iterations of splitting, until the error is what is
        aimed at, or on the first attempt of spectra no longer falls.
        """
        options, scaled = self.options, self._scaled(start)
        p = scaled.programme
        is_exact = p.m <= options.few_rows or (
            attempt > 0
            and p.m <= options.exact_rows
            and time_for(ActiveSetProjection.work(p), self.request.deadline)
        )
        epochs = 0 if is_exact else options.epochs[attempt > 0]
        state = Splitting(p, self.energy, scaled.W, scaled.dual, epochs, options=options)
        errors: list[float] = []
        while state.iterations < most and not self.request.late:
            state.run(options.per_check, self.request.deadline)
            # V is exact in rank and zeros, W in margins: the better of both is the iterate's error.
            errors.append(self._error(p, state.V, state.dual))
            if is_exact and errors[-1] > self.aim:
                errors[-1] = min(errors[-1], self._error(p, state.W, state.dual))
            if errors[-1] <= self.aim:
                break
            # Spectra that crawl are left to Newton's method, which ends them in a few steps.
            recent, before = errors[-options.stall :], errors[: -options.stall]
            has_stalled = min(recent) > 0.5 * min(before, default=math.inf)
            if attempt == 0 and self.is_spectral and has_stalled:
                break
        self.iterations += state.iterations
        iterate = self._unscaled(scaled.scale, state.V, state.dual)
        self._consider(*iterate, "splitting")
        if is_exact and not self._is_done():
            self._consider(*self._unscaled(scaled.scale, state.W, state.dual), "splitting")
        return iterate

    def _split_capped_columns(self, sizes: IntArray) -> bool:
        """Splitting around the Frobenius solution where columns are of very different sizes;
        whether that comes near enough.
        """
        p, deadline = self.full, self.request.deadline
        start = columns.solve_uneven(p, sizes, deadline, pivot_or_active_set)
        if start is None or start.contradiction:
            return False
        start = columns.shorten(p, sizes, start, deadline, pivot_or_active_set)
        rounded_error = math.inf
        with np.errstate(all="ignore"):
            for attempt, most in enumerate(self.options.attempts):
                # Balancing the step helps most programmes and hinders some: attempts take turns.
                best = self._attempt_capped(start, most, attempt % 2 == 0)
                if best is None:
                    break
                start = columns.sharpen(p, best)
                roundings = columns.rounded_multipliers(p, start, self.request.deadline)
                # Rounding together takes longest, and helps again where the point is nearer.
                if best.error < self.options.nearer * rounded_error:
                    rounded_error = best.error
                else:
                    roundings = itertools.islice(roundings, 1)
                for dual in roundings:
                    self._certify(start.W.reshape(p.shape), dual, "splitting")
                    if self._is_within_tolerance() or self.request.late:
                        break
                if self._is_done() or self.request.late or best.error <= self.aim:
                    break
        return self._is_within_tolerance()

    def _attempt_capped(
        self, start: UnevenSolution, most: int, is_balanced: bool
    ) -> UnevenSolution | None:
        """The best of so many iterations in capped columns, in which the step changes only where
        they are balanced; ``None`` where there is none.
        """
        capped, p, slack, options = start.capped, self.full, self.request.slack, self.options
        W = (capped.rho * start.w).reshape(p.shape)
        length = self.energy.size(W)
        pull = self.energy.size((start.pull / capped.rho).reshape(p.shape), dual=True)
        # multipliers of half the square are as large as the weights; those of a norm pull by one
        dual_scale = pull if slack is None else length
        if not (0.0 < length < math.inf and 0.0 < dual_scale < math.inf):
            return None
        unit = replace(
            capped.programme, b=capped.programme.b / length, cap=capped.programme.cap / length
        )
        scaled_start = start._replace(w=start.w / length, pull=start.pull / dual_scale)
        state = Splitting(
            unit,
            self.energy,
            W / length,
            start.dual.high / dual_scale,
            start=scaled_start,
            options=options if is_balanced else options._replace(last_balance=0),
        )
        assert isinstance(state.projection, CappedProjection)
        best: UnevenSolution | None = None
        while state.iterations < most and not self.request.late:
            state.run(options.per_check, self.request.deadline)
            error, scale = self._capped_error(unit, state, state.projection.w, capped)
            if not math.isfinite(scale):
                break
            if best is None or error < best.error:
                scale *= length
                dual = DoubleDouble(state.dual * scale, np.zeros(p.m))
                pulled = capped.rho * state.pull.reshape(-1) * scale
                w = state.projection.w * length
                best = UnevenSolution(capped, w, dual, pulled, error=error)
            if error <= self.aim:
                break
        self.iterations += state.iterations
        return best

    def _capped_error(
        self, unit: Programme, state: Splitting, w: FloatArray, capped: Capped
    ) -> tuple[float, float]:
        """The error of the weights ``w`` and the multipliers of a splitting in capped columns, and
        the scale of these; infinite and not a number where they are of no use.
        """
        dual = state.dual
        # in capped columns exact multipliers pull as the proximal map asks for
        pulled = np.where(capped.is_capped, state.pull.reshape(-1), dual @ unit.D)
        pull = self.energy.size(pulled.reshape(state.W.shape), dual=True)
        size = self.energy.size(state.W)
        if not (pull > 0.0 and size > 0.0 and np.isfinite(dual).all()):
            return math.inf, math.nan
        error = self._error_of(unit, unit.D @ w, dual, pull, size)
        return error, 1.0 if self.request.slack is not None else float(unit.b @ dual) / pull**2

    def _finish_by_newton(self, iterate: Iterate) -> Iterate:
        """The iterate of Newton's method for singular values, as far as it goes."""
        p, W, dual, scale = self._scaled(iterate)
        t = float(np.linalg.norm(W) / np.linalg.norm(p.adjoint(dual)))
        # The step is the ratio of weights to what multipliers pull, so both must be there.
        if not (0.0 < t < math.inf and np.isfinite(p.b).all()):
            return iterate

        def consider(W: FloatArray, dual: FloatArray) -> float:
            """The least error so far."""
            self._consider(*self._unscaled(scale, W, dual), "splitting + Newton")
            assert self.best is not None
            return self.best.error

        lagrangian = newton.AugmentedLagrangian(p, self.norm == Schatten(math.inf), W, dual, t)
        end = newton.finish_by_newton(
            lagrangian, lambda W, dual: self._error(p, W, dual), consider, self._stop()
        )
        return self._unscaled(scale, *end)

    def _finish_by_second_order(self, iterate: Iterate) -> None:
        """Consider what Newton's method or interior points make of weights that meet the
        margins.
        """
        norm = self.norm
        assert isinstance(norm, Lifted)
        p, W, dual, scale = self._scaled(iterate)
        if not np.isfinite(p.b).all():
            return
        if isinstance(norm, RowLengths):
            end = conic.finish_by_cones(
                p, norm, W, lambda W, dual: self._error(p, W, dual), self._stop()
            )
            self._consider(*self._unscaled(scale, *end), "interior points")
            return

        def error(norm: Norm, W: FloatArray, dual: FloatArray) -> float:
            return self._error(p, W, dual, Energy(norm, self.energy.soft))

        def consider(W: FloatArray, dual: FloatArray) -> float:
            return self._consider(*self._unscaled(scale, W, dual), "reweighted Newton")

        reweighted.finish_by_reweighting(p, norm, Iterate(W, dual), error, consider, self._stop())

    def _stop(self) -> Stop:
        """The error and the time at which a method that goes on from here ends."""
        return Stop(self.aim, self.request.deadline, self.request.tol)

    def _scaled(self, iterate: Iterate) -> _Scaled:
        """The programme scaled so that its solution has norm about one, with multipliers of the
        energy.
        """
        p, (W, dual) = self.reduction.programme, iterate
        size, pull = self.energy.size(W), self.energy.size(p.adjoint(dual), dual=True)
        scale = size if size > 0.0 else 1.0
        if self.request.slack is not None:
            dual = dual / scale
        elif pull > 0.0:
            dual = dual / pull
        scaled = replace(p, b=p.b / scale, cap=p.cap / scale)
        return _Scaled(scaled, W / scale, dual, scale)

    def _unscaled(self, scale: float, W: FloatArray, dual: FloatArray) -> Iterate:
        """The iterate of which :meth:`_scaled` made weights and multipliers, with multipliers of
        half the squared norm.
        """
        # Soft multipliers scale with the weights; of hard ones it is the multiple of largest bound.
        dual_scale = scale
        if self.request.slack is None:
            p = self.reduction.programme
            pull = self.energy.size(p.adjoint(dual), dual=True)
            dual_scale = float(p.b @ dual) / pull**2 if pull > 0.0 else 1.0
        return Iterate(scale * W, dual_scale * dual)

    def _error(
        self, p: Programme, W: FloatArray, dual: FloatArray, energy: Energy | None = None
    ) -> float:
        """The larger of the relative gap and the relative violation, in floating point."""
        energy = self.energy if energy is None else energy
        pull, size = energy.size(p.adjoint(dual), dual=True), energy.size(W)
        return self._error_of(p, p.values(W), dual, pull, size)

    def _error_of(
        self, p: Programme, values: FloatArray, dual: FloatArray, pull: float, size: float
    ) -> float:
        """The larger of the relative gap and the relative violation, from the margins, the dual
        norm of what the multipliers pull and the norm of the weights.
        """
        bound = float(p.b @ dual)
        if self.request.slack is not None:
            primal = 0.5 * size * size + float(p.cap @ np.maximum(p.b - values, 0.0))
            return (primal - bound + 0.5 * pull * pull) / primal if primal > 0.0 else math.inf
        ratio = length_ratio(values, p.b)
        # Without a positive ratio no multiple of the weights meets the margins.
        if not (ratio > 0.0 and pull > 0.0 and size > 0.0):
            return math.inf
        # Weights are compared once they are scaled to their margins, as certificates do.
        violation = float((p.b - values / ratio).max()) / float(p.b.max())
        return max(0.0, violation, 1.0 - bound * ratio / (pull * size))

    def _consider(self, W: FloatArray, dual: FloatArray, solver: str, worse: float = 0.0) -> float:
        """Keep weights, in coordinates, and multipliers if they are better certified than the best
        so far, or less than so much ``worse``.

        Returns:
            Their certified error; infinite where they are not finite.
        """
        if not (np.isfinite(W).all() and np.isfinite(dual).all()):
            return math.inf
        return self._certify(self.reduction.lifted(W), dual, solver, worse)

    def _certify(self, W: FloatArray, dual: FloatArray, solver: str, worse: float = 0.0) -> float:
        """Certify and keep like :meth:`_consider`, of weights that are not in coordinates."""
        slack, margins, began = self.request.slack, self.margins, time.monotonic()
        W, dual = self.full.restored(W, self.full.cancelled(dual))
        if slack is None:
            certificate = certify_hard(margins, self.norm, W, dual)
        else:
            certificate = certify_soft(margins, self.norm, W, np.minimum(dual, slack), slack)
        if self.best is None or certificate.error < self.best.error + worse:
            self.best, self.solver = certificate, solver
        self.request = self.request.after_certificate(began)
        return certificate.error

    def _solution(self) -> MarginSolution:
        """The solution of the best certificate."""
        assert self.best is not None
        solution = certified_solution(
            self.margins, self.best, self.request, self.solver, self.iterations
        )
        return _with_rank_and_uniqueness(solution, self.norm, self.best)

    def _is_within_tolerance(self) -> bool:
        return self.best is not None and self.best.error <= self.request.tol

    def _is_done(self) -> bool:
        return self.best is not None and self.best.error <= self.aim


def _with_rank_and_uniqueness(
    solution: MarginSolution, norm: Norm, certificate: Certificate
) -> MarginSolution:
    """The solution with its rank and whether it is the only one, as far as the norm tells."""
    if solution.status != "optimal" or not solution.norm > 0.0:
        return solution
    if isinstance(norm, Entrywise):
        return replace(solution, unique=unique_weights(solution, norm.p))
    if not isinstance(norm, Schatten):
        return replace(solution, unique=True if norm.strictly_convex else None)
    if solution.slack is None:
        spectrum = optimality_checks.check_rank_and_uniqueness(
            solution.margins, certificate, norm.p
        )
        return replace(solution, **spectrum._asdict())
    unique = True if norm.strictly_convex else None
    return replace(solution, rank=optimality_checks.numerical_rank(solution.W), unique=unique)


class Splitting:
    r"""The iterate of the splitting; :meth:`run` improves it in place.

    An iteration takes these steps:

    1. the proximal map of the energy, :math:`V=\operatorname{prox}_{tf}(z)`;
    2. the projection :math:`W=P(2V-z)`;
    3. now and then a new step :math:`t`, which keeps what :math:`z` says of the multipliers;
    4. else the next point from :math:`z+(W-V)` and the points before, together with what the
       projection iterates itself.

    Attributes:
        V: weights after the proximal map: low rank (nuclear) or capped (spectral), margins met only
            in the limit.
        W: weights after the projection.
        t: step of the proximal map.
        iterations: iterations so far.
        pull: what exact multipliers of the energy's programme pull, by the last proximal map.
        projection: the projection.
    """

    def __init__(
        self,
        p: Programme,
        energy: Energy,
        W: FloatArray,
        dual: FloatArray,
        epochs: int = 0,
        start: UnevenSolution | None = None,
        options: SplittingOptions = SPLITTING,
    ) -> None:
        """Begin from weights, ``(d_x, d_z)``, and multipliers of the energy's programme, ``(m,)``.

        Projections take so many ``epochs`` of block ascent; none stands for the exact ones of the
        method of active sets. Where columns are of very different sizes, ``p`` is a programme of
        capped columns, and a ``start`` in it has what these pull.
        """
        self.energy, self._options = energy, options
        self.pull = (
            p.adjoint(dual) if start is None else (start.pull / start.capped.rho).reshape(W.shape)
        )
        self.t = float(np.linalg.norm(W) / np.linalg.norm(self.pull))
        self.V = self.W = W
        self.iterations = 0
        # The fixed point z = V + t G, with a subgradient G of the energy at V.
        self._z = W + self.t * self.pull
        scaled, dual = replace(p, cap=p.cap * self.t), dual * self.t
        self.projection: Projection
        if start is not None:
            self.projection = CappedProjection(scaled, dual, start)
        elif epochs:
            self.projection = AscentProjection(scaled, dual, epochs)
        else:
            self.projection = ActiveSetProjection(scaled, dual)
        anderson = options.anderson
        count = anderson.easy_columns if energy.is_easy else anderson.columns
        self._extrapolation = Extrapolation(count, anderson)

    @property
    def dual(self) -> FloatArray:
        """``(m,)`` multipliers of the energy's programme."""
        dual: FloatArray = self.projection.dual / self.t
        return dual

    def run(self, iterations: int, deadline: float = math.inf) -> None:
        """That many more iterations, or fewer where the clock passes ``deadline``."""
        every, last = self._options.balance_every, self._options.last_balance
        for _ in range(iterations):
            if time.monotonic() > deadline:
                break
            # 1. The proximal map.
            V_before, self.V = self.V, self.energy.nearest(self._z, self.t)
            self.pull = (self._z - self.V) / self.t
            # 2. The projection.
            w_before = self.projection.w if isinstance(self.projection, CappedProjection) else None
            self.W = self.projection.nearest(2.0 * self.V - self._z, deadline)
            residual = self.W - self.V
            self.iterations += 1
            # 3. A new step t.
            factor = 1.0
            if self.iterations % every == 0 and self.iterations <= last:
                factor = self._balance(residual, V_before)
            if factor != 1.0:
                # z - V is t times what multipliers pull, so it grows with t, and they stay.
                self._z = self.V + (self._z + residual - self.V) * factor
                self.t *= factor
                self.projection.rescale(factor)
                self._extrapolation.forget()
            # 4. The next point.
            elif w_before is None:
                self._z = self._extrapolation.advance(self._z, residual)
            else:
                self._advance_with_projection(w_before, residual)

    def _advance_with_projection(self, w_before: FloatArray, residual: FloatArray) -> None:
        """Extrapolate this iteration and that of the projection together, as one point."""
        assert isinstance(self.projection, CappedProjection)
        z = self._z
        # The projection converges too: one combination for both keeps them in step.
        point = np.append(z, w_before)
        change = np.append(residual, self.projection.w - w_before)
        following = self._extrapolation.advance(point, change)
        self.projection.w = following[z.size :]
        self._z = following[: z.size].reshape(z.shape)

    def _balance(self, residual: FloatArray, V_before: FloatArray) -> float:
        """The factor of the step that brings the relative distance of ``V`` and ``W`` and the
        relative change of ``V`` towards each other; 1 where they are near.
        """
        # A large distance asks for a smaller t, which lets the weights keep closer to the margins.
        distance = _relative(residual, self.V)
        change = _relative(self.V - V_before, self._z - self.V)
        if not (distance > 0.0 and change > 0.0):
            return 1.0
        # The root, because a new step moves both, in opposite directions.
        factor = math.sqrt(change / distance)
        least, largest = self._options.least_factor, self._options.largest_factor
        if 1.0 / least < factor < least:
            return 1.0
        return min(max(factor, 1.0 / largest), largest)


def _relative(change: FloatArray, reference: FloatArray) -> float:
    """Ratio of Frobenius norms; 0 where there is nothing to compare with."""
    size = float(np.linalg.norm(reference))
    return float(np.linalg.norm(change)) / size if size > 0.0 else 0.0
