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
:math:`A^\top\lambda=z-V\in t\,\partial f(V)`, so :math:`\lambda` certifies :math:`V`. The
projection is exact, by the dual method of active sets with a factor that is kept between
iterations; where rows are many, it is two warm epochs of block ascent. Iterations are
extrapolated (Anderson 1965; Walker and Ni, *Anderson acceleration for fixed-point iterations*,
2011) as long as their residual does not grow. The better certified of both, :math:`V` and
:math:`W`, is the answer.

A norm that no rotation from the left changes is minimised in the span of the differences, and one
that none from the right changes in the span of the queries. Programmes of few rows run in compiled
code (``native/splitting.cpp``) in the norms that are gauges of entries, singular values or lengths
of rows. Where they converge slowly, Newton's method takes over, for the nuclear and the spectral
norm (:mod:`attsvm.solvers.newton`), and for strictly convex gauges of entries and singular values
(:mod:`attsvm.solvers.reweighted`).
"""

from __future__ import annotations

import ctypes
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
from attsvm.norms.lifts import Entrywise, Lifted, RowLengths, SingularValues
from attsvm.solvers import columns, conic, facts, frobenius, newton, reweighted
from attsvm.solvers.active_set import pivot_or_active_set
from attsvm.solvers.ascent import BlockAscent
from attsvm.solvers.columns import Capped, DoubleDouble, UnevenSolution
from attsvm.solvers.deadline import cholesky_work, steps_per_look, time_for
from attsvm.solvers.facts import unique_weights
from attsvm.solvers.outcomes import HOPELESS, Request, solved, zero_solution
from attsvm.solvers.programme import Programme, equilibrate, reduce
from attsvm.solvers.proofs import Certificate, certify_hard, certify_soft, length_ratio
from attsvm.solvers.solution import MarginSolution

FEW_ROWS = 600  # up to which a programme runs in compiled code
_EXACT_ROWS = 3000  # up to which projections may be exact
# error that is aimed at, in gauges of moderate exponents and in all other norms; in units of the
# tolerance
_SHARP_AIM, _AIM, _ENOUGH = 1e-12, 3e-10, 0.3
_SMALL = 1 << 17  # entries of written-out rows up to which an exact start costs nothing
_ROUGH_START = 3e-2  # gap of a first solution that need not be exact
_POWERS = 6.0  # exponent up to which the p-th power converges sooner than the norm
_EASY_POWERS = 1.05, 6.0  # of entries
_SHARP_POWERS = 1.25, 6.0
# distance to one, or to infinity of the reciprocal, of exponents that begin from linear programmes
_NEARLY = 2e-3
# iterations in compiled code of nuclear and spectral norms, of others that Newton's method or
# interior points end, and else
_FIRST, _BRIEF, _MOST = 300, 1000, 4000
_AT_ONCE = 500  # iterations between two looks at the clock
_ITERATIONS = (150, 500, 2000, 6000)  # of the attempts elsewhere
_CHECK_EVERY = 5
_STALL = 6  # checks within which the first attempt must halve the error
_MEMORY, _EASY = 40, 10  # columns of the extrapolation, and where these are enough
_RIDGE = 1e-12  # of its least squares
# iterations in which the residual must fall, to which share, or so many are not extrapolated
_WINDOW, _FALLEN, _PLAIN = 60, 0.7, 20
_EPOCHS, _SWEEPS = (2, 40), 3  # of projections that are not exact, first and later ones
_BALANCE_EVERY, _LAST_BALANCE = 10, 400
_LEAST_FACTOR, _LARGEST_FACTOR = 3.0**0.5, 4.0  # by which the step changes
_ROUNDED = 1e-15  # relative gaps are rounded to about so much
_ROUNDING = 4e-15  # of the margin of a unit row, beside weights of size one


@np.errstate(over="ignore")  # what leaves float64 on the way is certified all the same
def solve(margins: Margins, norm: Norm, request: Request) -> MarginSolution:
    """Solve the programme of this module; see :func:`attsvm.solvers.max_margin`."""
    if not (margins.rhs > 0).any():
        return zero_solution(margins, norm, request)
    return _Search(margins, norm, request).run()


class Energy:
    """What is minimised in place of a norm: the norm itself, its half square, or for a gauge of
    moderate exponent p its p-th power over p. Exponents far from two are not ``easy``, and points
    of linear programmes.
    """

    def __init__(self, norm: Norm, soft: bool) -> None:
        self.norm, self.soft = norm, soft
        self.gauge: native.GaugeFunction | None = None
        self._kept: FloatArray | None = None
        self.easy = not isinstance(norm, Entrywise) or _EASY_POWERS[0] <= norm.p <= _EASY_POWERS[1]
        if isinstance(norm, Lifted):
            lifts = {Entrywise: 0, SingularValues: 1, RowLengths: 2}
            lift = next(number for kind, number in lifts.items() if isinstance(norm, kind))
            degree = 2.0 if soft else norm.p if norm.p <= _POWERS else 1.0
            self.gauge = native.GaugeFunction(lift, norm.p, degree)

    def nearest(self, X: FloatArray, t: float) -> FloatArray:
        """The proximal point of ``t`` times the energy."""
        if self.gauge is None:
            return self._of_the_norm(X, t)
        X = np.ascontiguousarray(X)
        V = np.empty_like(X)
        given = address(X, np.float64, *X.shape), t, self._state(X)
        found = library.proximal(self.gauge, *X.shape, *given, address(V, np.float64, *X.shape))
        return V if found >= 0.0 else X

    def size(self, X: FloatArray, dual: bool = False) -> float:
        """The norm, or the dual norm."""
        if self.gauge is None:
            return float(self.norm.dual_value(X) if dual else self.norm.value(X))
        X = np.ascontiguousarray(X)
        given = address(X, np.float64, *X.shape), int(dual), self._state(X)
        return float(library.measure(self.gauge, *X.shape, *given))

    def _state(self, X: FloatArray) -> int:
        """What compiled code keeps from one matrix to the next."""
        if self._kept is None:
            self._kept = np.zeros(library.measure_room(*X.shape))
        return address(self._kept, np.float64, len(self._kept))

    def _of_the_norm(self, X: FloatArray, t: float) -> FloatArray:
        """By the proximal map of the norm; of the half square with the threshold ``s`` at which
        ``s = t * ||V||``, by secants inside a bracket.
        """
        if not self.soft:
            return np.asarray(self.norm.prox(X, t))
        low, high = 0.0, t * float(self.norm.value(X))
        below, above = -high, high - t * float(self.norm.value(self.norm.prox(X, high)))
        V = X
        for _ in range(100):
            if not high - low > 1e-15 * high:
                break
            s = (low * above - high * below) / (above - below)
            V = np.asarray(self.norm.prox(X, s))
            off = s - t * float(self.norm.value(V))
            if off < 0.0:  # halving the other end keeps it from staying
                low, below, above = s, off, 0.5 * above
            else:
                high, above, below = s, off, 0.5 * below
            if abs(off) <= 1e-15 * s:
                break
        return V


_scratch = threading.local()


def _room(size: int) -> FloatArray:
    """This thread's scratch memory of so many numbers or more."""
    room = getattr(_scratch, "room", None)
    if room is None or len(room) < size:
        room = _scratch.room = np.empty(size)
    memory: FloatArray = room
    return memory


