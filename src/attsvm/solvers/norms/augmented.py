r"""Augmented Lagrangian with semismooth Newton steps for norms of singular values.

Around weights :math:`W` it minimises over the multipliers, which stay non-negative,

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
few exchanges of free rows find (:mod:`attsvm.solvers.methods.exchanges`). A handful of outer steps
reach rounding level from where alternating directions crawl.

Where rows are many, two things save systems. A larger :math:`\sigma'=\gamma\sigma` magnifies
what the weights moved last, :math:`W-W_0`, and its first Newton step would start from singular
values that this has scrambled. But :math:`W` is the proximal point of
:math:`\tilde X=W+\gamma(X-W)`, too, whatever :math:`f` is, so the margins at the same multipliers
are :math:`A[W+\mathcal D_{\tilde X}(\gamma(W-W_0))]` to first order, and the step is made from
there. And the factor of one system serves the next steps as long as they gain.
"""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import numpy as np

from attsvm.data import FloatArray, IntArray
from attsvm.solvers.facts import svd
from attsvm.solvers.methods.energies import GaugeEnergy, Proximal
from attsvm.solvers.methods.exchanges import QuadraticModel
from attsvm.solvers.norms.curvature import LARGEST, curvature, derivative
from attsvm.solvers.programme.programme import Programme

_PROXIMAL = 0.1  # nu in units of |W|^2 / (sigma |dual|^2)
_RIDGE = 1e-13  # relative to the mean diagonal of the Newton matrix
_MOST_RIDGE = 1e-2
_HALVINGS = 25
_NOISE = 1e-15  # rounding of a margin, relative to the argument of the proximal map
_LONGEST = 10.0  # first step, in units of the largest multiplier
_ENOUGH = 0.4  # share of the first slope that a step may climb back
_GAIN = 0.7  # of what is missed, from which a factor is not used again
_BAND = 0.03  # rows so near to their right-hand sides, in units of the largest, get a place in it
MANY = 500  # positive multipliers from which digits beyond the tolerance are not cheap


class _Point(NamedTuple):
    """Multipliers with everything that follows from them."""

    dual: FloatArray
    left: FloatArray
    s: FloatArray
    right: FloatArray
    prox: Proximal
    W: FloatArray
    gradient: FloatArray


class _Outer(NamedTuple):
    """The last outer step: where it ended, around which weights, with which ``sigma``."""

    end: _Point
    centre: FloatArray
    sigma: float


