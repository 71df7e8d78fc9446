r"""Projections onto the margins, which splitting makes again and again:

.. math:: P(Y)=\arg\min_W\tfrac12\|W-Y\|_F^2\ \text{ s.t. }\ \langle A_c,W\rangle\ge b_c,
   \qquad P(Y)=Y+A^\top\lambda,\quad 0\le\lambda\le\text{cap},

of soft margins the proximal map of their loss. Each begins from the multipliers of the last one.
Three classes make them: of many rows not quite, by epochs of block ascent; exactly, by active sets
whose factor stays; and exactly where columns are of very different sizes.
"""

from __future__ import annotations

import ctypes
import math
import time
from typing import NamedTuple

import numpy as np

from attsvm import native
from attsvm.datasets.attention_data import FloatArray
from attsvm.native import address, library
from attsvm.solvers.ascent import BlockAscent
from attsvm.solvers.columns import UnevenSolution
from attsvm.solvers.deadline import cholesky_work, steps_per_look
from attsvm.solvers.programme import Programme

_ROUNDING = 4e-15  # of the margin of a unit row, beside weights of size one


class ProjectionOptions(NamedTuple):
    """Numbers of the projections.

    Attributes:
        sweeps: over the rows of a block in one epoch of ascent; later ones gain little.
        gram_work: multiply-adds in the time of one entry of a Gram matrix, which waits for memory.
    """

    sweeps: int = 3
    gram_work: float = 300.0


PROJECTIONS = ProjectionOptions()


class AscentProjection:
    """Projections by epochs of block ascent from the multipliers of the last one."""

    def __init__(
        self,
        p: Programme,
        dual: FloatArray,
        epochs: int,
        options: ProjectionOptions = PROJECTIONS,
    ) -> None:
        self._programme, self._ascent, self._epochs = p, BlockAscent(p, dual), epochs
        self._sweeps = options.sweeps

    @property
    def dual(self) -> FloatArray:
        """``(m,)`` multipliers of the last projection."""
        return self._ascent.dual

    def nearest(self, centre: FloatArray, deadline: float = math.inf) -> FloatArray:
        """``(d_x, d_z)``: the projection, with fewer epochs where the time is over."""
        W: FloatArray = centre + self._programme.adjoint(self.dual)
        for _ in range(self._epochs):
            if time.monotonic() > deadline:
                break
            self._ascent.sweep(self.dual, W, self._sweeps)
        return W

    def rescale(self, factor: float) -> None:
        """Multiply multipliers and their bounds."""
        self._ascent.dual *= factor
        self._programme.cap[:] *= factor


class ActiveSetProjection:
    """Exact projections by the method of active sets (``native/active_set.hpp``) on rows of length
    one; the factor of the free rows stays between them.
    """

    def __init__(self, p: Programme, dual: FloatArray) -> None:
        length = np.sqrt(p.diagonal)
        self._length = np.where(length > 0.0, length, 1.0)
        rows = np.arange(p.m)
        G = np.ascontiguousarray(p.gram(rows))
        G /= self._length[:, None]
        G /= self._length
        # Of two opposite rows the first stands for both, with a multiplier of any sign.
        opposite = -np.ones(p.m, np.int64) if p.opposite is None else p.opposite
        self._first = np.flatnonzero(rows < opposite)
        self._second = opposite[self._first]
        # An empty row never becomes active.
        G[self._second] = G[:, self._second] = 0.0
        self._G, self._cap = G, p.cap * self._length
        self._has_any_sign, self._slope = np.zeros(p.m, np.uint8), np.empty(p.m)
        self._has_any_sign[self._first] = 1
        self._programme, self._multipliers = p, dual * self._length
        self._multipliers[self._first] -= self._multipliers[self._second]
        self._multipliers[self._second] = 0.0
        self._set, self._steps = native.ActiveSet(p.m, p.dof), ctypes.c_int64()
        library.active_set_begin(
            address(G, np.float64, p.m, p.m), *self._box(), self._address(self._multipliers)
        )

    @staticmethod
    def work(p: Programme, options: ProjectionOptions = PROJECTIONS) -> float:
        """Multiply-adds in the time that it takes to begin: a Gram matrix, and a factor of the rows
        that may be free.
        """
        return options.gram_work * p.m**2 + 2.0 * cholesky_work(min(p.m, p.dof))

    @property
    def dual(self) -> FloatArray:
        """``(m,)`` multipliers of the last projection."""
        dual: FloatArray = self._multipliers / self._length
        dual[self._second] = np.maximum(-dual[self._first], 0.0)
        dual[self._first] = np.maximum(dual[self._first], 0.0)
        return dual

    def nearest(self, centre: FloatArray, deadline: float = math.inf) -> FloatArray:
        """``(d_x, d_z)``: the projection, or what is reached when the time is over."""
        p = self._programme
        rhs = np.ascontiguousarray((p.b - p.values(centre)) / self._length)
        size = max(1.0, float(np.abs(centre).max()))
        # Each row enters and leaves a few times; more is a circle of rounding.
        left = most = 4 * p.m + 100
        per_look = steps_per_look(p.m, deadline, most)
        while left > 0:
            outcome = library.active_set(
                address(self._G, np.float64, p.m, p.m),
                self._address(rhs),
                *self._box(),
                _ROUNDING * size,
                min(per_look, left),
                self._address(self._multipliers),
                self._address(self._slope),
                self._steps,
            )
            left -= per_look
            if outcome != native.STOPPED or time.monotonic() > deadline:
                break
        W: FloatArray = centre + p.adjoint(self.dual)
        return W

    def rescale(self, factor: float) -> None:
        """Multiply multipliers and their bounds."""
        self._multipliers *= factor
        self._cap *= factor

    def _box(self) -> tuple[int, int, native.ActiveSet]:
        """Bounds, signs and the active set, as the compiled core takes them."""
        signs = address(self._has_any_sign, np.uint8, len(self._has_any_sign))
        return self._address(self._cap), signs, self._set

    def _address(self, numbers: FloatArray) -> int:
        return address(numbers, np.float64, len(numbers))


class CappedProjection:
    r"""Exact projections where columns are of very different sizes: one proximal step of
    :mod:`attsvm.solvers.columns` each, which converges together with the splitting.

    Attributes:
        w: ``(d_x d_z,)`` weights of the capped programme, the centre of the next step.
    """

    def __init__(self, p: Programme, dual: FloatArray, start: UnevenSolution) -> None:
        self._rho = start.capped.rho
        self._rest = 1.0 - self._rho**2
        self.w = start.w
        self._projection = ActiveSetProjection(p, dual)

    @property
    def dual(self) -> FloatArray:
        """``(m,)`` multipliers of the last projection."""
        return self._projection.dual

    def nearest(self, centre: FloatArray, deadline: float = math.inf) -> FloatArray:
        """``(d_x, d_z)``: one step towards the projection."""
        # A proximal step, around a mixture of the centre and the last weights.
        around = self._rho * centre.reshape(-1) + self._rest * self.w
        self.w = w = self._projection.nearest(around[:, None], deadline)[:, 0]
        return (self._rho * w).reshape(centre.shape)

    def rescale(self, factor: float) -> None:
        """Multiply multipliers and their bounds."""
        self._projection.rescale(factor)


Projection = AscentProjection | ActiveSetProjection | CappedProjection
