r"""The max-margin programme in a norm of singular values: nuclear, spectral and every Schatten
norm.

.. math:: \min_W \|W\|_{S_p} \ \text{ s.t. }\ \langle A_c,W\rangle\ge b_c,
   \qquad\text{dual}\qquad \max_{\lambda\ge0}\ b^\top\lambda\ \text{ s.t. }\
   \|A^\top\lambda\|_{S_q}\le1,\quad \tfrac1p+\tfrac1q=1 .

For :math:`p=1` it is Att-SVM of the factorised parameterisation :math:`W=KQ^\top` in Tarzanagh et
al., *Transformers as Support Vector Machines* (2023). The programme is reduced to the spans of
differences and queries; the Frobenius solver decides feasibility, which does not depend on the
norm, and gives the start; alternating directions do most of the work, and an augmented Lagrangian
with semismooth Newton steps finishes where they crawl. The best certified answer met on the way is
what is returned. Small programmes of the nuclear and the spectral norm go to interior points first
(:mod:`attsvm.solvers.small.interior_batch`).
"""

from __future__ import annotations

import math
import time
from dataclasses import replace

import numpy as np

from attsvm.data import FloatArray
from attsvm.errors import InputError
from attsvm.geometry import Frobenius, Norm, Schatten, Spectral
from attsvm.margins import Margins
from attsvm.solvers import facts, frobenius
from attsvm.solvers.answers.outcomes import HOPELESS, Request, infeasible_solution, solved
from attsvm.solvers.answers.solution import MarginSolution
from attsvm.solvers.facts import length, singular_values, svd
from attsvm.solvers.methods.energies import energy_of
from attsvm.solvers.norms.augmented import MANY, AugmentedLagrangian
from attsvm.solvers.norms.projection import is_narrow
from attsvm.solvers.norms.splitting import SINGULAR_VALUES, Splitting
from attsvm.solvers.programme.choice import SMALL
from attsvm.solvers.programme.programme import equilibrate
from attsvm.solvers.programme.reduction import reduce
from attsvm.solvers.proofs import Certificate, certify_hard, scale_rows
from attsvm.solvers.small import interior_batch

_ROUGH_START = 3e-2  # gap of a first solution that need not be exact
_AIM = 3e-10  # gap that is aimed at whatever the tolerance, because it costs little more
_SHARP = 1e-15
_FIRST_T = {1.0: 0.2, math.inf: 5.0}  # steps of the proximal map for weights of norm one
# of alternating directions before each attempt of Newton steps
_ITERATIONS = (150, 500, 2000, 6000)
_PATIENT = 3  # attempts at a programme that is almost infeasible
_CHECK_EVERY = 5
_STALL = 6  # checks within which the first attempt must halve the error
_OUTER_STEPS, _NEWTON_STEPS = 20, 60
_INNER_TOLERANCE = 1e-13
_SHARE = 0.1
_CURVED = 4.0  # exponent beyond which the spectral norm gives the better start
_GROWTH, _RETREAT, _LARGEST_SIGMA = 30.0, 5.0, 1e7
_FEW_DIGITS = 1.5e6  # sigma up to which Newton systems are solved in 32 bits
_FURTHER, _LEAST, _MOST = 1.0, 3.0, 30.0  # growth in units of what it moves, and its bounds
_WORTH = 0.7  # share of the error that is left, below which the same sigma is worth another step
_MOST_WORSE = 4  # outer steps without progress


def solve(margins: Margins, norm: Norm, request: Request) -> MarginSolution:
    """Solve the programme of this module; see :func:`attsvm.solvers.max_margin`.

    Raises:
        InputError: a soft margin in a Schatten norm other than the Frobenius norm.
    """
    assert isinstance(norm, Schatten)
    if norm.p == 2.0:
        found = frobenius.solve(margins, norm, request)
        known = found.status == "optimal" and found.norm > 0.0
        return replace(found, rank=facts.numerical_rank(found.W), unique=True) if known else found
    if request.slack is not None:
        raise InputError(
            f"the soft margin is not solved in the norm {norm!r}; leave slack out, or use the"
            " Frobenius norm"
        )
    if not (margins.rhs > 0).any():
        return frobenius.solve(margins, norm, request)
    points = interior_batch.alone(margins, norm, request)
    if points is not None and interior_batch.complete(points):
        return points
    return _Search(margins, norm, request).run(points)


