r"""Block coordinate ascent on the dual of the Frobenius programme, one sequence at a time.

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

import functools
import itertools
import time

import numpy as np

from attsvm.base.cores import shared_out
from attsvm.datasets.attention_data import FloatArray
from attsvm.native import ProgrammeRows, address, library
from attsvm.solvers.programme import Programme

_INNER_SWEEPS = 5
_REFRESH = 25  # epochs between recomputations of W from the multipliers
_LARGEST_GRAMS = 1 << 26  # entries: half a gigabyte
_WAKE = 8  # epochs between two that look at all rows
_WORTH_SLEEP = 1 << 18  # numbers in the differences from which rows asleep save more than the last
# epoch, over all, costs
_LARGE = 1 << 23  # and from which parts pay
_PARTS = 2  # more of them hinder each other: the epochs double at four
_HINDRANCE = 1.5  # square of the sum of the changes over the sum of their squares


class _Part:
    """Neighbouring sequences of a programme, from ``first`` to before ``last``, for compiled
    epochs.
    """

    def __init__(self, p: Programme, first: int, last: int, stored: bool) -> None:
        self.rows, offsets = p.rows_of(first, last)
        count = len(offsets) - 1
        self.m = int(offsets[-1])
        self._struct = ProgrammeRows(
            p.D[self.rows],
            p.Z[first:last],
            p.b[self.rows],
            p.cap[self.rows],
            offsets,
            np.zeros(self.m, np.uint8),
        )
        rows = np.diff(offsets)
        self._starts = np.concatenate([[0], np.cumsum(rows * rows)])
        self._diagonal = p.diagonal[self.rows]
        self._asleep = np.zeros(self.m, np.uint8)
        self._work = np.empty(2 * p.D.shape[1] + 3 * int(rows.max(initial=0)))
        self._grams = np.empty(self._starts[-1] if stored else 0)
        starts = address(self._starts, np.int64, count + 1)
        if stored:
            library.block_grams(
                self._struct, starts, address(self._grams, np.float64, self._starts[-1])
            )
        self._before = (
            self._grams.__array_interface__["data"][0] if stored else None,
            starts,
            address(self._diagonal, np.float64, self.m),
        )
        self.room = np.empty((p.D.shape[1], p.Z.shape[1]))  # for the weights that it moves

    def wake(self) -> None:
        """Let the next epoch look at all rows."""
        self._asleep[:] = 0

    def epoch(self, dual: FloatArray, W: FloatArray, inner: int, bar: float) -> float:
        """One epoch on ``W`` and the multipliers of all rows of the programme, in place; the
        largest projected gradient met.
        """
        worst: float = library.ascend(
            self._struct,
            *self._before,
            address(dual[self.rows], np.float64, self.m),
            address(W, np.float64, *self.room.shape),
            address(self._asleep, np.uint8, self.m),
            bar,
            inner,
            address(self._work, np.float64, len(self._work)),
        )
        return worst


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
        self.dual = np.ascontiguousarray(dual)
        self.W = programme.adjoint(self.dual)
        self.residual = np.inf
        self.rate = 1.0
        self.epochs = 0
        counts = np.diff(programme.offsets)
        self._stored = int(counts @ counts) <= _LARGEST_GRAMS
        parts = [(0, len(counts))]
        if programme.D.size >= _LARGE:
            ends = np.linspace(0, programme.m, _PARTS + 1)
            cuts = np.unique(np.searchsorted(programme.offsets, ends))
            parts = list(itertools.pairwise(cuts.tolist()))
        self._parts = shared_out(lambda part: _Part(programme, *part, self._stored), parts)

    def run(self, epochs: int, target: float, deadline: float) -> None:
        """Up to ``epochs`` more epochs, until the residual is at most ``target`` or the clock
        passes ``deadline``.
        """
        p = self.programme
        small = p.D.size < _WORTH_SLEEP
        met: list[float] = []
        while len(met) < epochs:
            whole = small or len(met) % _WAKE == 0 or met[-1] <= target or len(met) == epochs - 1
            bar = met[-1] if met else np.inf
            met.append(self._epoch(self.dual, self.W, _INNER_SWEEPS, whole, bar))
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
        return self._epoch(dual, W, inner, True, np.inf)

    def _epoch(self, dual: FloatArray, W: FloatArray, inner: int, whole: bool, bar: float) -> float:
        """One epoch over all rows, or those that are awake, all parts at once."""
        if whole:
            for part in self._parts:
                part.wake()
        if len(self._parts) == 1:
            return self._parts[0].epoch(dual, W, inner, bar)

        def change(part: _Part) -> tuple[float, FloatArray]:
            moved = part.room
            np.copyto(moved, W)
            worst = part.epoch(dual, moved, inner, bar)
            moved -= W
            return worst, moved

        found = shared_out(change, self._parts)
        total = functools.reduce(np.add, [each for _, each in found])
        W += total
        if np.vdot(total, total) > _HINDRANCE * sum(np.vdot(each, each) for _, each in found):
            self._parts = [_Part(self.programme, 0, len(self.programme.Z), self._stored)]
        return max(worst for worst, _ in found)

    @property
    def epoch_cost(self) -> float:
        """Multiply-adds of one epoch."""
        p = self.programme
        return 2.0 * float(p.Z.shape[0] * p.dof + p.D.size)
