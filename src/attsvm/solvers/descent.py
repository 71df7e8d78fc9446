r"""Block coordinate ascent on the dual, one sequence at a time.

.. math:: \max_{0\le\lambda\le C}\; b^\top\lambda - \tfrac12\Big\|\sum_c\lambda_c A_c\Big\|_F^2

The state is :math:`W=\sum_c\lambda_c A_c`. For sequence :math:`i` the slopes of its block need only
:math:`W z_i`, the block is improved by a few coordinate sweeps (Hildreth; Hsieh et al., *A dual
coordinate descent method for large-scale linear SVM*, 2008), and :math:`W` follows by one rank-one
update. An epoch costs as much as one gradient and converges linearly. Rows that cannot become
active soon are left out of most epochs (Joachims, *Making large-scale SVM learning practical*,
1998).

Large programmes are cut into two parts whose epochs start from the same :math:`W`, on two cores,
and their changes :math:`\Delta_j` of :math:`W` are added (after Jaggi et al.,
*Communication-efficient distributed dual coordinate ascent*, 2014). Exact steps of each part gain
:math:`\frac12\|\Delta_j\|_F^2`, so their sum gains as long as
:math:`\|\sum_j\Delta_j\|_F^2<2\sum_j\|\Delta_j\|_F^2`. Where that is not so by a margin, parts are
taken one after the other. The parts depend on the programme alone, not on the number of cores.
"""

from __future__ import annotations

import itertools
import time

import numpy as np

from attsvm.cores import shared_out
from attsvm.data import BoolArray, FloatArray
from attsvm.solvers import kernels
from attsvm.solvers.programme import Programme
from attsvm.solvers.threads import one_thread

_INNER_SWEEPS = 5
_REFRESH = 25  # epochs between recomputations of W from the multipliers
_LARGEST_GRAMS = 1 << 26  # entries: half a gigabyte
_WAKE = 8  # epochs between two that look at all rows
_LARGE = 1 << 23  # numbers in the token differences from which parts pay
_PARTS = 2  # more of them hinder each other: the epochs double at four
_HINDRANCE = 1.5  # square of the sum of the changes over the sum of their squares


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
        large = programme.D.size >= _LARGE
        ends = np.linspace(0, programme.m, (_PARTS if large else 1) + 1)
        cuts = np.unique(np.searchsorted(programme.offsets, ends))
        self._parts = list(itertools.pairwise(cuts.tolist()))
        if self._starts[-1] <= _LARGEST_GRAMS:
            self._grams = np.empty(self._starts[-1])
            shared_out(self._multiply, self._parts)
            self._diagonal = None
        else:
            self._diagonal = programme.diagonal
        self._asleep = np.zeros(programme.m, dtype=np.bool_)

    def _multiply(self, part: tuple[int, int]) -> None:
        """The Gram blocks of the sequences from the first of ``part`` to before its second."""
        p, (first, last) = self.programme, part
        rows = slice(p.offsets[first], p.offsets[last])
        offsets, starts = (
            each[first : last + 1] - each[first] for each in (p.offsets, self._starts)
        )
        with one_thread():
            self._grams[self._starts[first] : self._starts[last]] = kernels.block_grams(
                p.D[rows], offsets, self._size[first:last], starts
            )

    def run(self, epochs: int, target: float, deadline: float) -> None:
        """Up to ``epochs`` more epochs, until the residual is at most ``target`` or the clock
        passes ``deadline``.
        """
        p = self.programme
        met: list[float] = []
        while len(met) < epochs:
            whole = not met or len(met) % _WAKE == 0 or met[-1] <= target or len(met) == epochs - 1
            self._asleep[:] &= not whole
            bar = met[-1] if met else np.inf
            met.append(self._epoch(self.dual, self.W, _INNER_SWEEPS, self._asleep, bar))
            self.epochs += 1
            if self.epochs % _REFRESH == 0:
                self.W = p.adjoint(self.dual)
            if (met[-1] <= target and whole) or time.monotonic() > deadline:
                break
        self.residual = float(met[-1])
        middle = len(met) // 2
        if 0 < middle < len(met) - 1 and met[middle] > 0:
            self.rate = float((met[-1] / met[middle]) ** (1.0 / (len(met) - 1 - middle)))

    def sweep(self, dual: FloatArray, W: FloatArray, inner: int) -> float:
        """One epoch over all rows on ``dual`` and ``W``, in place, for any ``W`` that moves with
        ``adjoint(dual)``; largest projected gradient met.
        """
        return self._epoch(dual, W, inner, np.zeros(len(dual), np.bool_), np.inf)

    def _epoch(
        self, dual: FloatArray, W: FloatArray, inner: int, asleep: BoolArray, bar: float
    ) -> float:
        """One epoch over the rows that are awake, all parts at once."""
        if len(self._parts) == 1:
            return self._part(self._parts[0], dual, W, inner, asleep, bar)

        def change(part: tuple[int, int]) -> tuple[float, FloatArray]:
            moved = W.copy()
            worst = self._part(part, dual, moved, inner, asleep, bar)
            return worst, moved - W

        found = shared_out(change, self._parts)
        total = np.sum([each for _, each in found], axis=0)
        W += total
        if float((total**2).sum()) > _HINDRANCE * sum(float((each**2).sum()) for _, each in found):
            self._parts = [(0, len(self.programme.offsets) - 1)]
        return max(worst for worst, _ in found)

    def _part(
        self,
        part: tuple[int, int],
        dual: FloatArray,
        W: FloatArray,
        inner: int,
        asleep: BoolArray,
        bar: float,
    ) -> float:
        """The epoch of the sequences from the first of ``part`` to before its second."""
        p, (first, last) = self.programme, part
        start, stop = p.offsets[first], p.offsets[last]
        rows, offsets = slice(start, stop), p.offsets[first : last + 1] - start
        arrays = p.D[rows], p.Z[first:last], offsets, p.b[rows], p.cap[rows]
        rest = dual[rows], W, inner, asleep[rows], bar
        if self._diagonal is None:
            starts = self._starts[first : last + 1]
            grams = self._grams[starts[0] : starts[-1]]
            return kernels.sweep_blocks(*arrays, grams, starts - starts[0], *rest)
        diagonal, size = self._diagonal[rows], self._size[first:last]
        return kernels.sweep_rows(*arrays, diagonal, size, *rest)

    @property
    def epoch_cost(self) -> float:
        """Multiply-adds of one epoch."""
        p = self.programme
        return 2.0 * float(p.Z.shape[0] * p.dof + p.D.size)