class _Point(NamedTuple):
    """Weights and multipliers of the programme in coordinates."""

    W: FloatArray
    dual: FloatArray

    def usable(self) -> bool:
        """Whether there is something to go on from."""
        return all(each.any() and bool(np.isfinite(each).all()) for each in self)


class _Search:
    """One solve: the programme in coordinates, the best certificate so far, and the clock."""

    def __init__(self, margins: Margins, norm: Norm, request: Request) -> None:
        self.margins, self.norm, self.request = margins, norm, request
        self.full = equilibrate(margins, request.slack, request.opposite)
        self.reduction = reduce(self.full, *norm.invariant)
        self.energy = Energy(norm, request.slack is not None)
        sharp = isinstance(norm, Lifted) and _SHARP_POWERS[0] <= norm.p <= _SHARP_POWERS[1]
        self.aim = min(_ENOUGH * request.tol, _SHARP_AIM if sharp else _AIM)
        self.best: Certificate | None = None
        self.solver, self.iterations = "splitting", 0
        exponent = norm.p if isinstance(norm, Schatten) else 0.0
        self.spectra = request.slack is None and exponent in (1.0, math.inf)
        p = self.reduction.programme
        self.curved = reweighted.curved(norm) and p.m * p.dof <= reweighted.LARGEST
        self.conic = isinstance(norm, RowLengths) and norm.p in (1.0, math.inf) and conic.fits(p)

    def run(self) -> MarginSolution:
        """The best certified solution that the stages reach."""
        p = self.reduction.programme
        warm = self._warm() or self._linear()
        if self._good():
            return self._answer()
        few = self.energy.gauge is not None and p.m <= FEW_ROWS
        most = _FIRST if self.spectra else _BRIEF if self.curved or self.conic else _MOST
        point = self._compiled(warm, most) if few else None
        if point is not None and self.request.slack is not None and self.norm.strictly_convex:
            self._pointed(point.dual)
        size = None if self._good() else columns.uneven_columns(self.full, columns.OPTIONS.bits)
        if size is not None and self._uneven(size):
            return self._answer()
        if warm is not None and not few:
            with np.errstate(all="ignore"):
                self._attempt(warm, 0, 2 * _ITERATIONS[0])
        if self._good():
            return self._answer()
        ended = 0 if few else 1  # attempt after which splitting has had its time
        start = self._frobenius() if point is None else None
        if start is not None:
            point = self._point_of(start)
            if point is None:
                return start
            self._consider(*point, start.solver)
            if start.status == "almost infeasible" and start.gap > HOPELESS:
                return self._answer()
        assert point is not None
        # A method that loses its way leaves float64, and then nothing is kept of it.
        with np.errstate(all="ignore"):
            for attempt, most in enumerate(_ITERATIONS):
                if self._late():
                    break
                if point.usable() and (attempt > 0 or not few):
                    point = self._attempt(point, attempt, most)
                if self._done() or self._late():
                    break
                if self.spectra and point.usable():
                    point = self._newton(point)
                elif (self.curved or self.conic) and attempt == ended:
                    start = self._frobenius() if start is None else start
                    if start.status == "infeasible":
                        return start
                    self._second_order(self._point_of(start) or point)
                if self._good() or self._late() or not point.usable():
                    break
        if size is None and not (self._good() or self._late()):
            size = columns.uneven_columns(self.full, columns.OPTIONS.last)
            if size is not None:
                self._uneven(size)
        return self._answer()

    def _linear(self) -> _Point | None:
        """Of entries with an exponent next to one or infinity, the solution of the linear
        programme; its gap is about the distance times the logarithm of the number of entries.
        """
        norm, limit = self.norm, self.request.slack
        if not isinstance(norm, Lp) or limit is not None:
            return None
        if 1.0 + _NEARLY < norm.p < 1.0 / _NEARLY:
            return None
        from attsvm.solvers import polyhedral

        end = Lp(1.0 if norm.p < 2.0 else math.inf)
        found = polyhedral.solve(self.margins, end, replace(self.request, warm_start=None))
        point = self._point_of(found)
        if point is not None:
            self._consider(*point, found.solver)
        return point

    def _warm(self) -> _Point | None:
        """The caller's weights and multipliers."""
        W, dual = self.request.warm_weights, self.request.warm_start
        if W is None or dual is None or not (W.any() and dual.any()):
            return None
        W = self.reduction.coordinates(np.ldexp(W, -self.full.weight_exponent))
        return _Point(W, self.full.scaled_dual(dual)) if np.abs(W).max() > 0.0 else None

    def _point_of(self, found: MarginSolution) -> _Point | None:
        """Weights of another norm with their multipliers, if there are any."""
        if not found.has_weights or not np.abs(found.W).max() > 0.0:
            return None
        W = self.reduction.coordinates(np.ldexp(found.W, -self.full.weight_exponent))
        return _Point(W, self.full.scaled_dual(found.dual))

    def _frobenius(self) -> MarginSolution:
        """Weights to start from, or why there are none: the solution in the Frobenius norm, to a
        few digits where all digits take several systems of many unknowns.
        """
        p = self.full
        precise = replace(self.request, tol=1e-9, rough=False, warm_start=None, warm_weights=None)
        if p.m * p.dof > _SMALL and p.hard and bool((p.b > 0.0).all()):
            rough = replace(precise, tol=_ROUGH_START, rough=True)
            start = frobenius.solve(self.margins, Frobenius(), rough)
            if start.status in ("optimal", "infeasible"):
                return start
        return frobenius.solve(self.margins, Frobenius(), precise)

    def _compiled(self, start: _Point | None, most: int) -> _Point | None:
        """Up to so many iterations in compiled code; None where there are no weights yet."""
        p = self.reduction.programme
        shape = p.D.shape[1], p.Z.shape[1]
        free = np.zeros(p.m, np.uint8)
        rows = native.ProgrammeRows(p.D, p.Z, p.b, p.cap, p.offsets, free)
        order, side = np.empty(p.m, np.int64), np.zeros(p.m, np.uint8)
        W, dual = np.zeros(shape), np.zeros(p.m)
        room = _room(library.splitting_room(p.m, len(p.Z), *shape))
        state = native.Iterate(
            *(W, dual, room),
            target=self.aim,
            enough=0.5 * self.request.tol,
            easy=self.energy.easy,
        )
        if start is not None:
            W[:], dual[:], state.warm = start.W, start.dual, 1
        places = address(order, np.int64, p.m), address(side, np.uint8, p.m)
        while most > 0:
            state.most = min(most, _AT_ONCE)
            outcome = library.splitting(rows, self.energy.gauge, *places, state)
            self.iterations += state.iterations
            most -= _AT_ONCE
            if not state.error < math.inf:
                return None
            if outcome == native.SOLVED or self._late():
                break
            state.warm = 1
        self._consider(W, dual, "splitting")
        return _Point(W, dual)

    def _pointed(self, dual: FloatArray) -> None:
        """Of soft margins, the weights that the multipliers point to: exact where these are."""
        pulled = self.full.restored(np.zeros((1, 1)), self.full.cancelled(dual))[1]
        pulled = self.margins.adjoint(np.minimum(pulled, self.request.slack or 0.0))
        W = float(self.norm.dual_value(pulled)) * np.asarray(self.norm.steepest(pulled))
        W = self.reduction.coordinates(np.ldexp(W, -self.full.weight_exponent))
        self._consider(W, dual, "splitting", _ROUNDED)

    def _attempt(self, start: _Point, attempt: int, most: int) -> _Point:
        """Up to so many iterations of splitting, until the error is what is aimed at, or on the
        first attempt no longer falls.
        """
        p, W, dual = self._normalised(start)
        exact = p.m <= FEW_ROWS or (
            attempt > 0 and p.m <= _EXACT_ROWS and time_for(_exact_work(p), self.request.deadline)
        )
        epochs = 0 if exact else _EPOCHS[attempt > 0]
        state = Splitting(p, self.energy, W, dual, epochs)
        met: list[float] = []
        while state.iterations < most and not self._late():
            state.run(_CHECK_EVERY, self.request.deadline)
            met.append(self._error(p, state.V, state.dual))
            if exact and met[-1] > self.aim:
                met[-1] = min(met[-1], self._error(p, state.W, state.dual))
            if met[-1] <= self.aim:
                break
            stalled = min(met[-_STALL:]) > 0.5 * min(met[:-_STALL], default=math.inf)
            if attempt == 0 and self.spectra and stalled:
                break
        self.iterations += state.iterations
        found = self._restored(state.V, state.dual)
        self._consider(*found, "splitting")
        if exact and not self._done():
            self._consider(*self._restored(state.W, state.dual), "splitting")
        return found

    def _uneven(self, size: IntArray) -> bool:
        """Splitting around the Frobenius solution where columns are of very different sizes;
        whether that comes near enough.
        """
        p = self.full
        start = columns.solve_uneven(p, size, self.request.deadline, pivot_or_active_set)
        if start is None or start.contradiction:
            return False
        start = columns.shorten(p, size, start, self.request.deadline, pivot_or_active_set)
        with np.errstate(all="ignore"):
            for attempt, most in enumerate(_ITERATIONS):
                found = self._around(start, most, attempt % 2 == 0)
                if found is None:
                    break
                start = columns.sharpen(p, found)
                for dual in columns.rounded_multipliers(p, start, self.request.deadline):
                    self._certify(start.W.reshape(p.shape), dual, "splitting")
                    if self._good() or self._late():
                        break
                if self._done() or self._late() or found.error <= self.aim:
                    break
        return self._good()

    def _around(self, start: UnevenSolution, most: int, balanced: bool) -> UnevenSolution | None:
        """The best of so many iterations in capped columns; ``None`` where there is none."""
        at, p, slack = start.capped, self.full, self.request.slack
        W = (at.rho * start.w).reshape(p.shape)
        length = self.energy.size(W)
        pull = self.energy.size((start.pull / at.rho).reshape(p.shape), dual=True)
        share = pull if slack is None else length
        if not (0.0 < length < math.inf and 0.0 < share < math.inf):
            return None
        unit = replace(at.programme, b=at.programme.b / length, cap=at.programme.cap / length)
        state = Splitting(
            unit,
            self.energy,
            W / length,
            start.dual.high / share,
            0,
            start._replace(w=start.w / length, pull=start.pull / share),
        )
        if not balanced:
            state.balanced = 0
        best: UnevenSolution | None = None
        while state.iterations < most and not self._late():
            state.run(_CHECK_EVERY, self.request.deadline)
            error, scale = self._apart(unit, state, at)
            if not math.isfinite(scale):
                break
            if best is None or error < best.error:
                scale *= length
                dual = DoubleDouble(state.dual * scale, np.zeros(p.m))
                pulled = at.rho * state.pull.reshape(-1) * scale
                assert state.margins.own is not None
                best = UnevenSolution(at, state.margins.own * length, dual, pulled, error=error)
            if error <= self.aim:
                break
        self.iterations += state.iterations
        return best

    def _apart(self, unit: Programme, state: Splitting, at: Capped) -> tuple[float, float]:
        """The error of the projection where columns are of very different sizes, and the scale of
        its multipliers.
        """
        dual, w = state.dual, state.margins.own
        assert w is not None
        # in capped columns exact multipliers pull as the proximal map asks for
        pulled = np.where(at.is_capped, state.pull.reshape(-1), dual @ unit.D).reshape(
            state.W.shape
        )
        pull, size = self.energy.size(pulled, dual=True), self.energy.size(state.W)
        if not (pull > 0.0 and size > 0.0 and np.isfinite(dual).all()):
            return math.inf, math.nan
        error = self._figure(unit, unit.D @ w, dual, pull, size)
        return error, 1.0 if self.request.slack is not None else float(unit.b @ dual) / pull**2

    def _newton(self, point: _Point) -> _Point:
        """Newton's method from a point, as far as it goes."""
        p, W, dual = self._normalised(point)
        t = float(np.linalg.norm(W) / np.linalg.norm(p.adjoint(dual)))
        if not (0.0 < t < math.inf and np.isfinite(p.b).all()):
            return point

        def consider(W: FloatArray, dual: FloatArray) -> float:
            self._consider(*self._restored(W, dual), "splitting + Newton")
            assert self.best is not None
            return self.best.error

        W, dual = newton.finish(
            p,
            self.norm == Schatten(math.inf),
            (W, dual, t),
            lambda W, dual: self._error(p, W, dual),
            consider,
            (self.aim, self.request.tol, self.request.deadline),
        )
        return self._restored(W, dual)

    def _second_order(self, point: _Point) -> None:
        """Newton's method or interior points from weights that meet the margins."""
        norm, stop = self.norm, (self.aim, self.request.deadline)
        assert isinstance(norm, Lifted)
        p, W, dual = self._normalised(point)
        if not np.isfinite(p.b).all():
            return
        if isinstance(norm, RowLengths):
            found = conic.finish(p, norm, W, lambda W, dual: self._error(p, W, dual), stop)
            self._consider(*self._restored(*found), "interior points")
            return

        def error(norm: Norm, W: FloatArray, dual: FloatArray) -> float:
            return self._error(p, W, dual, Energy(norm, self.energy.soft))

        def consider(W: FloatArray, dual: FloatArray) -> float:
            return self._consider(*self._restored(W, dual), "reweighted Newton")

        reweighted.finish(p, norm, (W, dual), error, consider, stop)

    def _restored(self, W: FloatArray, dual: FloatArray) -> _Point:
        """The inverse of :meth:`_normalised`, with multipliers of half the squared norm."""
        unit = self.scale
        if self.request.slack is None:
            p = self.reduction.programme
            pull = self.energy.size(p.adjoint(dual), dual=True)
            unit = float(p.b @ dual) / pull**2 if pull > 0.0 else 1.0
        return _Point(self.scale * W, unit * dual)

    def _normalised(self, point: _Point) -> tuple[Programme, FloatArray, FloatArray]:
        """The programme scaled so that its solution has norm about one, with multipliers of the
        energy; :attr:`scale` is that of the weights.
        """
        p, (W, dual) = self.reduction.programme, point
        size, pull = self.energy.size(W), self.energy.size(p.adjoint(dual), dual=True)
        self.scale = scale = size if size > 0.0 else 1.0
        if self.request.slack is not None:
            dual = dual / scale
        elif pull > 0.0:
            dual = dual / pull
        return replace(p, b=p.b / scale, cap=p.cap / scale), W / scale, dual

    def _error(
        self, p: Programme, W: FloatArray, dual: FloatArray, energy: Energy | None = None
    ) -> float:
        """The larger of the relative gap and the relative violation, in floating point."""
        energy = self.energy if energy is None else energy
        pull, size = energy.size(p.adjoint(dual), dual=True), energy.size(W)
        return self._figure(p, p.values(W), dual, pull, size)

    def _figure(
        self, p: Programme, values: FloatArray, dual: FloatArray, pull: float, size: float
    ) -> float:
        """The same of margins, dual norm and norm."""
        top = float(p.b @ dual)
        if self.request.slack is not None:
            primal = 0.5 * size * size + float(p.cap @ np.maximum(p.b - values, 0.0))
            return (primal - top + 0.5 * pull * pull) / primal if primal > 0.0 else math.inf
        ratio = length_ratio(values, p.b)
        if not (ratio > 0.0 and pull > 0.0 and size > 0.0):
            return math.inf
        missed = float((p.b - values / ratio).max()) / float(p.b.max())
        return max(0.0, missed, 1.0 - top * ratio / (pull * size))

    def _consider(self, W: FloatArray, dual: FloatArray, solver: str, worse: float = 0.0) -> float:
        """Keep weights and multipliers if they are better certified than what is there, or less
        than so much ``worse``; the error of these.
        """
        if not (np.isfinite(W).all() and np.isfinite(dual).all()):
            return math.inf
        return self._certify(self.reduction.lifted(W), dual, solver, worse)

    def _certify(self, W: FloatArray, dual: FloatArray, solver: str, worse: float = 0.0) -> float:
        """The same with weights that are not in coordinates."""
        slack, margins, began = self.request.slack, self.margins, time.monotonic()
        lifted, dual = self.full.restored(W, self.full.cancelled(dual))
        if slack is None:
            found = certify_hard(margins, self.norm, lifted, dual)
        else:
            found = certify_soft(margins, self.norm, lifted, np.minimum(dual, slack), slack)
        if self.best is None or found.error < self.best.error + worse:
            self.best, self.solver = found, solver
        self.request = self.request.after_certificate(began)
        return found.error

    def _answer(self) -> MarginSolution:
        assert self.best is not None
        solution = solved(self.margins, self.best, self.request, self.solver, self.iterations)
        return _with_facts(solution, self.norm, self.best)

    def _good(self) -> bool:
        return self.best is not None and self.best.error <= self.request.tol

    def _done(self) -> bool:
        return self.best is not None and self.best.error <= self.aim

    def _late(self) -> bool:
        return self.request.late


