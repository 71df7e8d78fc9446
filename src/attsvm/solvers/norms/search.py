r"""The search for a hard margin in a norm that is known by its energy: stages, splitting, Newton
steps.

The Frobenius solution gives the verdict on feasibility, which does not depend on the norm, and the
first weights. From there splitting goes as far as it gains quickly, and semismooth Newton steps
with proximal multipliers finish. Exponents far from two are reached over a few in between. Between
stages the programme is rescaled so that its solution has norm one, which keeps :math:`|w|^{p-1}` in
range at
:math:`p=200`. The best certified answer is returned.
"""

from __future__ import annotations

import math
import time
from dataclasses import replace

import numpy as np

from attsvm.data import FloatArray, IntArray
from attsvm.geometry import Frobenius, Norm
from attsvm.margins import Margins
from attsvm.solvers import frobenius
from attsvm.solvers.answers.outcomes import HOPELESS, Request, solved
from attsvm.solvers.answers.solution import MarginSolution
from attsvm.solvers.methods.dual_newton import LARGEST_SYSTEM, DualNewton
from attsvm.solvers.methods.energies import Energy
from attsvm.solvers.norms.projection import is_narrow
from attsvm.solvers.norms.splitting import Splitting
from attsvm.solvers.programme.choice import SMALL
from attsvm.solvers.programme.programme import Programme, equilibrate
from attsvm.solvers.proofs import Certificate, certify_hard, lower_bound, scale_rows

# accuracies that are aimed at whatever the tolerance, the second for exponents far from two
_AIM, _HARD_AIM = 1e-12, 1e-10
_CHUNK = 10  # iterations of splitting between certificates
_MOST_CHUNKS, _LAST_CHUNKS = 40, 200
_SUPPORTING = 1e-9  # relative size of a multiplier whose row is met with equality
_NEAR = 1e-3  # error from which Newton steps converge at once, in about this number:
_NEWTON_STEPS = 8
_SLOW = 2.0  # gain of a chunk of splitting below which it is given up
_FAR = 0.1  # error of a warm start from which a chunk of splitting pays first
_WARM_REACH, _WARM_GROWTH = 1e4, 30.0
_OUTER, _INNER = 60, 40
_GROWTH = 4.0
_LOOSE = 4.0  # ratio of the bounds beyond which the weights say nothing about the scale
_PATIENCE = 4  # outer steps without a better certificate


