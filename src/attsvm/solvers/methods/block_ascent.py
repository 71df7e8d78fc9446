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

import functools
import itertools
import time
from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np

from attsvm.cores import shared_out
from attsvm.data import BoolArray, FloatArray, IntArray
from attsvm.solvers.programme import kernels
from attsvm.solvers.programme.programme import Programme
from attsvm.solvers.programme.threads import one_thread

_INNER_SWEEPS = 5
_REFRESH = 25  # epochs between recomputations of W from the multipliers
_LARGEST_GRAMS = 1 << 26  # entries: half a gigabyte
_WAKE = 8  # epochs between two that look at all rows
_COPIED = 1 << 18  # numbers in the token differences from which rows that are awake get a copy
_WORTH_SLEEP = 1 << 18  # and from which rows asleep save more than the last epoch, over all, costs
_LARGE = 1 << 23  # and from which parts pay
_PARTS = 2  # more of them hinder each other: the epochs double at four
_HINDRANCE = 1.5  # square of the sum of the changes over the sum of their squares


@dataclass(frozen=True, eq=False)
class _Rows:
    """Rows of neighbouring sequences as epochs take them; those that are asleep are left out.

    Attributes:
        D: ``(m, d_x)`` differences.
        Z: ``(n, d_z)`` queries.
        offsets: ``(n + 1,)`` where the rows of each sequence begin.
        b: ``(m,)`` right-hand sides.
        cap: ``(m,)`` upper bounds of the multipliers.
        size: ``(n,)`` squared lengths of the queries.
        diagonal: ``(m,)`` squared lengths of the rows; None with Gram blocks.
        grams: Gram blocks of the sequences, one after the other.
        starts: ``(n + 1,)`` where they begin.
        asleep: ``(m,)``.
    """

    D: FloatArray
    Z: FloatArray
    offsets: IntArray
    b: FloatArray
    cap: FloatArray
    size: FloatArray
    diagonal: FloatArray | None
    grams: FloatArray
    starts: IntArray
    asleep: BoolArray

    def epoch(self, dual: FloatArray, W: FloatArray, inner: int, bar: float) -> float:
        """One epoch on multipliers of these rows, in place; largest projected gradient met."""
        arrays = self.D, self.Z, self.offsets, self.b, self.cap
        rest = dual, W, inner, self.asleep, bar
        if self.diagonal is None:
            return kernels.sweep_blocks(*arrays, self.grams, self.starts, *rest)
        return kernels.sweep_rows(*arrays, self.diagonal, self.size, *rest)

    def awake(self) -> tuple[IntArray, _Rows]:
        """The rows that are awake: their places, and a copy of them."""
        rows = np.flatnonzero(~self.asleep)
        offsets = np.searchsorted(rows, self.offsets)
        diagonal, grams, starts = self.diagonal, self.grams, self.starts
        if diagonal is None:
            starts = np.concatenate([[0], np.cumsum(np.diff(offsets) ** 2)])
            grams = kernels.smaller_blocks(grams, self.starts, self.offsets, rows, offsets, starts)
        else:
            diagonal = diagonal[rows]
        return rows, _Rows(
            self.D[rows],
            self.Z,
            offsets,
            self.b[rows],
            self.cap[rows],
            self.size,
            diagonal,
            grams,
            starts,
            np.zeros(len(rows), dtype=np.bool_),
        )


class _Part:
    """Neighbouring sequences of a programme; :meth:`epoch` takes a copy of the rows that are awake
    once they are few.
    """

    def __init__(self, rows: slice, whole: _Rows) -> None:
        self.rows, self.whole = rows, whole
        self.room = np.empty((whole.D.shape[1], whole.Z.shape[1]))  # for the weights that it moves
        self.wake()

    def wake(self) -> None:
        """Let the next epoch look at all rows."""
        self.whole.asleep[:] = False
        self._places: IntArray | None = None
        self._some = self.whole

    def epoch(self, dual: FloatArray, W: FloatArray, inner: int, bar: float) -> float:
        """One epoch on ``W`` and the multipliers of all rows of the programme, in place."""
        mine = dual[self.rows]
        few = self._some.D.size >= _COPIED and 2 * self._some.asleep.sum() > len(self._some.asleep)
        if few:
            places, self._some = self._some.awake()
            self._places = places if self._places is None else self._places[places]
        if self._places is None:
            return self._some.epoch(mine, W, inner, bar)
        some = mine[self._places]
        worst = self._some.epoch(some, W, inner, bar)
        mine[self._places] = some
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
        self.dual = dual
        self.W = programme.adjoint(dual)
        self.residual = np.inf
        self.rate = 1.0
        self.epochs = 0
        self._size = np.einsum("nd,nd->n", programme.Z, programme.Z)
        counts = np.diff(programme.offsets)
        self._starts = np.concatenate([[0], np.cumsum(counts * counts)])
        parts = [(0, len(counts))]
        if programme.D.size >= _LARGE:
            ends = np.linspace(0, programme.m, _PARTS + 1)
            cuts = np.unique(np.searchsorted(programme.offsets, ends))
            parts = list(itertools.pairwise(cuts.tolist()))
        self._grams, self._diagonal = np.empty(0), None
        if self._starts[-1] <= _LARGEST_GRAMS:
            self._grams = np.empty(self._starts[-1])
            shared_out(self._multiply, parts)
        else:
            self._diagonal = programme.diagonal
        self._asleep = np.zeros(programme.m, dtype=np.bool_)
        self._parts = [self._part(*part) for part in parts]

    def _part(self, first: int, last: int) -> _Part:
        """The sequences from ``first`` to before ``last``."""
        p = self.programme
        rows, offsets = p.rows_of(first, last)
        starts = self._starts[first : last + 1]
        return _Part(
            rows,
            _Rows(
                p.D[rows],
                p.Z[first:last],
                offsets,
                p.b[rows],
                p.cap[rows],
                self._size[first:last],
                None if self._diagonal is None else self._diagonal[rows],
                self._grams[starts[0] : starts[-1]],
                starts - starts[0],
                self._asleep[rows],
            ),
        )

    def _multiply(self, part: tuple[int, int]) -> None:
        """The Gram blocks of the sequences from the first of ``part`` to before its second."""
        p, (first, last) = self.programme, part
        (rows, offsets), starts = p.rows_of(first, last), self._starts[first : last + 1]
        # a thread that takes a part may have a BLAS with a number of its own
        with one_thread() if last - first < len(p.Z) else nullcontext():
            self._grams[starts[0] : starts[-1]] = kernels.block_grams(
                p.D[rows], offsets, self._size[first:last], starts - starts[0]
            )

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
            self._parts = [self._part(0, len(self.programme.offsets) - 1)]
        return max(worst for worst, _ in found)

    @property
    def epoch_cost(self) -> float:
        """Multiply-adds of one epoch."""
        p = self.programme
        return 2.0 * float(p.Z.shape[0] * p.dof + p.D.size)
