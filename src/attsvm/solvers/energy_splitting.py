r"""Splitting for entrywise norms: proximal map of the power against projection onto the margins.

.. math:: \min_W \tfrac1p\|W\|_p^p \ \text{ s.t. }\ \langle A_c, W\rangle\ge b_c, \qquad 1<p<\infty.

The alternating direction method (Gabay and Mercier 1976; Boyd et al., *Distributed optimization and
statistical learning via the alternating direction method of multipliers*, 2011) keeps two copies of
the weights: ``X`` is a proximal point of the power, ``W`` the projection of ``X - U`` onto the
margins. The projection is a Frobenius programme around another centre, so block coordinate ascent
solves it, and two epochs from the last multipliers are enough, except in narrow cones
(:mod:`attsvm.solvers.projection`). ``sigma * dual`` are the multipliers of the programme. Where the
multipliers of the programme are bounded (soft margins), so are those of the projection, at
``cap / sigma``.
"""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np

from attsvm.data import FloatArray
from attsvm.solvers.descent import BlockAscent
from attsvm.solvers.energies import Energy
from attsvm.solvers.programme import Programme
from attsvm.solvers.projection import EPOCHS, approach

_RELAXATION = 1.6
_STREAMING, _POWER = 4.0, 300.0  # cost of a memory-bound multiply-add, and of a proximal point
_BALANCE = 10  # iterations between changes of sigma
_FARTHEST = 8.0  # largest factor of one change


class EnergySplitting:
    """The iterate; :meth:`run` improves it in place.

    Attributes:
        W: weights after the last projection, nearly feasible.
        X: proximal point.
        sigma: weight of the distance between the two copies.
        iterations: iterations so far.
    """

    def __init__(
        self,
        programme: Programme,
        energy: Energy,
        W: FloatArray,
        dual: FloatArray,
        *,
        exact: bool = False,
    ) -> None:
        """Start from weights, ``(d_x, d_z)`` and not zero, and multipliers of the power programme,
        ``(m,)``.

        ``exact`` projects exactly; of hard programmes.
        """
        self.programme, self.energy, self._exact = programme, energy, exact
        self.W, self.X = W.copy(), W.copy()
        pulled = programme.adjoint(dual)
        slope = energy.slope(W)
        self.sigma = float(np.linalg.norm(slope) / np.linalg.norm(W))
        self._ascent = BlockAscent(
            replace(programme, cap=programme.cap / self.sigma), dual / self.sigma
        )
        self._dual = self._ascent.dual
        self._U = pulled / self.sigma
        self.iterations = 0

    @property
    def dual(self) -> FloatArray:
        """``(m,)`` multipliers of the power programme."""
        scaled: FloatArray = self.sigma * self._dual
        return scaled

    @property
    def cost(self) -> float:
        """Multiply-adds of one iteration, in units of those of a matrix product."""
        return _STREAMING * EPOCHS * self._ascent.epoch_cost + _POWER * self.programme.dof

    def run(self, iterations: int, deadline: float) -> None:
        """That many more iterations, fewer when the clock passes ``deadline``."""
        for _ in range(iterations):
            self.W = approach(self._ascent, self.X - self._U, exact=self._exact)
            relaxed = _RELAXATION * self.W + (1.0 - _RELAXATION) * self.X
            before = self.X
            self.X = self.energy.proximal(relaxed + self._U, 1.0 / self.sigma).W
            self._U += relaxed - self.X
            self.iterations += 1
            if self.iterations % _BALANCE == 0:
                self._balance(before)
            if time.monotonic() > deadline:
                break

    def _balance(self, before: FloatArray) -> None:
        """Bring the relative distance of the copies and the relative change of the multipliers
        towards each other.
        """
        apart = float(np.linalg.norm(self.W - self.X)) / max(float(np.linalg.norm(self.X)), 1e-300)
        moved = float(np.linalg.norm(self.X - before)) / max(float(np.linalg.norm(self._U)), 1e-300)
        if apart <= 0.0 or moved <= 0.0:
            return
        factor = float(np.clip(np.sqrt(apart / moved), 1.0 / _FARTHEST, _FARTHEST))
        if 0.67 < factor < 1.5:
            return
        self.sigma *= factor
        self._U /= factor
        self._dual /= factor
        self._ascent.programme.cap[:] /= factor