class Search:
    """One solve: the stages, the best certificate so far, and the clock.

    What it knows of the norm are its value, its dual value and its energy. A family of norms states
    the energy, and what else it knows in the methods behind :meth:`_energy`.
    """

    def __init__(self, margins: Margins, norm: Norm, request: Request) -> None:
        self.margins, self.norm, self.request = margins, norm, request
        self.deadline = (
            math.inf if request.max_seconds is None else time.monotonic() + request.max_seconds
        )
        self.programme = equilibrate(margins, request.slack, request.opposite)
        self.best: Certificate | None = None
        self.solver = ""
        self.iterations = 0
        self.aim = _AIM if self._gentle(norm) else _HARD_AIM

    def run(self) -> MarginSolution:
        """The best certified solution that the stages reach."""
        warm = self._warm()
        if warm is not None and self._resumed(*warm):
            return self._answer()
        if not self._leads():
            warm = None
        start = frobenius.solve(self.margins, Frobenius(), replace(self.request, warm_start=None))
        if not start.has_weights:
            return start
        p = self.programme
        W, dual = self._start(start)
        self._consider(p, W, dual, start.solver)
        if start.status == "almost infeasible" and start.gap > HOPELESS:
            return self._answer()
        exact = self.request.slack is None and p.m * p.dof <= SMALL
        if exact and start.gap < 1.0 and is_narrow(W):
            self._narrow()
            if self._good():
                return self._answer()
        if start.gap < 1.0:
            if warm is None:
                for norm, rough in self._stages():
                    W, dual = self._rough(W, dual, norm, rough)
                    self._consider(p, W, dual, "dual Newton")
            else:
                W, dual = warm
            self._finish(W, dual)
            if not self._done():
                self._tighten()
            if exact and not (self._good() or self._late()):
                self._narrow()
        return self._answer()

    def _warm(self) -> tuple[FloatArray, FloatArray] | None:
        """The caller's multipliers and weights, or else those they point to; ``None`` for exponents
        where these say too little.
        """
        p, weights = self.programme, self.request.warm_weights
        if self.request.warm_start is None:
            return None
        dual = p.scaled_dual(self.request.warm_start)
        if weights is not None and dual.any():
            return self._coordinates(weights), dual
        if not self._leads():
            return None
        pulled = p.adjoint(dual)
        if not (float(p.b @ dual) > 0.0 and pulled.any() and np.isfinite(pulled).all()):
            return None
        W = self.norm.steepest(pulled)
        return (W, dual) if float((W * pulled).sum()) > 0.0 else None

    def _resumed(self, W: FloatArray, dual: FloatArray) -> bool:
        """Newton steps at once, with weak proximal terms: near a solution they need no other help.
        True when they are enough.
        """
        # The vertex of a linear programme moves to another too far away for weak proximal terms.
        if not (self._leads() and 0 < np.count_nonzero(dual) <= LARGEST_SYSTEM and W.any()):
            return False
        p, W, dual = self._normalised(W, dual, self.norm)
        if self._consider(p, W, dual, "warm start") > _FAR:
            splitting = self._splitting(p, W, dual, self.norm)
            splitting.run(_CHUNK, self.deadline)
            self.iterations += splitting.iterations
            p, W, dual = self._normalised(splitting.W, splitting.dual, self.norm)
        self._newton(p, W, dual, self.norm, 0.0, _WARM_REACH, _WARM_GROWTH)
        return self._good()

    def _rough(
        self, W: FloatArray, dual: FloatArray, norm: Norm, target: float
    ) -> tuple[FloatArray, FloatArray]:
        """A point on the way: two chunks of splitting where it is quick, a few Newton steps
        elsewhere.
        """
        p, W, dual = self._normalised(W, dual, norm)
        if self._gentle(norm):
            splitting = self._splitting(p, W, dual, norm)
            splitting.run(2 * _CHUNK, self.deadline)
            self.iterations += splitting.iterations
            return splitting.W, splitting.dual
        return self._newton(p, W, dual, norm, target)

    def _finish(self, W: FloatArray, dual: FloatArray) -> None:
        if self._gentle(self.norm):
            W, dual = self._split(W, dual, _MOST_CHUNKS, patient=False)
        for _ in range(2):
            if self._done() or self._late():
                return
            if np.count_nonzero(dual) <= LARGEST_SYSTEM:
                p, W, dual = self._normalised(W, dual, self.norm)
                W, dual = self._newton(p, W, dual, self.norm, 0.0)
            if self._good() or self._late():
                return
            W, dual = self._split(W, dual, _LAST_CHUNKS, patient=True)

    def _narrow(self) -> None:
        """Splitting with exact projections, from the best point, and Newton steps from where it
        ends: for narrow cones of weights.
        """
        assert self.best is not None
        W, dual = (
            self._coordinates(self.best.W),
            self.programme.scaled_dual(self.best.dual),
        )
        W, dual = self._split(W, dual, _LAST_CHUNKS, patient=True, exact=True)
        if not self._good() and np.count_nonzero(dual) <= LARGEST_SYSTEM:
            self._newton(*self._normalised(W, dual, self.norm), self.norm, 0.0)
        if not self._done():
            self._tighten()

    def _split(
        self, W: FloatArray, dual: FloatArray, chunks: int, patient: bool, exact: bool = False
    ) -> tuple[FloatArray, FloatArray]:
        """Splitting, until Newton steps are the cheaper way to go on, or (when ``patient``) until
        it gains nothing.
        """
        p, W, dual = self._normalised(W, dual, self.norm)
        splitting = self._splitting(p, W, dual, self.norm, exact=exact)
        slow, before = 0, math.inf
        for _ in range(chunks):
            splitting.run(_CHUNK, self.deadline)
            self.iterations += _CHUNK
            now = self._consider(p, splitting.W, splitting.dual, "splitting")
            if self._done() or self._late():
                break
            gain = before / now
            slow = slow + 1 if gain < (1.0 if patient else _SLOW) else 0
            if slow >= (20 if patient else 2):
                break
            if not patient and _SLOW <= gain < math.inf and now < _NEAR:
                left = _CHUNK * math.log(now / self.aim) / math.log(gain)
                if _NEWTON_STEPS * self._newton_cost(splitting.dual) < left * splitting.cost:
                    break
            before = min(before, now)
        return splitting.W, splitting.dual

    def _splitting(
        self, p: Programme, W: FloatArray, dual: FloatArray, norm: Norm, *, exact: bool = False
    ) -> Splitting:
        energy = self._energy(norm)
        t = float(np.linalg.norm(W) / np.linalg.norm(energy.slope(W)))
        return Splitting(p, lambda x, t: energy.proximal(x, t).W, W, dual, t, exact=exact)

    def _newton_cost(self, dual: FloatArray) -> float:
        """Multiply-adds of a Newton step: the weighted Gram matrix and its Cholesky factor."""
        p, k = self.programme, int(np.count_nonzero(dual))
        return float(k**3 / 3.0 + k**2 * p.D.shape[1] + p.Z.shape[0] ** 2 * p.dof / 2.0)

    def _newton(
        self,
        p: Programme,
        W: FloatArray,
        dual: FloatArray,
        norm: Norm,
        target: float,
        reach: float | None = None,
        growth: float = _GROWTH,
    ) -> tuple[FloatArray, FloatArray]:
        """Outer steps to a gap of ``target``; 0 for as far as they go. Returns the best point
        met.
        """
        final = target == 0.0
        reach = self._reach(norm) if reach is None else reach
        state = DualNewton(p, self._energy(norm), W, dual, reach)
        unit = min(float(p.b.max()), 1.0)  # of margins; weights of norm one have none beyond one
        best, point, accuracy, idle = math.inf, (W, dual), 1e-2 * unit, 0
        for _ in range(_OUTER):
            outcome = state.advance(max(accuracy, 1e-14 * unit), _INNER, self.deadline)
            gap = (
                self._consider(p, state.W, state.dual, "dual Newton")
                if final
                else self._gap(p, state.W, state.dual, norm)
            )
            if final and gap < _NEAR and self.request.slack is None:
                corner = self._corner(p, state.W, state.dual)
                if (
                    corner is not None
                    and self._consider(p, *corner, "dual Newton + vertex") < gap
                    and self._done()
                ):
                    return corner
            idle = 0 if gap < 0.5 * best else idle + (outcome != "short")
            if gap < best:
                best, point = gap, (state.W.copy(), state.dual.copy())
            if (
                (self._done() if final else gap <= target)
                or outcome == "stopped"
                or idle >= _PATIENCE * (1 if best < 1e-6 else 4)
            ):
                break
            if outcome == "moved":
                state.change(growth)
                accuracy *= 0.1
            elif outcome == "stalled":
                state.W, state.dual = point[0].copy(), point[1].copy()
                state.change(1.0 / _GROWTH)
                growth = 1.0
        self.iterations += state.steps
        return point

    def _tighten(self) -> None:
        """The best weights with the nearest ones (in the Frobenius norm) that meet the supporting
        rows exactly tried in their place.
        """
        assert self.best is not None
        p = self.programme
        dual = p.cancelled(p.scaled_dual(self.best.dual))
        rows = np.flatnonzero(dual > _SUPPORTING * dual.max(initial=0.0))
        if 0 < len(rows) <= min(LARGEST_SYSTEM, p.dof) and self.best.gap < _NEAR:
            W = tightened(p, self._coordinates(self.best.W), rows)
            self._consider(p, W, dual, f"{self.solver} + tightening")

    def _consider(self, p: Programme, W: FloatArray, dual: FloatArray, solver: str) -> float:
        """The certified error of a point; it is kept if it is the best."""
        if not (np.isfinite(dual).all() and np.isfinite(W).all()):
            return math.inf
        found = self._certificate(*p.restored(W, dual))
        if self.best is None or found.error < self.best.error:
            self.best, self.solver = found, solver
        return found.error

    def _certificate(self, W: FloatArray, dual: FloatArray) -> Certificate:
        return certify_hard(self.margins, self.norm, W, dual)

    def _normalised(
        self, W: FloatArray, dual: FloatArray, norm: Norm
    ) -> tuple[Programme, FloatArray, FloatArray]:
        """The programme scaled so that its solution has norm about one, with multipliers of the
        energy of that norm.
        """
        p = self.programme
        lower, upper = _bounds(p, W, dual, norm)
        scaled = replace(p, b=p.b / (upper if upper <= _LOOSE * lower or lower <= 0.0 else lower))
        top, size = float(scaled.b @ dual), float(norm.value(W))
        if not 0.0 < size < math.inf and self.best is not None:  # a method that lost its way
            W = self._coordinates(self.best.W)
            size = float(norm.value(W)) or 1.0
        return scaled, W / size, dual / top if top > 0.0 else dual

    def _gap(self, p: Programme, W: FloatArray, dual: FloatArray, norm: Norm) -> float:
        lower, upper = _bounds(p, W, dual, norm)
        return 1.0 - lower / upper

    def _answer(self) -> MarginSolution:
        assert self.best is not None
        total = float(self.margins.rhs @ self.best.dual)
        # Scaled like the multipliers of 1/2 ||W||^2, so that b @ dual = ||W||^2 in every norm.
        dual = (
            self.best.dual * (self.best.norm / total) * self.best.norm
            if total > 0.0 and self.best.gap < 1.0
            else self.best.dual
        )
        best = replace(self.best, dual=dual)
        if best.gap < 1.0:  # the multipliers were rounded once more
            lower = lower_bound(self.margins, self.norm, dual)
            best = replace(best, gap=max(0.0, 1.0 - lower / best.norm))
        solution = solved(self.margins, best, self.request, self.solver, self.iterations)
        return replace(solution, unique=self._unique(solution))

    def _start(self, solution: MarginSolution) -> tuple[FloatArray, FloatArray]:
        """Weights and multipliers of a solution, at the scale of the programme."""
        return self._coordinates(solution.W), self.programme.scaled_dual(solution.dual)

    # What a family of norms knows.

    def _coordinates(self, W: FloatArray) -> FloatArray:
        """Weights of the caller's programme as weights of :attr:`programme`."""
        return np.ldexp(W, -self.programme.weight_exponent)

    def _energy(self, norm: Norm) -> Energy:
        """The convex function that is minimised in place of the norm."""
        raise NotImplementedError

    def _stages(self) -> list[tuple[Norm, float]]:
        """Norms to pass on the way to the norm, each with the gap at which to leave it (0 where a
        fixed number of steps is made).
        """
        return []

    def _gentle(self, norm: Norm) -> bool:
        """True where splitting gains quickly."""
        return True

    def _leads(self) -> bool:
        """True where the duality map leads from multipliers to weights stably."""
        return False

    def _reach(self, norm: Norm) -> float:
        """The first proximal weights of Newton steps, in units of weights and multipliers."""
        return 10.0

    def _corner(
        self, p: Programme, W: FloatArray, dual: FloatArray
    ) -> tuple[FloatArray, FloatArray] | None:
        """The exact solution near a nearly optimal point, where the programme is linear."""
        return None

    def _unique(self, solution: MarginSolution) -> bool | None:
        """Whether the weights are the only solution."""
        return True if self.norm.strictly_convex and solution.status == "optimal" else None

    def _good(self) -> bool:
        return self.best is not None and self.best.error <= self.request.tol

    def _done(self) -> bool:
        return self.best is not None and self.best.error <= min(0.1 * self.request.tol, self.aim)

    def _late(self) -> bool:
        return time.monotonic() > self.deadline