def _with_facts(solution: MarginSolution, norm: Norm, found: Certificate) -> MarginSolution:
    """The solution with its rank and whether it is the only one, as far as the norm tells."""
    if solution.status != "optimal" or not solution.norm > 0.0:
        return solution
    if isinstance(norm, Entrywise):
        return replace(solution, unique=unique_weights(solution, norm.p))
    if not isinstance(norm, Schatten):
        return replace(solution, unique=True if norm.strictly_convex else None)
    if solution.slack is None:
        return replace(solution, **facts.facts(solution.margins, found, norm.p)._asdict())
    unique = True if norm.strictly_convex else None
    return replace(solution, rank=facts.numerical_rank(solution.W), unique=unique)


class Splitting:
    r"""The iterate; :meth:`run` improves it in place.

    Attributes:
        V: weights after the proximal map: low rank (nuclear) or capped (spectral), margins met only
            in the limit.
        W: weights after the projection.
        t: step of the proximal map.
        iterations: iterations so far.
        balanced: up to how many of them the step may change.
        pull: what exact multipliers of the energy's programme pull, by the last proximal map.
        margins: the projection.
    """

    def __init__(
        self,
        p: Programme,
        energy: Energy,
        W: FloatArray,
        dual: FloatArray,
        epochs: int,
        start: UnevenSolution | None = None,
    ) -> None:
        """Start from weights, ``(d_x, d_z)``, and multipliers of the energy's programme, ``(m,)``.

        Projections take so many epochs of block ascent; none stands for the exact ones of the
        method of active sets. Where columns are of very different sizes, ``p`` is a programme of
        capped columns, and a ``start`` in it has what these pull.
        """
        self.energy = energy
        pulled = (
            p.adjoint(dual) if start is None else (start.pull / start.capped.rho).reshape(W.shape)
        )
        self.pull = pulled
        self.t = float(np.linalg.norm(W) / np.linalg.norm(pulled))
        self.V = self.W = W
        self.iterations, self.balanced = 0, _LAST_BALANCE
        self._z = W + self.t * pulled
        scaled = replace(p, cap=p.cap * self.t)
        dual = dual * self.t
        self.margins: _Ascent | _ActiveSet | _Uneven
        if start is not None:
            self.margins = _Uneven(scaled, dual, start)
        else:
            self.margins = _Ascent(scaled, dual, epochs) if epochs else _ActiveSet(scaled, dual)
        self._extrapolation = _Extrapolation(_EASY if energy.easy else _MEMORY)

    @property
    def dual(self) -> FloatArray:
        """``(m,)`` multipliers of the energy's programme."""
        scaled: FloatArray = self.margins.dual / self.t
        return scaled

    def run(self, iterations: int, deadline: float = math.inf) -> None:
        """That many more iterations, or fewer where the clock passes ``deadline``."""
        for _ in range(iterations):
            if time.monotonic() > deadline:
                break
            before, self.V = self.V, self.energy.nearest(self._z, self.t)
            self.pull = (self._z - self.V) / self.t
            own = self.margins.own
            self.W = self.margins.nearest(2.0 * self.V - self._z, deadline)
            residual = self.W - self.V
            self.iterations += 1
            factor = 1.0
            if self.iterations % _BALANCE_EVERY == 0 and self.iterations <= self.balanced:
                factor = self._balance(residual, before)
            if factor == 1.0:
                if own is None:
                    self._z = self._extrapolation.advanced(self._z, residual)
                else:
                    self._z = self._advanced(own, residual)
                continue
            self._z = self.V + (self._z + residual - self.V) * factor
            self.t *= factor
            self.margins.rescale(factor)
            self._extrapolation.forget()

    def _advanced(self, own: FloatArray, residual: FloatArray) -> FloatArray:
        """The next point, of this iteration and of that of the projection, together."""
        assert self.margins.own is not None
        z = self._z
        point = np.append(z, own)
        moved = np.append(residual, self.margins.own - own)
        found = self._extrapolation.advanced(point, moved)
        self.margins.own = found[z.size :]
        return found[: z.size].reshape(z.shape)

    def _balance(self, residual: FloatArray, before: FloatArray) -> float:
        """By which the step must change to bring the relative distance of the copies and the
        relative change of the multipliers towards each other.
        """
        # A large distance asks for a smaller t, which lets the weights keep closer to the margins.
        apart = _relative(residual, self.V)
        moved = _relative(self.V - before, self._z - self.V)
        if not (apart > 0.0 and moved > 0.0):
            return 1.0
        factor = math.sqrt(moved / apart)
        if 1.0 / _LEAST_FACTOR < factor < _LEAST_FACTOR:
            return 1.0
        return min(max(factor, 1.0 / _LARGEST_FACTOR), _LARGEST_FACTOR)