class AugmentedLagrangian:
    r"""Weights and multipliers; :meth:`advance` makes one outer step in place.

    Attributes:
        W: weights.
        dual: ``(m,)`` multipliers, non-negative, :math:`A^\top\lambda\in\partial f(W)` in the
            limit.
        sigma: weight of the proximal term.
        newton_steps: linear systems solved so far.
    """

    def __init__(
        self,
        programme: Programme,
        energy: GaugeEnergy,
        weights: FloatArray,
        dual: FloatArray,
        sigma: float,
    ) -> None:
        self.programme, self.energy = programme, energy
        self.W, self.dual, self.sigma = weights, dual.copy(), sigma
        self.newton_steps = 0
        self._nu = 0.0
        self._scale = programme.diagonal
        self._kind: type[np.floating[Any]] = np.float32
        self._known: dict[type[np.floating[Any]], FloatArray] = {}
        self._last: _Outer | None = None
        self._model: QuadraticModel | None = None
        self._rows: IntArray = np.empty(0, dtype=np.int64)  # of the model

    def advance(self, tolerance: float, steps: int, deadline: float) -> bool:
        """Minimise the inner problem to a projected gradient of ``tolerance`` and update; False
        when ``steps`` or the clock ran out first.

        Without an answer the multipliers move as far as they came, the weights stay, and ``sigma``
        should shrink.
        """
        length = float(np.linalg.norm(self.dual))
        self._nu = (
            _PROXIMAL * float(np.sum(self.W**2)) / (self.sigma * length * length)
            if length > 0.0
            else 1.0 / self.sigma
        )
        self._scale = np.maximum(self.sigma * self.programme.diagonal, self._nu)
        at, self._kind = self._point(self.dual), np.float32
        ahead, done, before = self._ahead(at), False, np.inf
        if self._last is None or self._last.sigma != self.sigma:
            self._model = None
        for _ in range(steps):
            # The scaled gradient step says which multipliers want to be zero, and its length how
            # far from stationary they are.
            pushed = np.maximum(at.dual - at.gradient / self._scale, 0.0)
            missed = float((np.abs(at.dual - pushed) * self._scale).max(initial=0.0))
            if missed <= tolerance + _NOISE * float(at.s[0]):
                at, done = at._replace(dual=pushed), True
                break
            if missed > _GAIN * before:
                self._model = None
            following = self._step(at, ahead, missed) if time.monotonic() <= deadline else None
            if following is None:
                break
            at = ahead = following
            before = missed
        self.dual = at.dual
        if done:
            self._last = _Outer(at, self.W, self.sigma)
            self.W = at.W
        return done

    def moved(self) -> float:
        """How far the margins would move if the next outer step moved the weights as the last one
        did, with the same ``sigma``.
        """
        assert self._last is not None
        at, centre, _ = self._last
        along = derivative(at.left, at.s, at.right, at.prox, at.W - centre)
        return float(np.abs(self.programme.values(along)).max(initial=0.0))

    def _ahead(self, at: _Point) -> _Point:
        """What a Newton step from the end of the last outer step needs to know; ``at`` where there
        was none, or rows are few.
        """
        if self._last is None or np.count_nonzero(at.dual) <= MANY:
            return at
        p, (end, centre, sigma) = self.programme, self._last
        growth, g = self.sigma / sigma, end.prox.W[0]
        s = g + growth * (end.s - g)
        prox = self.energy.proximal(s[None], self.sigma)
        W = self.W + derivative(end.left, s, end.right, prox, growth * (self.W - centre))
        return end._replace(dual=at.dual, s=s, prox=prox, W=W, gradient=p.values(W) - p.b)

    def _point(self, dual: FloatArray) -> _Point:
        p = self.programme
        left, s, right = svd(self.W + self.sigma * p.adjoint(dual))
        prox = self.energy.proximal(s[None], self.sigma)
        W = (left * prox.W[0]) @ right
        return _Point(
            dual, left, s, right, prox, W, p.values(W) - p.b + self._nu * (dual - self.dual)
        )

    def _step(self, at: _Point, ahead: _Point, missed: float) -> _Point | None:
        """One more step with the factor that is there, or one from ``ahead`` with few digits, or
        one from ``at``.
        """
        found = None if self._model is None else self._towards(at, at.gradient)
        if found is not None:
            return found
        near = 0.0
        if np.count_nonzero(at.dual) > MANY:
            near = min(missed, _BAND * float(self.programme.b.max()))
        rows: IntArray = np.flatnonzero((at.dual > 0.0) | (ahead.gradient < near))
        many = len(rows) > MANY
        form = self._form(ahead, rows) if many and self._kind is np.float32 else None
        if form is not None:
            form[np.diag_indices(len(rows))] += self._nu
            self._model, self._rows = QuadraticModel(form), rows
            found = self._towards(at, ahead.gradient)
            if found is not None:
                return found
        self._kind, self._model = np.float64, None
        rows = np.flatnonzero((at.dual > 0.0) | (at.gradient < 0.0))
        form = self._form(at, rows)
        if form is None:
            return None
        ridge, diagonal = _RIDGE, np.diag_indices(len(rows))
        size = max(float(np.mean(form[diagonal])), 1e-12 * self.sigma)
        plain = form[diagonal] + self._nu
        while True:
            form[diagonal] = plain + ridge * size
            self._model, self._rows = QuadraticModel(form), rows
            found = self._towards(at, at.gradient)
            if found is None or not many:
                self._model = None
            if found is not None:
                return found
            ridge *= 100.0
            if ridge > _MOST_RIDGE:
                return self._search(at, rows, -at.gradient[rows] / self._scale[rows])

    def _towards(self, at: _Point, gradient: FloatArray) -> _Point | None:
        """A step to the least value of the model with this gradient."""
        assert self._model is not None
        rows = self._rows
        new = self._model.nearest(gradient[rows], at.dual[rows])
        return None if new is None else self._search(at, rows, new - at.dual[rows])

    def _form(self, at: _Point, rows: IntArray) -> FloatArray | None:
        """The upper triangle of the Newton matrix without its proximal term."""
        known = self._products(rows, self._kind)
        form = curvature(self.programme, rows, at.left, at.s, at.right, at.prox, self._kind, known)
        if form is not None:
            self.newton_steps += 1
            form *= self.sigma
        return form

    def _products(self, rows: IntArray, kind: type[np.floating[Any]]) -> FloatArray | None:
        """Of all differences, kept once most rows need theirs."""
        p = self.programme
        if p.D.shape[1] <= p.Z.shape[1] or 2 * len(rows) < p.m or p.m**2 > LARGEST:
            return None
        if kind not in self._known:
            D = p.D.astype(kind)
            self._known[kind] = D @ D.T
        return self._known[kind]

    def _search(self, at: _Point, rows: IntArray, direction: FloatArray) -> _Point | None:
        """A step along the projection of the ray onto non-negative multipliers.

        By convexity the slope at the end bounds the change: where it has not turned upwards by
        much, the end is no higher than the start.
        """
        if not np.isfinite(direction).all():
            return None
        t = min(
            1.0,
            _LONGEST
            * (float(at.dual.max()) + 1.0 / self.sigma)
            / max(float(np.abs(direction).max()), 1e-300),
        )
        falling = (direction < 0.0) & (at.dual[rows] > 0.0)
        # the first multiplier reaches zero here
        block = float((at.dual[rows][falling] / -direction[falling]).min(initial=np.inf))
        for _ in range(_HALVINGS):
            dual = np.zeros_like(at.dual)
            moved = at.dual[rows] + t * direction
            dual[rows] = np.where(moved > 1e-14 * at.dual[rows], moved, 0.0)
            change = dual - at.dual
            first = float(at.gradient @ change)
            if first >= 0.0:
                return None
            end = self._point(dual)
            if float(end.gradient @ change) <= -_ENOUGH * first:
                return end
            shorter = t * (0.5 if t > 0.1 else 0.2)
            t = block if shorter < block < t else shorter
        return None
