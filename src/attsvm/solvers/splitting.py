r"""Alternating directions for norms of singular values.

.. math:: \min_{V,W}\ f(\sigma(V)) \ \text{ s.t. }\ W=V,\quad \langle A_c,W\rangle\ge b_c\ \text{
    for all } c.

One iteration projects :math:`V-U` onto the margins, which is a Frobenius programme solved roughly
by two warm epochs of block dual coordinate ascent (state :math:`W=V-U+A^\top\lambda`), or exactly
(:mod:`attsvm.solvers.projection`), which narrow cones of weights need. Then it shrinks the singular
values of
:math:`W+U`, and adds what is left to :math:`U`. At the fixed point
:math:`U=A^\top\lambda\in t\,\partial f(V)`, so :math:`\lambda` certifies the norm of :math:`V` by
itself (Boyd et al., *Distributed optimization and statistical learning via the alternating
direction method of multipliers*, 2011, with over-relaxation and residual balancing as there). The
iterates :math:`V` have exact low rank for the nuclear norm.
"""

from __future__ import annotations

import time

import numpy as np

from attsvm.data import FloatArray
from attsvm.geometry import Schatten
from attsvm.solvers.certificates import scale_rows
from attsvm.solvers.descent import BlockAscent
from attsvm.solvers.energies import energy_of
from attsvm.solvers.programme import Programme
from attsvm.solvers.projection import approach
from attsvm.solvers.spectra import length, singular_values

_RELAXATION = 1.6
_BALANCE_EVERY, _BALANCE, _MOST_BALANCE = 10, 3.0, 4.0
_BALANCING_UNTIL = 400  # later changes of t would undo convergence


class Splitting:
    r"""Weights and multipliers; :meth:`run` improves them in place.

    Attributes:
        V: weights after the proximal map: low rank (nuclear) or capped (spectral), margins met only
            in the limit.
        dual: ``(m,)`` multipliers, non-negative.
        t: step of the proximal map; :math:`A^\top\lambda/t` tends to a subgradient of :math:`f` at
            ``V``.
        iterations: iterations so far.
        error: larger of the relative gap and the relative violation (rows with right-hand side 0
            keep one) at the last check.
    """

    def __init__(
        self,
        programme: Programme,
        norm: Schatten,
        weights: FloatArray,
        dual: FloatArray,
        t: float,
        *,
        exact: bool = False,
    ) -> None:
        self.programme, self.gauge = programme, norm.gauge
        self.energy = energy_of(norm.p)
        self._exact = exact
        self._ascent = BlockAscent(programme, dual.copy())
        self.V = weights
        self.dual = self._ascent.dual
        self._U = self._ascent.W.copy()
        self.t = t
        self.iterations = 0
        self.error = np.inf
        size = length(singular_values(weights), self.gauge.p)
        pull = length(singular_values(self._U), self.gauge.q)
        self._rescale(t * size ** (self.energy.degree - 1.0) / pull)

    def run(self, iterations: int, target: float, every: int, deadline: float) -> None:
        """Up to ``iterations`` more; ends when :attr:`error`, checked ``every`` so many, is at most
        ``target``, or at ``deadline``.
        """
        for _ in range(iterations):
            W = approach(self._ascent, self.V - self._U, exact=self._exact)
            mixed = _RELAXATION * W + (1.0 - _RELAXATION) * self.V
            left, s, right = np.linalg.svd(mixed + self._U, full_matrices=False)
            values = self.energy.sizes(s, self.t)
            before, self.V = self.V, (left * values) @ right
            self._U = self._U + mixed - self.V
            self.iterations += 1
            if self.iterations % every == 0:
                self.error = self._measure()
                if self.error <= target or time.monotonic() > deadline:
                    return
            if self.iterations % _BALANCE_EVERY == 0 and self.iterations <= _BALANCING_UNTIL:
                self._balance(_relative(W - self.V, self.V), _relative(self.V - before, self._U))

    def _measure(self) -> float:
        p = self.programme
        positive, values = scale_rows(p.b), p.values(self.V)
        ratio = float((values[positive] / p.b[positive]).min())
        bottom = length(singular_values(p.adjoint(self.dual)), self.gauge.q)
        if not (ratio > 0.0 and bottom > 0.0):
            return np.inf
        gap = 1.0 - float(p.b @ self.dual) * ratio / (
            bottom * length(singular_values(self.V), self.gauge.p)
        )
        return max(0.0, gap, float((p.b - values / ratio).max()) / float(p.b.max()))

    def _balance(self, primal: float, dual: float) -> None:
        if primal > 0.0 and dual > 0.0 and not 1.0 / _BALANCE < primal / dual < _BALANCE:
            # A large primal residual asks for a smaller t, which lets the weights keep closer to
            # the margins.
            self._rescale(
                float(np.clip(np.sqrt(dual / primal), 1.0 / _MOST_BALANCE, _MOST_BALANCE)), True
            )

    def _rescale(self, factor: float, step: bool = False) -> None:
        self.dual *= factor
        self._U *= factor
        if step:
            self.t *= factor


def _relative(change: FloatArray, size: FloatArray) -> float:
    """Ratio of norms; 0 where there is nothing to compare with."""
    whole = float(np.linalg.norm(size))
    return float(np.linalg.norm(change)) / whole if whole > 0.0 else 0.0