def _relative(change: FloatArray, size: FloatArray) -> float:
    """Ratio of norms; 0 where there is nothing to compare with."""
    whole = float(np.linalg.norm(size))
    return float(np.linalg.norm(change)) / whole if whole > 0.0 else 0.0


def _exact_work(p: Programme) -> float:
    """Multiply-adds in the time that it takes to begin exact projections: a Gram matrix, which
    waits for memory, and a factor of the rows that may be free.
    """
    return 300.0 * p.m**2 + 2.0 * cholesky_work(min(p.m, p.dof))


class _Extrapolation:
    """Anderson's: the combination of the last points whose residual is least. Where a residual
    grows after it, the plain step is taken instead; where none falls for long, plain steps go on
    for a while.
    """

    def __init__(self, memory: int) -> None:
        self._memory = memory
        self._before = self._least = self._window = math.inf
        self._seen = self._plain = 0
        self.forget()

    def forget(self) -> None:
        """Begin again with the next point."""
        self._last: tuple[FloatArray, FloatArray] | None = None
        self._next: FloatArray | None = None
        self._count = 0

    def advanced(self, z: FloatArray, residual: FloatArray) -> FloatArray:
        """The next point."""
        size = float(np.linalg.norm(residual))
        if self._next is not None and size > 2.0 * self._before:
            found, self._before = self._next, math.inf
            self.forget()
            return found
        self._before, self._window = size, min(self._window, size)
        self._seen += 1
        if self._seen % _WINDOW == 0:
            stuck = self._window > _FALLEN * self._least
            self._least = math.inf if stuck else min(self._least, self._window)
            self._window = math.inf
            if stuck:
                self.forget()
                self._plain = _PLAIN
        self._remember(z, residual)
        plain: FloatArray = z + residual
        self._next = None
        self._plain -= 1
        held = min(self._count, self._memory)
        if held < 2 or self._plain >= 0:
            return plain
        normal = self._normal[:held, :held].copy()
        normal[np.diag_indices(held)] += _RIDGE * np.trace(normal) + 1e-300
        shares = np.linalg.solve(normal, self._changes[:held] @ residual.reshape(-1))
        self._next = plain
        extrapolated: FloatArray = plain - (shares @ self._moves[:held]).reshape(z.shape)
        return extrapolated

    def _remember(self, z: FloatArray, residual: FloatArray) -> None:
        """The change since the last point, in place of the oldest."""
        if self._last is not None:
            if self._count == 0:
                self._changes = np.empty((self._memory, z.size))
                self._moves = np.empty((self._memory, z.size))
                self._normal = np.empty((self._memory, self._memory))
            at = self._count % self._memory
            self._count += 1
            held = min(self._count, self._memory)
            np.subtract(residual, self._last[1], out=self._changes[at].reshape(z.shape))
            np.subtract(z, self._last[0], out=self._moves[at].reshape(z.shape))
            self._moves[at] += self._changes[at]
            products = self._changes[:held] @ self._changes[at]
            self._normal[at, :held] = self._normal[:held, at] = products
        self._last = z, residual


