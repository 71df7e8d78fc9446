r"""Block coordinate ascent on the dual, one sequence at a time.

.. math:: \max_{0\le\lambda\le C}\; b^\top\lambda - \tfrac12\Big\|\sum_c\lambda_c A_c\Big\|_F^2

The state is :math:`W=\sum_c\lambda_c A_c`. For sequence :math:`i` the slopes of its block need only
:math:`W z_i`, the block is improved by a few coordinate sweeps (Hildreth; Hsieh et al., *A dual
coordinate descent method for large-scale linear SVM*, 2008), and :math:`W` follows by one rank-one
update. An epoch costs as much as one gradient and converges linearly.
"""

from __future__ import annotations

import time

import numpy as np

from attsvm.data import FloatArray
from attsvm.solvers import kernels
from attsvm.solvers.programme import Programme

_INNER_SWEEPS = 5
_REFRESH = 25  # epochs between recomputations of W from the multipliers
_LARGEST_GRAMS = 1 << 26  # entries: half a gigabyte


class BlockAscent:
    """Dual iterate with its weights; :meth:`run` improves both in place.

    Attributes:
        dual: multipliers, inside their box at all times.
        W: ``adjoint(dual)`` up to rounding.
        residual: largest projected gradient met in the last epoch.
        rate: factor by which an epoch shrank the residual, averaged over the last run.
        epochs: epochs so far.
    """

    def __init__(self, programme: Programme, dual: FloatArray) -> None:
        self.programme = programme
        self.dual = dual
        self.W = programme.adjoint(dual)
        self.residual = np.inf
        self.rate = 1.0
        self.epochs = 0
        self._size = np.einsum("nd,nd->n", programme.Z, programme.Z)
        counts = np.diff(programme.offsets)
        self._starts = np.concatenate([[0], np.cumsum(counts * counts)])
        if self._starts[-1] <= _LARGEST_GRAMS:
            self._grams = kernels.block_grams(
                programme.D, programme.offsets, self._size, self._starts
            )
            self._diagonal = None
        else:
            self._diagonal = programme.diagonal

    def run(self, epochs: int, target: float, deadline: float) -> None:
        """Up to ``epochs`` more epochs, until the residual is at most ``target`` or the clock
        passes ``deadline``.
        """
        p = self.programme
        met: list[float] = []
        while len(met) < epochs:
            worst = self.sweep(self.dual, self.W, _INNER_SWEEPS)
            met.append(worst)
            self.epochs += 1
            if self.epochs % _REFRESH == 0:
                self.W = p.adjoint(self.dual)
            if worst <= target or time.monotonic() > deadline:
                break
        self.residual = float(met[-1])
        middle = len(met) // 2
        if 0 < middle < len(met) - 1 and met[middle] > 0:
            self.rate = float((met[-1] / met[middle]) ** (1.0 / (len(met) - 1 - middle)))

    def sweep(self, dual: FloatArray, W: FloatArray, inner: int) -> float:
        """One epoch on ``dual`` and ``W``, in place, for any ``W`` that moves with
        ``adjoint(dual)``; largest projected gradient met.
        """
        p = self.programme
        if self._diagonal is None:
            return kernels.sweep_blocks(
                p.D, p.Z, p.offsets, p.b, p.cap, self._grams, self._starts, dual, W, inner
            )
        return kernels.sweep_rows(
            p.D, p.Z, p.offsets, p.b, p.cap, self._diagonal, self._size, dual, W, inner
        )

    @property
    def epoch_cost(self) -> float:
        """Multiply-adds of one epoch."""
        p = self.programme
        return 2.0 * float(p.Z.shape[0] * p.dof + p.D.size)
