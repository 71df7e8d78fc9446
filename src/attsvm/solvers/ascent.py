r"""Block coordinate ascent on the dual of the Frobenius programme, one sequence at a time.

.. math:: \max_{0\le\lambda\le C}\; b^\top\lambda - \tfrac12\Big\|\sum_c\lambda_c A_c\Big\|_F^2

The state is :math:`W=\sum_c\lambda_c A_c`. An epoch goes through the sequences; for each of them

1. the slopes of its block need only :math:`W z_i`;
2. the block is improved by a few coordinate sweeps (Hildreth; Hsieh et al., *A dual coordinate
   descent method for large-scale linear SVM*, 2008);
3. :math:`W` follows by one rank-one update.

An epoch costs as much as one gradient and converges linearly. Rows that cannot become active soon
are asleep: they are left out of most epochs (Joachims, *Making large-scale SVM learning practical*,
1998).

Large programmes are cut into two segments whose epochs start from the same :math:`W`, on two cores,
and their changes :math:`\Delta_j` of :math:`W` are added (after Jaggi et al.,
*Communication-efficient distributed dual coordinate ascent*, 2014). Exact steps of each segment
gain :math:`\frac12\|\Delta_j\|_F^2`, so their sum gains as long as
:math:`\|\sum_j\Delta_j\|_F^2<2\sum_j\|\Delta_j\|_F^2`. Where that is not so by a margin, segments
are taken one after the other. They depend on the programme alone, not on the number of cores.
"""

from __future__ import annotations

import functools
import itertools
import time
from typing import NamedTuple

import numpy as np

from attsvm.base.cores import map_on_threads
from attsvm.datasets.attention_data import BoolArray, FloatArray
from attsvm.native import ProgrammeRows, address, library
from attsvm.solvers.programme import Programme


class AscentOptions(NamedTuple):
    """How epochs are made. They decide how long ascent takes, not where it ends.

    Attributes:
        sweeps: coordinate sweeps over the block of a sequence.
        epochs_per_refresh: epochs between recomputations of the weights from the multipliers.
        gram_entries: up to which the Gram blocks of all sequences are stored; half a gigabyte.
        epochs_per_wake: epochs between two that look at all rows.
        numbers_worth_sleep: in the differences, from which rows asleep save more than the last
            epoch, over all rows, costs.
        numbers_worth_segments: in the differences, from which segments on several cores pay.
        segments: more of them hinder each other: the epochs double at four.
        hindrance: square of the sum of their changes over the sum of the squares from which on
            segments are taken one after the other.
    """

    sweeps: int = 5
    epochs_per_refresh: int = 25
    gram_entries: int = 1 << 26
    epochs_per_wake: int = 8
    numbers_worth_sleep: int = 1 << 18
    numbers_worth_segments: int = 1 << 23
    segments: int = 2
    hindrance: float = 1.5


ASCENT = AscentOptions()