class _Search:
    """One solve: the reduced programme at the scale of its solution, the stages, the best
    certificate and the clock.
    """

    def __init__(self, margins: Margins, norm: Schatten, request: Request) -> None:
        self.margins, self.norm, self.request = margins, norm, request
        self.full = equilibrate(margins, None, request.opposite)
        self.reduction = reduce(self.full)
        self.deadline = (
            math.inf if request.max_seconds is None else time.monotonic() + request.max_seconds
        )
        self.aim = min(request.tol / 2.0, _AIM)
        self.best: Certificate | None = None
        self.solver = "Frobenius start"

    def run(self, known: MarginSolution | None) -> MarginSolution:
        """The best certified solution that the stages reach; of a known one what is left to say."""
        if known is not None:
            return self._answer(self._from(known), known.iterations)
        resumed = self._resumed()
        if resumed is not None:
            return self._answer(*resumed)
        q = self.reduction.programme
        coordinates = Margins(
            q.D, q.Z, q.offsets, q.b, self.margins.token, np.zeros(len(q.Z), dtype=np.int64)
        )
        precise = replace(self.request, tol=1e-9, warm_start=None)
        start = self._frobenius(coordinates, precise)
        W, dual = start.W, start.dual
        if start.status != "optimal" and q is not self.full:
            # Coordinates are rounded, and such a verdict can hang on that.
            start = frobenius.solve(self.margins, Frobenius(), precise)
            if start.status == "almost infeasible" and start.gap > HOPELESS:
                return self._hopeless(start, start.W, start.dual)
            if not start.has_weights:
                return start
            W = self.reduction.coordinates(np.ldexp(start.W, -self.full.weight_exponent))
            dual = self.full.scaled_dual(start.dual)
        if not start.has_weights:
            return self._without(dual, start)
        if start.status == "almost infeasible" and start.gap > HOPELESS:
            lifted, lam = self.full.restored(self.reduction.lifted(W), self.full.cancelled(dual))
            return self._hopeless(start, lifted, lam)
        first, narrow = (W, dual), is_narrow(W)
        if not np.abs(W).max() > 0.0:
            return solved(self.margins, self._certificate(W, dual), self.request, self.solver, 0)
        self._rescale(W)
        self._consider(W / self.scale, dual, self.solver)
        if self.request.warm_start is not None:
            dual = self.full.scaled_dual(self.request.warm_start)
        if _CURVED < self.norm.p < math.inf:
            W, dual = self._flat(W, dual)
        iterations = 0
        # Where float64 hardly holds weights that meet the margins, more patience finds no more.
        last = None if start.status != "almost infeasible" else _PATIENT
        for attempt, most in enumerate(_ITERATIONS[:last]):
            if not (np.abs(W).max() > 0.0 and dual.any()):
                W, dual = first
            self._rescale(W)
            exact = (
                attempt > 0 or narrow
            ) and q.m * q.dof <= SMALL  # the first attempt may leave a cone that is less narrow
            step = _FIRST_T.get(self.norm.p, 0.5)
            state = self._splitting(self.norm, W / self.scale, dual, step, exact=exact)
            self._split(state, most, self.aim)
            iterations += state.iterations
            self._consider(state.V, state.dual, "alternating directions")
            if self._done():
                break
            W, dual = self._newton(state)
            if self._done() or (self.best is not None and self.best.error <= self.request.tol):
                break
        return self._answer(state, iterations)

    def _frobenius(self, coordinates: Margins, precise: Request) -> MarginSolution:
        """Weights to start from, or why there are none: the solution in the Frobenius norm, to a
        few digits where all digits take several systems of many unknowns, and a few show that all
        margins can be positive.
        """
        q = self.reduction.programme
        if q.m * q.dof > SMALL and bool((q.b > 0.0).all()):
            start = frobenius.solve(
                coordinates, Frobenius(), replace(precise, tol=_ROUGH_START, rough=True)
            )
            if start.status in ("optimal", "infeasible"):
                return start
        return frobenius.solve(coordinates, Frobenius(), precise)

    def _resumed(self) -> tuple[Splitting, int] | None:
        """Alternating directions from the caller's weights, multipliers and step; ``None`` when
        they do not reach the tolerance soon.
        """
        W, dual = self.request.warm_weights, self.request.warm_start
        if W is None or dual is None or not (W.any() and dual.any()):
            return None
        W, dual = (
            self.reduction.coordinates(np.ldexp(W, -self.full.weight_exponent)),
            self.full.scaled_dual(dual),
        )
        if not np.abs(W).max() > 0.0:
            return None
        self._rescale(W)
        # Nuclear norm: a first step too large for the end is quicker than the one that the last
        # solve ended with (75 iterations, not 125).
        kept = self.request.warm_step if self.norm.p > 1.0 else None
        step = _FIRST_T.get(self.norm.p, 0.5) if kept is None else kept
        state = self._splitting(self.norm, W / self.scale, dual, step)
        self._split(state, 2 * _ITERATIONS[0], self.aim)
        self._consider(state.V, state.dual, "alternating directions")
        assert self.best is not None
        return (state, state.iterations) if self.best.error <= self.request.tol else None

    def _from(self, known: MarginSolution) -> Splitting:
        """Alternating directions that have not moved from a solution, which is the best so far."""
        p = self.full
        W = self.reduction.coordinates(np.ldexp(known.W, -p.weight_exponent))
        dual = p.scaled_dual(known.dual)
        self._rescale(W)
        self._consider(W / self.scale, dual, known.solver)
        return self._splitting(self.norm, W / self.scale, dual, _FIRST_T.get(self.norm.p, 0.5))

    def _answer(self, state: Splitting, iterations: int) -> MarginSolution:
        assert self.best is not None
        solution = replace(
            solved(self.margins, self.best, self.request, self.solver, iterations), step=state.t
        )
        if solution.status != "optimal":
            return solution
        known = facts.facts(self.margins, self.norm, self.best, self.norm.p)
        if self.norm.p == 1.0 and known.rank != known.rank_bound and not self._late():
            # A singular value near the threshold of the rank asks for more digits.
            self.aim = _SHARP
            self._newton(state)
            solution = replace(
                solved(self.margins, self.best, self.request, self.solver, iterations), step=state.t
            )
            known = facts.facts(self.margins, self.norm, self.best, self.norm.p)
        return replace(solution, **known._asdict())

    def _rescale(self, W: FloatArray) -> None:
        """Right-hand sides for which weights like ``W`` have norm one, where every power of a
        singular value is a moderate number.
        """
        self.scale = length(singular_values(W), self.norm.p)
        q = self.reduction.programme
        self.programme = replace(q, b=q.b / self.scale)

    def _flat(self, W: FloatArray, dual: FloatArray) -> tuple[FloatArray, FloatArray]:
        """A start from the spectral norm: a large exponent blows up any error in the scale of the
        weights.
        """
        state = self._splitting(Spectral(), W / self.scale, dual, _FIRST_T[math.inf])
        self._split(state, _ITERATIONS[0], 0.1 / self.norm.p, Spectral())
        values = self.programme.values(state.V)
        positive = scale_rows(self.programme.b)
        ratio = float((values[positive] / self.programme.b[positive]).min())
        return (state.V * (self.scale / ratio), state.dual) if 0.5 < ratio < 2.0 else (W, dual)

    def _splitting(
        self, norm: Schatten, W: FloatArray, dual: FloatArray, t: float, *, exact: bool = False
    ) -> Splitting:
        """From multipliers of any scale: they get that of a subgradient of the energy."""
        energy = energy_of(norm.p)

        def nearest(x: FloatArray, t: float) -> FloatArray:
            left, s, right = svd(x)
            point: FloatArray = (left * energy.sizes(s, t)) @ right
            return point

        pull = length(singular_values(self.programme.adjoint(dual)), norm.gauge.q)
        size = length(singular_values(W), norm.p) ** (energy.degree - 1.0)
        dual = dual * (size / pull)
        return Splitting(self.programme, nearest, W, dual, t, exact=exact, balance=SINGULAR_VALUES)

    def _split(
        self, state: Splitting, most: int, target: float, norm: Schatten | None = None
    ) -> None:
        """Up to ``most`` iterations, until gap and violation are at most ``target``."""
        met: list[float] = []
        while state.iterations < most and time.monotonic() <= self.deadline:
            state.run(_CHECK_EVERY, math.inf)
            met.append(self._error(state.V, state.dual, norm or self.norm))
            if met[-1] <= target:
                break
            if most == _ITERATIONS[0] and min(met[-_STALL:]) > 0.5 * min(
                met[:-_STALL], default=math.inf
            ):
                break

    def _error(self, W: FloatArray, dual: FloatArray, norm: Schatten) -> float:
        """The larger of the relative gap and the relative violation (rows with right-hand side 0
        keep one).
        """
        p = self.programme
        positive, values = scale_rows(p.b), p.values(W)
        ratio = float((values[positive] / p.b[positive]).min())
        bottom = length(singular_values(p.adjoint(dual)), norm.gauge.q)
        if not (ratio > 0.0 and bottom > 0.0):
            return np.inf
        top = length(singular_values(W), norm.p)
        gap = 1.0 - float(p.b @ dual) * ratio / (bottom * top)
        return max(0.0, gap, float((p.b - values / ratio).max()) / float(p.b.max()))

    def _newton(self, state: Splitting) -> tuple[FloatArray, FloatArray]:
        """Outer steps with growing weight while they help; weights and multipliers to go on
        from.
        """
        newton = AugmentedLagrangian(
            self.programme, energy_of(self.norm.p), state.V, state.dual, state.t
        )
        W, dual, worse, before = state.V, state.dual, 0, math.inf
        name = (
            "alternating directions + semismooth Newton"
            if state.iterations
            else "semismooth Newton"
        )
        assert self.best is not None
        coarse, left = _SHARE * float(self.programme.b.max()), self.best.error
        for _ in range(_OUTER_STEPS):
            # Where systems are large, inner problems are solved to a share of the error, and only
            # what is good enough is certified.
            many = np.count_nonzero(newton.dual) > MANY
            tolerance = max(_INNER_TOLERANCE, coarse * min(left, 1.0) if many else 0.0)
            worse += 1
            if newton.advance(tolerance, _NEWTON_STEPS, self.deadline):
                last, left = left, self._error(newton.W, newton.dual, self.norm) if many else 0.0
                if left <= self.request.tol:
                    left = self._consider(newton.W, newton.dual, name)
                growth = self._growth(newton, left / last) if many else _GROWTH
                newton.sigma = min(growth * newton.sigma, _LARGEST_SIGMA)
                if left < before:
                    W, dual, worse, before = newton.W, newton.dual, 0, left
                else:
                    coarse /= 10.0
            else:
                newton.sigma /= _RETREAT
            enough = many and self.best.error <= self.request.tol
            if self._done() or enough or worse == _MOST_WORSE:
                break
        if before < self.best.error:
            self._consider(W, dual, name)
        return W * self.scale, dual

    def _growth(self, newton: AugmentedLagrangian, gained: float) -> float:
        """Of sigma, as far as it moves margins by no more than they are, where systems are large;
        none while the error is halved without.
        """
        moved = max(newton.moved(), 1e-9)
        most = min(_MOST, max(_FEW_DIGITS / newton.sigma, 1.0))
        growth = min(_FURTHER * float(self.programme.b.max()) / moved, most)
        if growth >= _LEAST:
            return growth
        return 1.0 if gained < _WORTH else _LEAST

    def _hopeless(self, start: MarginSolution, W: FloatArray, dual: FloatArray) -> MarginSolution:
        """The weights of the Frobenius norm where float64 can hardly hold any."""
        if not start.has_weights:
            return start
        found = certify_hard(self.margins, self.norm, W, dual)
        return solved(self.margins, found, self.request, start.solver, start.iterations)

    def _without(self, dual: FloatArray, start: MarginSolution) -> MarginSolution:
        """No weights, and multipliers that are a contradiction, or nearly one."""
        restored = self.full.restored(np.zeros((1, 1)), self.full.cancelled(dual))[1]
        return infeasible_solution(
            self.margins, restored, self.request, start.solver, start.iterations
        )

    def _certificate(self, W: FloatArray, dual: FloatArray) -> Certificate:
        lifted, lam = self.full.restored(self.reduction.lifted(W), self.full.cancelled(dual))
        return certify_hard(self.margins, self.norm, lifted, lam)

    def _consider(self, W: FloatArray, dual: FloatArray, solver: str) -> float:
        """Keep weights and multipliers if they are better certified than what is there; their
        certified error.
        """
        if not (np.isfinite(W).all() and np.isfinite(dual).all()):
            return math.inf
        found = self._certificate(W * self.scale, dual)
        if self.best is None or found.error < self.best.error:
            self.best, self.solver = found, solver
        return found.error

    def _done(self) -> bool:
        assert self.best is not None
        return self.best.error <= self.aim or self._late()

    def _late(self) -> bool:
        return time.monotonic() > self.deadline
