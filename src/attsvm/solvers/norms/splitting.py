r"""Splitting: the proximal map of an energy against the projection onto the margins.

.. math:: \min_{V,W}\ f(V) \ \text{ s.t. }\ W=V,\quad \langle A_c,W\rangle\ge b_c\ \text{ for all }
    c.

The alternating direction method (Gabay and Mercier 1976; Boyd et al., *Distributed optimization and
statistical learning via the alternating direction method of multipliers*, 2011, with
over-relaxation and residual balancing as there) keeps two copies of the weights. One iteration
projects :math:`V-U` onto the margins, which is a Frobenius programme solved roughly by two warm
epochs of block dual coordinate ascent (state :math:`W=V-U+A^\top\lambda`), or exactly
(:mod:`attsvm.solvers.norms.projection`), which narrow cones of weights need. Then it takes the
proximal point of :math:`W+U`, and adds what is left to :math:`U`. At the fixed point
:math:`U=A^\top\lambda\in t\,\partial f(V)`, so :math:`\lambda` certifies the energy of :math:`V` by
itself. The iterates :math:`V` have exact low rank for the nuclear norm. Where the multipliers of
the programme are bounded (soft margins), so are those of the projection, at ``cap * t``.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from attsvm.data import FloatArray
from attsvm.solvers.ascent import BlockAscent
from attsvm.solvers.norms.projection import EPOCHS, approach
from attsvm.solvers.programme.programme import Programme

_MISSES = 20  # exact projections in a row that were not found, after which none is tried
_RELAXATION = 1.6
_STREAMING, _POWER = 4.0, 300.0  # cost of a memory-bound multiply-add, and of a proximal point
_BALANCE_EVERY = 10


class Balance(NamedTuple):
    """When the step changes: never by more than ``most``, not where it would by less than
    ``least``, and not after ``until`` iterations, where changes would undo convergence.
    """

    least: float
    most: float
    until: float = np.inf


ENTRIES = Balance(1.5, 8.0)
SINGULAR_VALUES = Balance(3.0**0.5, 4.0, 400)


class Splitting:
    r"""The iterate; :meth:`run` improves it in place.

    Attributes:
        W: weights after the last projection, nearly feasible.
        V: weights after the proximal map: low rank (nuclear) or capped (spectral), margins met only
            in the limit.
        t: step of the proximal map.
        iterations: iterations so far.
    """

    def __init__(
        self,
        programme: Programme,
        nearest: Callable[[FloatArray, float], FloatArray],
        weights: FloatArray,
        dual: FloatArray,
        t: float,
        *,
        exact: bool = False,
        balance: Balance = ENTRIES,
    ) -> None:
        """Start from weights, ``(d_x, d_z)``, and multipliers of the energy's programme, ``(m,)``.

        ``nearest(x, t)`` is the proximal point of ``t`` times the energy at ``x``.
        ``exact`` projects exactly; of hard programmes.
        """
        self.programme, self.t, self._nearest = programme, t, nearest
        self._exact, self._rule, self._misses = exact, balance, 0
        self.W = self.V = weights
        self._ascent = BlockAscent(replace(programme, cap=programme.cap * t), dual * t)
        self._U = self._ascent.W.copy()
        self.iterations = 0

    @property
    def dual(self) -> FloatArray:
        r"""``(m,)`` multipliers of the energy's programme: :math:`A^\top\lambda` tends to a
        subgradient of :math:`f` at ``V``.
        """
        scaled: FloatArray = self._ascent.dual / self.t
        return scaled

    @property
    def cost(self) -> float:
        """Multiply-adds of one iteration, in units of those of a matrix product."""
        return _STREAMING * EPOCHS * self._ascent.epoch_cost + _POWER * self.programme.dof

    def run(self, iterations: int, deadline: float) -> None:
        """That many more iterations, fewer when the clock passes ``deadline``."""
        for _ in range(iterations):
            centre, trying = self.V - self._U, self._misses < _MISSES
            self.W, found = approach(self._ascent, centre, exact=self._exact and trying)
            self._misses = 0 if found else self._misses + self._exact
            mixed = _RELAXATION * self.W + (1.0 - _RELAXATION) * self.V
            before, self.V = self.V, self._nearest(mixed + self._U, self.t)
            self._U += mixed - self.V
            self.iterations += 1
            if self.iterations % _BALANCE_EVERY == 0 and self.iterations <= self._rule.until:
                self._balance(before)
            if time.monotonic() > deadline:
                break

    def _balance(self, before: FloatArray) -> None:
        """Bring the relative distance of the copies and the relative change of the multipliers
        towards each other.
        """
        apart = _relative(self.W - self.V, self.V)
        moved = _relative(self.V - before, self._U)
        if not (apart > 0.0 and moved > 0.0):
            return
        # A large distance asks for a smaller t, which lets the weights keep closer to the margins.
        factor = np.sqrt(moved / apart)
        if 1.0 / self._rule.least < factor < self._rule.least:
            return
        factor = float(np.clip(factor, 1.0 / self._rule.most, self._rule.most))
        self.t *= factor
        self._U *= factor
        self._ascent.dual *= factor
        self._ascent.programme.cap[:] *= factor


def _relative(change: FloatArray, size: FloatArray) -> float:
    """Ratio of norms; 0 where there is nothing to compare with."""
    whole = float(np.linalg.norm(size))
    return float(np.linalg.norm(change)) / whole if whole > 0.0 else 0.0
