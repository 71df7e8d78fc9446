r"""Newton's method for the nuclear and the spectral norm, where splitting crawls.

Around weights :math:`W` an augmented Lagrangian minimises over the multipliers, which stay
non-negative,

.. math:: \varphi(\lambda)=-b^\top\lambda+\max_{W'}\big\{\langle
    A^\top\lambda,W'\rangle-f(W')-\tfrac1{2\sigma}\|W'-W\|_F^2\big\}
          +\tfrac\nu2\|\lambda-\lambda_0\|^2,\qquad
          \nabla\varphi(\lambda)=A\,\operatorname{prox}_{\sigma f}(W+\sigma
          A^\top\lambda)-b+\nu(\lambda-\lambda_0),

from multipliers :math:`\lambda_0`, and takes the maximiser as the next :math:`W`: proximal steps in
both, which keep the Newton systems definite when active rows outnumber the directions left
(Rockafellar 1976; with Newton steps for singular values as in Jiang, Sun and Toh, *A partial
proximal point algorithm for nuclear norm regularized matrix least squares problems*, 2014). A
Newton step goes to the least value of the quadratic model over non-negative multipliers, which a
few exchanges of free rows find (:mod:`attsvm.solvers.quadratic_model`); its matrix is
:math:`\nu I+\sigma\langle a_c,\mathcal Da_{c'}\rangle` with the derivative :math:`\mathcal D` of
:mod:`attsvm.solvers.singular_values`. A handful of outer steps reach rounding level from where
alternating directions crawl.

Where rows are many, two things save systems. A larger :math:`\sigma'=\gamma\sigma` magnifies
what the weights moved last, :math:`W-W_0`, and its first Newton step would start from singular
values that this has scrambled. But :math:`W` is the proximal point of
:math:`\tilde X=W+\gamma(X-W)`, too, whatever :math:`f` is, so the margins at the same multipliers
are :math:`A[W+\mathcal D_{\tilde X}(\gamma(W-W_0))]` to first order, and the step is made from
there. And the factor of one system serves the next steps as long as they gain.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from attsvm.datasets.attention_data import FloatArray, IntArray
from attsvm.solvers.deadline import cholesky_work, time_for
from attsvm.solvers.iterate import Iterate, Stop
from attsvm.solvers.optimality_checks import svd
from attsvm.solvers.programme import Programme
from attsvm.solvers.quadratic_model import QuadraticModel
from attsvm.solvers.singular_values import (
    Proximal,
    curvature,
    derivative,
    proximal,
)

_NOISE = 1e-15  # rounding of a margin, relative to the argument of the proximal map
_ZERO = 1e-14  # share of a multiplier below which it is rounding


class NewtonOptions(NamedTuple):
    """Numbers of the method; chosen on random programmes of 600 to 30,000 rows, and on correlated
    rows of texts, unless said otherwise.

    Attributes:
        largest_matrix: entries of a matrix of rows against rows, at most: 268 MB.
        many: positive multipliers from which a system takes long, so that digits beyond the
            tolerance are not cheap.
        outer_steps: outer steps, at most.
        idle_steps: outer steps without progress that end it.
        newton_steps: Newton steps of an outer step, at most.
        inner_tolerance: projected gradient at which an outer step ends; where rows are many
        inner_share: that share of the error does.
        proximal: ``nu`` in units of ``|W|^2 / (sigma |dual|^2)``.
        growth: factor of ``sigma`` after an outer step, where rows are few.
        retreat: divisor of ``sigma`` after one that did not end.
        largest_sigma: bound of ``sigma``; untuned.
        largest_single: ``sigma`` up to which Newton systems are solved in 32 bits.
        least_growth: growth that is worth a new factor where rows are many, and
        most_growth: the largest.
        worth: share of the error that is left, below which the same ``sigma`` is worth another
            step.
        gain: share of the gradient that is left, from which a factor is not used again.
        band: distance of rows to their right-hand sides, in units of the largest, at which they
            join the model.
        ridge: relative to the mean diagonal of the Newton matrix, and
        most_ridge: where it is given up; a gradient step follows.
        longest: first step, in units of the largest multiplier.
        climb: share of the first slope that a step may climb back.
        halvings: of a step.
    """

    largest_matrix: int = 1 << 25
    many: int = 500
    outer_steps: int = 20
    idle_steps: int = 4
    newton_steps: int = 60
    inner_tolerance: float = 1e-13
    inner_share: float = 0.1
    proximal: float = 0.1
    growth: float = 30.0
    retreat: float = 5.0
    largest_sigma: float = 1e7
    largest_single: float = 1.5e6
    least_growth: float = 3.0
    most_growth: float = 30.0
    worth: float = 0.7
    gain: float = 0.7
    band: float = 0.03
    ridge: float = 1e-13
    most_ridge: float = 1e-2
    longest: float = 10.0
    climb: float = 0.4
    halvings: int = 25


NEWTON = NewtonOptions()


class _NewtonPoint(NamedTuple):
    """Multipliers with everything that follows from them.

    Attributes:
        dual: ``(m,)`` multipliers.
        left: ``(d_x, q)`` left singular vectors of the argument of the proximal map.
        s: ``(q,)`` its singular values.
        right: ``(q, d_z)`` right singular vectors, as rows.
        prox: the proximal map at ``s``.
        W: ``(d_x, d_z)`` the proximal point.
        gradient: ``(m,)`` of the inner problem.
    """

    dual: FloatArray
    left: FloatArray
    s: FloatArray
    right: FloatArray
    prox: Proximal
    W: FloatArray
    gradient: FloatArray


class _OuterStep(NamedTuple):
    """An outer step that ended: its last point, the weights around which it was, its ``sigma``."""

    end: _NewtonPoint
    centre: FloatArray
    sigma: float


class AugmentedLagrangian:
    r"""Weights and multipliers; :meth:`advance` makes one outer step in place.

    Attributes:
        programme: the programme, its solution of norm about one.
        W: weights.
        dual: ``(m,)`` multipliers, non-negative, :math:`A^\top\lambda\in\partial f(W)` in the
            limit.
        sigma: weight of the proximal term.
    """

    def __init__(
        self,
        programme: Programme,
        spectral: bool,
        weights: FloatArray,
        dual: FloatArray,
        sigma: float,
        options: NewtonOptions = NEWTON,
    ) -> None:
        self.programme, self.spectral, self.options = programme, spectral, options
        self.W, self.dual, self.sigma = weights, dual.copy(), sigma
        self._nu = 0.0
        self._scale = programme.diagonal  # what the form has on its diagonal, at most
        self._kind: type[np.floating[Any]] = np.float32  # of the numbers of the next form
        self._products: dict[type[np.floating[Any]], FloatArray] = {}
        self._last: _OuterStep | None = None
        self._model: QuadraticModel | None = None
        self._rows: IntArray = np.empty(0, dtype=np.int64)  # of the model

    def has_many_rows(self, dual: FloatArray) -> bool:
        """Whether so many multipliers are positive that a system takes long."""
        return bool(np.count_nonzero(dual) > self.options.many)

    def advance(self, tolerance: float, deadline: float) -> bool:
        """Minimise the inner problem to a projected gradient of ``tolerance`` and update; False
        when the steps or the clock ran out first.

        1. The gradient at the multipliers, and ahead of them where the last outer step led.
        2. The projected gradient says how far they are from stationary: near enough ends it.
        3. A factor is used again as long as it gains.
        4. A Newton step.
        5. The maximiser is the next centre. Without an answer the multipliers move as far as they
           came, the weights stay, and ``sigma`` should shrink.
        """
        options = self.options
        length = float(np.linalg.norm(self.dual))
        # The proximal term of the multipliers is as strong as that of the weights, in their units.
        self._nu = (
            options.proximal * float(np.sum(self.W**2)) / (self.sigma * length * length)
            if length > 0.0
            else 1.0 / self.sigma
        )
        # An upper bound of the diagonal of the Hessian scales the gradient to multipliers.
        self._scale = np.maximum(self.sigma * self.programme.diagonal, self._nu)
        # 1. The gradient.
        point, self._kind = self._point(self.dual), np.float32
        ahead, is_stationary, residual_before = self._point_ahead(point), False, np.inf
        # A factor belongs to one sigma.
        if self._last is None or self._last.sigma != self.sigma:
            self._model = None
        for _ in range(options.newton_steps):
            # 2. The projected gradient, in units of margins.
            # What a step in the scale of the Hessian moves is not stationary.
            pushed = np.maximum(point.dual - point.gradient / self._scale, 0.0)
            residual = float((np.abs(point.dual - pushed) * self._scale).max(initial=0.0))
            if residual <= tolerance + _NOISE * float(point.s[0]):
                point, is_stationary = point._replace(dual=pushed), True
                break
            # 3. A factor that no longer gains goes.
            if residual > options.gain * residual_before:
                self._model = None
            # 4. The Newton step.
            following = (
                self._newton_step(point, ahead, residual, deadline)
                if time.monotonic() <= deadline
                else None
            )
            if following is None:
                break
            point = ahead = following
            residual_before = residual
        # 5. Update.
        self.dual = point.dual
        if is_stationary:
            self._last = _OuterStep(point, self.W, self.sigma)
            self.W = point.W
        return is_stationary

    def growth(self, error_ratio: float) -> float:
        """The factor by which to increase ``sigma`` where rows are many: as much as moves no margin
        by more than its own size; 1 while an outer step leaves less than a share ``worth`` of the
        error without it.

        Args:
            error_ratio: of the error after the last outer step to the one before it.
        """
        options = self.options
        # The next step may move no margin by more than its own size.
        change = max(self._change_of_margins(), 1e-9)
        most = min(options.most_growth, max(options.largest_single / self.sigma, 1.0))
        growth = min(float(self.programme.b.max()) / change, most)
        if growth >= options.least_growth:
            return growth
        return 1.0 if error_ratio < options.worth else options.least_growth

    def _change_of_margins(self) -> float:
        """How far the margins would move if the next outer step moved the weights as the last one
        did, with the same ``sigma``.
        """
        assert self._last is not None
        end, centre, _ = self._last
        along = derivative(end.left, end.s, end.right, end.prox, end.W - centre)
        return float(np.abs(self.programme.values(along)).max(initial=0.0))

    def _point(self, dual: FloatArray) -> _NewtonPoint:
        """The point of these multipliers."""
        p = self.programme
        left, s, right = svd(self.W + self.sigma * p.adjoint(dual))
        prox = proximal(s, self.sigma, self.spectral)
        W = (left * prox.values) @ right
        gradient = p.values(W) - p.b + self._nu * (dual - self.dual)
        return _NewtonPoint(dual, left, s, right, prox, W, gradient)

    def _point_ahead(self, point: _NewtonPoint) -> _NewtonPoint:
        """The point from which the first Newton step is made: that to which the last outer step
        leads to first order, with the ``sigma`` of today; ``point`` where there was none, or rows
        are few.
        """
        if self._last is None or not self.has_many_rows(point.dual):
            return point
        p, (end, centre, sigma) = self.programme, self._last
        # X~ = W + gamma (X - W) of the module's docstring, whose proximal point is W, too.
        growth, g = self.sigma / sigma, end.prox.values
        s = g + growth * (end.s - g)
        prox = proximal(s, self.sigma, self.spectral)
        W = self.W + derivative(end.left, s, end.right, prox, growth * (self.W - centre))
        return end._replace(dual=point.dual, s=s, prox=prox, W=W, gradient=p.values(W) - p.b)

    def _newton_step(
        self, point: _NewtonPoint, ahead: _NewtonPoint, residual: float, deadline: float
    ) -> _NewtonPoint | None:
        """The next point: by the model that is there, or by one made ``ahead`` in 32 bits, or by
        one made at the point in 64 bits; ``None`` where none leads down, or is too large.
        """
        following = None if self._model is None else self._step_to_minimum(point, point.gradient)
        if following is not None:
            return following
        options, near = self.options, 0.0
        if self.has_many_rows(point.dual):
            # Rows that are close may join, which saves the systems in which they would one by one.
            near = min(residual, options.band * float(self.programme.b.max()))
        rows: IntArray = np.flatnonzero((point.dual > 0.0) | (ahead.gradient < near))
        if not time_for(cholesky_work(len(rows), sum(self.programme.shape)), deadline):
            return None
        is_large = len(rows) > options.many
        # Few digits do for a step that is short, and take half the time.
        form = self._form(ahead, rows) if is_large and self._kind is np.float32 else None
        if form is not None:
            form[np.diag_indices(len(rows))] += self._nu
            self._model, self._rows = QuadraticModel(form), rows
            following = self._step_to_minimum(point, ahead.gradient)
            if following is not None:
                return following
        # Where 32 bits were tried they have failed, and the outer step goes on in 64.
        self._kind, self._model = np.float64, None
        rows = np.flatnonzero((point.dual > 0.0) | (point.gradient < 0.0))
        form = self._form(point, rows)
        if form is None:
            return None
        # A ridge grows until the form is definite and leads down; at last a gradient step.
        ridge, diagonal = options.ridge, np.diag_indices(len(rows))
        mean = max(float(np.mean(form[diagonal])), 1e-12 * self.sigma)
        without_ridge = form[diagonal] + self._nu
        while True:
            form[diagonal] = without_ridge + ridge * mean
            self._model, self._rows = QuadraticModel(form), rows
            following = self._step_to_minimum(point, point.gradient)
            if following is None or not is_large:
                self._model = None
            if following is not None:
                return following
            ridge *= 100.0
            if ridge > options.most_ridge:
                return self._search(point, rows, -point.gradient[rows] / self._scale[rows])

    def _step_to_minimum(self, point: _NewtonPoint, gradient: FloatArray) -> _NewtonPoint | None:
        """The point of a step to the least value of the model with this gradient."""
        assert self._model is not None
        rows = self._rows
        dual = self._model.minimise(gradient[rows], point.dual[rows])
        return None if dual is None else self._search(point, rows, dual - point.dual[rows])

    def _form(self, point: _NewtonPoint, rows: IntArray) -> FloatArray | None:
        """The upper triangle of the Newton matrix without its proximal term; ``None`` where it is
        too large to form.
        """
        if len(rows) ** 2 > self.options.largest_matrix:
            return None
        products = self._products_of_differences(rows, self._kind)
        form = curvature(
            self.programme,
            rows,
            point.left,
            point.s,
            point.right,
            point.prox,
            self._kind,
            products,
        )
        form *= self.sigma
        return form

    def _products_of_differences(
        self, rows: IntArray, kind: type[np.floating[Any]]
    ) -> FloatArray | None:
        """``(m, m)``: products of all differences, computed once, where most rows need theirs;
        else ``None``.
        """
        p = self.programme
        # Worth it where differences are the longer factor and most rows are in the model.
        if (
            p.D.shape[1] <= p.Z.shape[1]
            or 2 * len(rows) < p.m
            or p.m**2 > self.options.largest_matrix
        ):
            return None
        if kind not in self._products:
            D = p.D.astype(kind)
            self._products[kind] = D @ D.T
        return self._products[kind]

    def _search(
        self, point: _NewtonPoint, rows: IntArray, direction: FloatArray
    ) -> _NewtonPoint | None:
        """The end of a step along the projection of the ray onto non-negative multipliers; ``None``
        where no step leads down.

        By convexity the slope at the end bounds the change: where it has not turned upwards by
        much, the end is no higher than the start.
        """
        if not np.isfinite(direction).all():
            return None
        options, dual = self.options, point.dual[rows]
        # A nearly singular model sends multipliers far beyond any scale of theirs.
        longest = options.longest * (float(point.dual.max()) + 1.0 / self.sigma)
        t = min(1.0, longest / max(float(np.abs(direction).max()), 1e-300))
        falling = (direction < 0.0) & (dual > 0.0)
        # the first multiplier reaches zero here
        block = float((dual[falling] / -direction[falling]).min(initial=np.inf))
        for _ in range(options.halvings):
            new_dual = np.zeros_like(point.dual)
            # The path bends where a multiplier reaches zero.
            moved = dual + t * direction
            new_dual[rows] = np.where(moved > _ZERO * dual, moved, 0.0)
            change = new_dual - point.dual
            first_slope = float(point.gradient @ change)
            if first_slope >= 0.0:
                return None
            end = self._point(new_dual)
            if float(end.gradient @ change) <= -options.climb * first_slope:
                return end
            # The kink of the path is tried once on the way, since the model holds up to there.
            shorter = t * (0.5 if t > 0.1 else 0.2)
            t = block if shorter < block < t else shorter
        return None


def finish_by_newton(
    lagrangian: AugmentedLagrangian,
    error: Callable[[FloatArray, FloatArray], float],
    consider: Callable[[FloatArray, FloatArray], float],
    stop: Stop,
) -> Iterate:
    """Outer steps with growing weight of the multipliers while they help.

    1. Where rows are many, inner problems are solved to a share of the error only.
    2. An outer step.
    3. The error of its end; where rows are many only what is good enough is certified.
    4. A larger ``sigma``, or a smaller one where the step did not end.

    Args:
        lagrangian: the iterate.
        error: of weights and multipliers, in floating point.
        consider: certifies weights and multipliers and keeps the best; the least error so far.
        stop: where it ends; ``enough`` is asked for where rows are many.

    Returns:
        The best weights and multipliers, to go on from.
    """
    options = lagrangian.options
    best_iterate = Iterate(lagrangian.W, lagrangian.dual)
    idle_steps, least = 0, math.inf
    current = best = error(*best_iterate)
    coarse = options.inner_share * float(lagrangian.programme.b.max())
    for _ in range(options.outer_steps):
        # 1. The tolerance of the inner problem.
        is_large = lagrangian.has_many_rows(lagrangian.dual)
        tolerance = max(options.inner_tolerance, coarse * min(current, 1.0) if is_large else 0.0)
        idle_steps += 1
        # 2. The outer step.
        if lagrangian.advance(tolerance, stop.deadline):
            # 3. Its error.
            before, current = current, error(lagrangian.W, lagrangian.dual)
            if current <= stop.enough or not is_large:
                best = consider(lagrangian.W, lagrangian.dual)
            # 4. The weight of the next.
            growth = lagrangian.growth(current / before) if is_large else options.growth
            lagrangian.sigma = min(growth * lagrangian.sigma, options.largest_sigma)
            if current < least:
                best_iterate = Iterate(lagrangian.W, lagrangian.dual)
                idle_steps, least = 0, current
            else:
                # No progress: the inner problem may have been solved too coarsely.
                coarse /= 10.0
        else:
            # A smaller sigma makes the inner problem easier, and keeps the weights near.
            lagrangian.sigma /= options.retreat
        is_done = best <= (stop.enough if is_large else stop.aim)
        if is_done or time.monotonic() > stop.deadline or idle_steps == options.idle_steps:
            break
    consider(*best_iterate)
    return best_iterate