def tightened(p: Programme, W: FloatArray, rows: IntArray) -> FloatArray:
    r""":math:`W + A_P^\top(A_PA_P^\top)^{-1}(b_P-A_PW)`, twice; ``W`` itself when the Gram matrix
    is singular.
    """
    from scipy.linalg.lapack import dpotrf, dpotrs

    G = p.gram(rows)
    G[np.diag_indices(len(rows))] *= 1.0 + 1e-14 * len(rows)
    factor, failed = dpotrf(G, lower=1, overwrite_a=1, clean=0)
    if failed:
        return W
    for _ in range(2):
        change = np.zeros(p.m)
        change[rows] = dpotrs(factor, (p.b - p.values(W))[rows], lower=1)[0]
        W = W + p.adjoint(change)
    return W


def _bounds(p: Programme, W: FloatArray, dual: FloatArray, norm: Norm) -> tuple[float, float]:
    """The least norm lies between these, by the multipliers and by the weights (``inf`` when they
    are not feasible at any scale).
    """
    positive = scale_rows(p.b)
    margin = float((p.values(W)[positive] / p.b[positive]).min())
    top, bottom = float(p.b @ dual), float(norm.dual_value(p.adjoint(dual)))
    return top / bottom if top > 0.0 and bottom > 0.0 else 0.0, (
        float(norm.value(W)) / margin if margin > 0.0 else math.inf
    )