class _Segment:
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
        # Gram blocks lie end to end; small ones are made once.
        self._starts = np.concatenate([[0], np.cumsum(rows * rows)])
        self._diagonal = p.diagonal[self.rows]
        self.asleep = np.zeros(self.m, np.uint8)
        self._work = np.empty(2 * p.D.shape[1] + 3 * int(rows.max(initial=0)))
        self._grams = np.empty(self._starts[-1] if stored else 0)
        starts = address(self._starts, np.int64, count + 1)
        if stored:
            library.block_grams(
                self._struct, starts, address(self._grams, np.float64, self._starts[-1])
            )
        self._blocks = (
            self._grams.__array_interface__["data"][0] if stored else None,
            starts,
            address(self._diagonal, np.float64, self.m),
        )
        self.weights = np.empty((p.D.shape[1], p.Z.shape[1]))  # those that its epoch moves

    def wake(self) -> None:
        """Let the next epoch look at all rows."""
        self.asleep[:] = 0

    def epoch(self, dual: FloatArray, W: FloatArray, sweeps: int, bar: float) -> float:
        """Make one epoch on ``W`` and the multipliers of all rows of the programme, in place, and
        return the largest projected gradient met. Rows whose slope is above ``bar`` fall asleep.
        """
        worst: float = library.ascend(
            self._struct,
            *self._blocks,
            address(dual[self.rows], np.float64, self.m),
            address(W, np.float64, *self.weights.shape),
            address(self.asleep, np.uint8, self.m),
            bar,
            sweeps,
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

    def __init__(
        self, programme: Programme, dual: FloatArray, options: AscentOptions = ASCENT
    ) -> None:
        self.programme, self.options = programme, options
        self.dual = np.ascontiguousarray(dual)
        self.W = programme.adjoint(self.dual)
        self.residual = np.inf
        self.rate = 1.0
        self.epochs = 0
        counts = np.diff(programme.offsets)
        self._stored = int(counts @ counts) <= options.gram_entries
        ranges = [(0, len(counts))]
        # Cut where rows are about equally many, at the end of a sequence.
        if programme.D.size >= options.numbers_worth_segments:
            ends = np.linspace(0, programme.m, options.segments + 1)
            cuts = np.unique(np.searchsorted(programme.offsets, ends))
            ranges = list(itertools.pairwise(cuts.tolist()))
        self._segments = map_on_threads(
            lambda ends: _Segment(programme, *ends, self._stored), ranges
        )

    @property
    def segments(self) -> int:
        """Number of segments whose epochs run side by side."""
        return len(self._segments)

    @property
    def asleep(self) -> BoolArray:
        """``(m,)``: the rows that the next epoch leaves out."""
        return np.concatenate([segment.asleep for segment in self._segments]).astype(bool)

    def run(self, epochs: int, target: float, deadline: float) -> None:
        """Make up to ``epochs`` more epochs, until the residual is at most ``target`` or the clock
        passes ``deadline``.
        """
        p, options = self.programme, self.options
        is_small = p.D.size < options.numbers_worth_sleep
        residuals: list[float] = []
        while len(residuals) < epochs:
            over_all = (
                is_small
                or len(residuals) % options.epochs_per_wake == 0
                or residuals[-1] <= target
                or len(residuals) == epochs - 1
            )
            # Rows whose slope is above the last residual cannot become active soon.
            bar = residuals[-1] if residuals else np.inf
            residuals.append(self._epoch(self.dual, self.W, options.sweeps, over_all, bar))
            self.epochs += 1
            # Rank-one updates add up their rounding.
            if self.epochs % options.epochs_per_refresh == 0:
                self.W = p.adjoint(self.dual)
            # a residual of rows that are awake says nothing of those asleep
            if (residuals[-1] <= target and over_all) or time.monotonic() > deadline:
                break
        self.residual = float(residuals[-1])
        # The first half of a run still depends on where it began.
        middle = len(residuals) // 2
        if 0 < middle < len(residuals) - 1 and residuals[middle] > 0:
            shrunk = residuals[-1] / residuals[middle]
            self.rate = float(shrunk ** (1.0 / (len(residuals) - 1 - middle)))

    def sweep(self, dual: FloatArray, W: FloatArray, inner: int) -> float:
        """Make one epoch over all rows on ``dual`` and ``W``, in place, for any ``W`` that moves
        with ``adjoint(dual)``, and return the largest projected gradient met.
        """
        return self._epoch(dual, W, inner, True, np.inf)

    def _epoch(
        self, dual: FloatArray, W: FloatArray, sweeps: int, over_all: bool, bar: float
    ) -> float:
        """Make one epoch over all rows, or those that are awake, all segments at once."""
        # Rows that slept through epochs may be missed by now.
        if over_all:
            for segment in self._segments:
                segment.wake()
        if self.segments == 1:
            return self._segments[0].epoch(dual, W, sweeps, bar)

        def change(segment: _Segment) -> tuple[float, FloatArray]:
            moved = segment.weights
            np.copyto(moved, W)
            worst = segment.epoch(dual, moved, sweeps, bar)
            moved -= W
            return worst, moved

        # Each segment moves a copy of W; the sum of the changes is taken, in a fixed order.
        residuals, changes = zip(*map_on_threads(change, self._segments), strict=True)
        total = functools.reduce(np.add, changes)
        W += total
        # Changes that point the same way gain less together than their steps did.
        alone = sum(np.vdot(delta, delta) for delta in changes)
        if np.vdot(total, total) > self.options.hindrance * alone:
            self._segments = [_Segment(self.programme, 0, len(self.programme.Z), self._stored)]
        return float(max(residuals))

    @property
    def epoch_cost(self) -> float:
        """Multiply-adds of one epoch."""
        p = self.programme
        return 2.0 * float(p.Z.shape[0] * p.dof + p.D.size)