class _Ascent:
    """Projections by epochs of block ascent from the multipliers of the last one."""

    own: FloatArray | None = None  # what the projection iterates itself

    def __init__(self, p: Programme, dual: FloatArray, epochs: int) -> None:
        self.programme, self._ascent, self._epochs = p, BlockAscent(p, dual), epochs

    @property
    def dual(self) -> FloatArray:
        return self._ascent.dual

    def nearest(self, centre: FloatArray, deadline: float = math.inf) -> FloatArray:
        W: FloatArray = centre + self.programme.adjoint(self.dual)
        for _ in range(self._epochs):
            if time.monotonic() > deadline:
                break
            self._ascent.sweep(self.dual, W, _SWEEPS)
        return W

    def rescale(self, factor: float) -> None:
        self._ascent.dual *= factor
        self.programme.cap[:] *= factor


class _ActiveSet:
    """Exact projections, with the factor of the free rows kept between them; of rows of length
    one.
    """

    own: FloatArray | None = None

    def __init__(self, p: Programme, dual: FloatArray) -> None:
        length = np.sqrt(p.diagonal)
        self._length = np.where(length > 0.0, length, 1.0)
        every = np.arange(p.m)
        G = np.ascontiguousarray(p.gram(every))
        G /= self._length[:, None]
        G /= self._length
        # of two opposite rows the first stands for both, with a multiplier of any sign
        other = -np.ones(p.m, np.int64) if p.opposite is None else p.opposite
        self._first = np.flatnonzero(every < other)
        self._second = other[self._first]
        G[self._second] = G[:, self._second] = 0.0
        self._G, self._cap = G, p.cap * self._length
        self._free, self._slope = np.zeros(p.m, np.uint8), np.empty(p.m)
        self._free[self._first] = 1
        self.programme, self._multipliers = p, dual * self._length
        self._multipliers[self._first] -= self._multipliers[self._second]
        self._multipliers[self._second] = 0.0
        self._set, self._steps = native.ActiveSet(p.m, p.dof), ctypes.c_int64()
        self._places = address(G, np.float64, p.m, p.m)
        library.active_set_begin(self._places, *self._box(), self._at(self._multipliers))

    @property
    def dual(self) -> FloatArray:
        unit: FloatArray = self._multipliers / self._length
        unit[self._second] = np.maximum(-unit[self._first], 0.0)
        unit[self._first] = np.maximum(unit[self._first], 0.0)
        return unit

    def nearest(self, centre: FloatArray, deadline: float = math.inf) -> FloatArray:
        p = self.programme
        sides = np.ascontiguousarray((p.b - p.values(centre)) / self._length)
        size = max(1.0, float(np.abs(centre).max()))
        left = most = 4 * p.m + 100
        per_look = steps_per_look(p.m, deadline, most)
        while left > 0:
            outcome = library.active_set(
                self._places,
                self._at(sides),
                *self._box(),
                _ROUNDING * size,
                min(per_look, left),
                self._at(self._multipliers),
                self._at(self._slope),
                self._steps,
            )
            left -= per_look
            if outcome != native.STOPPED or time.monotonic() > deadline:
                break
        W: FloatArray = centre + p.adjoint(self.dual)
        return W

    def rescale(self, factor: float) -> None:
        self._multipliers *= factor
        self._cap *= factor

    def _box(self) -> tuple[int, int, native.ActiveSet]:
        return self._at(self._cap), address(self._free, np.uint8, len(self._free)), self._set

    def _at(self, numbers: FloatArray) -> int:
        return address(numbers, np.float64, len(numbers))


class _Uneven:
    r"""Exact projections where columns are of very different sizes: one proximal step of
    :mod:`attsvm.solvers.columns` each, which converges together with the splitting.
    """

    def __init__(self, p: Programme, dual: FloatArray, start: UnevenSolution) -> None:
        self._rho = start.capped.rho
        self._away = 1.0 - self._rho**2
        self.own: FloatArray | None = start.w
        self._projection = _ActiveSet(p, dual)

    @property
    def dual(self) -> FloatArray:
        return self._projection.dual

    def nearest(self, centre: FloatArray, deadline: float = math.inf) -> FloatArray:
        assert self.own is not None
        around = self._rho * centre.reshape(-1) + self._away * self.own
        self.own = w = self._projection.nearest(around[:, None], deadline)[:, 0]
        return (self._rho * w).reshape(centre.shape)

    def rescale(self, factor: float) -> None:
        self._projection.rescale(factor)
