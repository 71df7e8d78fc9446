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
"""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import numpy as np

from attsvm.data import FloatArray, IntArray
from attsvm.solvers.methods.energies import GaugeEnergy, Proximal
from attsvm.solvers.methods.exchanges import nearest_multipliers
from attsvm.solvers.norms.curvature import LARGEST, curvature
from attsvm.solvers.programme.programme import Programme
from attsvm.solvers.proofs.spectra import svd

_PROXIMAL = 0.1  # nu in units of |W|^2 / (sigma |dual|^2)
_RIDGE = 1e-13  # relative to the mean diagonal of the Newton matrix
_MOST_RIDGE = 1e-2
_HALVINGS = 25
_NOISE = 1e-15  # rounding of a margin, relative to the argument of the proximal map
_LONGEST = 10.0  # first step, in units of the largest multiplier
_ENOUGH = 0.4  # share of the first slope that a step may climb back
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
        done = False
        for _ in range(steps):
            # The scaled gradient step says which multipliers want to be zero, and its length how
            # far from stationary they are.
            pushed = np.maximum(at.dual - at.gradient / self._scale, 0.0)
            missed = np.abs(at.dual - pushed) * self._scale
            if float(missed.max(initial=0.0)) <= tolerance + _NOISE * float(at.s[0]):
                at, done = at._replace(dual=pushed), True
                break
            following = self._step(at) if time.monotonic() <= deadline else None
            if following is None:
                break
            at = following
        self.dual = at.dual
        if done:
            self.W = at.W
        return done

    def _point(self, dual: FloatArray) -> _Point:
        p = self.programme
        left, s, right = svd(self.W + self.sigma * p.adjoint(dual))
        prox = self.energy.proximal(s[None], self.sigma)
        W = (left * prox.W[0]) @ right
        return _Point(
            dual, left, s, right, prox, W, p.values(W) - p.b + self._nu * (dual - self.dual)
        )

    def _step(self, at: _Point) -> _Point | None:
        rows: IntArray = np.flatnonzero((at.dual > 0.0) | (at.gradient < 0.0))
        if self._kind is np.float32 and len(rows) > MANY:
            form = self._form(at, rows)
            new = None
            if form is not None:
                form[np.diag_indices(len(rows))] += self._nu
                new = nearest_multipliers(form, at.gradient[rows], at.dual[rows])
            found = None if new is None else self._search(at, rows, new - at.dual[rows])
            if found is not None:
                return found
        self._kind = np.float64
        form = self._form(at, rows)
        if form is None:
            return None
        ridge, diagonal = _RIDGE, np.diag_indices(len(rows))
        size = max(float(np.mean(form[diagonal])), 1e-12 * self.sigma)
        plain = form[diagonal] + self._nu
        while True:
            form[diagonal] = plain + ridge * size
            new = nearest_multipliers(form, at.gradient[rows], at.dual[rows])
            if new is not None:
                found = self._search(at, rows, new - at.dual[rows])
                if found is not None:
                    return found
            ridge *= 100.0
            if ridge > _MOST_RIDGE:
                return self._search(at, rows, -at.gradient[rows] / self._scale[rows])

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
        block = float(
            (at.dual[rows][falling] / -direction[falling]).min(initial=np.inf)
        )  # the first multiplier reaches zero here
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
