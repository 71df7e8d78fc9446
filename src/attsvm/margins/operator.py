r"""The one constraint operator of the house.

Every max-margin programme of the theory asks for a small matrix :math:`W` with

.. math:: \langle A_c, W\rangle \ge b_c, \qquad A_c = \delta_c\, z_{i(c)}^\top,

where :math:`\delta_c` is a difference of tokens and :math:`z_{i(c)}` the query of the sequence that
constraint
:math:`c` belongs to. :class:`Margins` keeps the :math:`\delta_c` and the :math:`z_i` and never
forms an :math:`A_c`. Some programmes also ask for equalities :math:`\langle A_c, W\rangle = b_c`:
rows like the others, marked in one array.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from attsvm.base.printable import Compact
from attsvm.datasets.attention_data import BoolArray, FloatArray, IntArray
from attsvm.margins.blocks import MarginBlocks
from attsvm.margins.checks import check_arrays
from attsvm.margins.mapped import MappedSelections


class SweepOptions(NamedTuple):
    """How the rows of a programme are gone through.

    Attributes:
        block_numbers: numbers of differences that are read together: four megabytes, which stay in
            the cache.
        threaded_numbers: numbers in the differences from which a second core pays.
    """

    block_numbers: int = 1 << 19
    threaded_numbers: int = 1 << 22


Kind = Literal["selection", "set", "ratio", "label", "position", "class", "support", "order"]


@dataclass(frozen=True, eq=False, repr=False)
class Margins(Compact):
    r"""Linear margins :math:`m_c(W) = \delta_c^\top W z_{i(c)}` with right-hand sides :math:`b_c`.

    Constraints are stored sequence by sequence: those of sequence ``i`` are
    ``offsets[i]:offsets[i + 1]``, so sequences of different lengths need no padding.

    Attributes:
        differences: ``(m, d_x)``, row ``c`` is :math:`\delta_c`.
        queries: ``(n, d_z)``.
        offsets: ``(n + 1,)``, non-decreasing, from 0 to m.
        rhs: ``(m,)``, :math:`b_c`.
        token: ``(m,)``, the position of the token that constraint ``c`` asks the selected one to
            beat.
        selected: ``(n,)``, the position of the selected token of each sequence.
        equality: ``(m,)`` booleans, True where the row asks for :math:`m_c(W) = b_c` (with
            :math:`b_c` of any sign) instead of
            :math:`m_c(W)\ge b_c`; ``None`` when no row does.
        kind: what a sequence asks for, in which words a contradiction is told: its selected token
            (``selection``), its set (``set``), the ratios in its set (``ratio``), its label
            (``label``), the token of one position (``position``), the class of an input
            (``class``), the support of a context (``support``), or an order of two tokens
            (``order``).
        origin: ``(n, k)`` integers: sequence and position of each query of ``position`` margins,
            the query token of ``order`` margins; ``None`` for the others.
        numbers: ``(n,)`` integers, the number of each sequence in the programme that these rows
            were taken from; ``None`` where that is its place.

    Raises:
        InputError: arrays that do not fit together.

    Example:
        >>> import attsvm
        >>> data = attsvm.AttentionData([[[2, 0], [0, 0], [0, 2]]], [1], queries=[[1]])
        >>> margins = attsvm.selection_margins(data, tokens=[0])
        >>> margins.m, margins.shape
        (2, (2, 1))
        >>> margins([[1.0], [0.5]]).tolist()  # the margins of these weights
        [2.0, 1.0]
        >>> margins.adjoint([1.0, 0.0]).tolist()
        [[2.0], [0.0]]
    """

    differences: FloatArray
    queries: FloatArray
    offsets: IntArray
    rhs: FloatArray
    token: IntArray
    selected: IntArray
    equality: BoolArray | None = None
    kind: Kind = "selection"
    origin: IntArray | None = None
    numbers: IntArray | None = None
    sweep: ClassVar[SweepOptions] = SweepOptions()

    @staticmethod
    def from_blocks(blocks: Any, count: int | None = None) -> MarginBlocks:
        r"""A programme of more rows than memory holds, made or read block by block.

        Args:
            blocks: a function that makes block ``k``, ``0 <= k < count``, the same each time; or a
                list of blocks; or the path of arrays on disk, or
                :class:`MappedSelections` of it. A block is

                * :class:`Margins` of any constructor;
                * ``(tokens, queries, selected)`` or ``(tokens, queries, selected, mask)``: arrays
                  ``(b, T, d_x)``, ``(b, d_z)``, ``(b,)`` and booleans ``(b, T)``, for the rows of
                  :func:`selection_margins` without their differences;
                * ``(differences, queries)``: ``(b, d_x)`` and ``(b, d_z)``, one row each;
                * an array ``(b, d_x)``: rows of a vector of weights, :math:`\delta_c^\top w\ge1`.
            count: how many blocks the function makes.

        Returns:
            What :func:`~attsvm.solvers.max_margin_blocks` solves within ``memory``. Blocks that
            changed since they were first seen are refused there.

        Raises:
            InputError: a generator, which cannot be asked twice, or no count beside a function.

        Example:
            >>> import numpy as np
            >>> import attsvm
            >>> X = np.random.default_rng(0).normal(size=(3, 10, 5, 100))  # three blocks of ten
            >>> blocks = [(tokens, tokens[:, 0], np.ones(10, dtype=int)) for tokens in X]
            >>> programme = attsvm.Margins.from_blocks(blocks)
            >>> solution = attsvm.max_margin_blocks(programme, memory="100MB")
            >>> solution.status, solution.margins.n <= 30
            ('optimal', True)
        """
        if isinstance(blocks, str | Path):
            blocks = MappedSelections(blocks)
        if isinstance(blocks, MappedSelections) and count is None:
            count = blocks.count
        return MarginBlocks(blocks, count)

    def __post_init__(self) -> None:
        for name, array in check_arrays(self).items():
            object.__setattr__(self, name, array)

    @property
    def m(self) -> int:
        """Number of constraints."""
        return int(self.differences.shape[0])

    @property
    def n(self) -> int:
        """Number of sequences."""
        return int(self.queries.shape[0])

    @property
    def shape(self) -> tuple[int, int]:
        """Shape ``(d_x, d_z)`` of the weights."""
        return int(self.differences.shape[1]), int(self.queries.shape[1])

    @cached_property
    def sequence(self) -> IntArray:
        """The sequence ``(m,)`` that each constraint belongs to."""
        return np.repeat(np.arange(len(self.queries)), np.diff(self.offsets))

    @cached_property
    def equalities(self) -> BoolArray:
        """:attr:`equality` written out, ``(m,)``, all False when there is none."""
        return (
            np.zeros(self.m, dtype=np.bool_)
            if self.equality is None
            else np.asarray(self.equality, dtype=np.bool_)
        )

    @cached_property
    def lengths(self) -> FloatArray:
        r"""Norms ``(m,)`` of the constraints, :math:`\|A_c\|_F=\|\delta_c\|\,\|z_{i(c)}\|`."""
        sizes = np.empty(self.m)

        def square(first: int, last: int, rows: slice, D: FloatArray) -> None:
            np.einsum("cd,cd->c", D, D, out=sizes[rows])

        runs = self._runs(self.shape[0])
        if self._threaded:
            self._share_out(square, runs)
        else:
            for first, last, rows in runs:
                square(first, last, rows, self._rows(rows))
        np.sqrt(sizes, out=sizes)
        sizes *= np.sqrt(np.einsum("nd,nd->n", self.queries, self.queries))[self.sequence]
        return sizes

    @cached_property
    def _uniform(self) -> int:
        """Constraints per sequence when all sequences have the same number, else 0."""
        counts = np.diff(self.offsets)
        is_uniform = len(counts) > 0 and counts[0] > 0 and (counts == counts[0]).all()
        return int(counts[0]) if is_uniform else 0

    def __call__(self, W: ArrayLike) -> FloatArray:
        r""":math:`(\langle A_c, W\rangle)_c`, shape ``(m,)``: one product ``Z W^T`` and one
        row-wise product with the differences.
        """
        moved: FloatArray = self.queries @ np.asarray(W, dtype=np.float64).T
        return self.along(moved)

    def along(self, moved: FloatArray, *, sizes: bool = False) -> FloatArray:
        """Margins from the moved queries ``(n, d_x)``, row ``i`` being :math:`W z_i`; with
        ``sizes`` see :meth:`along_sizes`.
        """
        out = np.empty(self.m)
        per_sequence, d_x = self._uniform, moved.shape[1]

        def multiply(first: int, last: int, rows: slice, D: FloatArray) -> None:
            if sizes:
                D = np.abs(D)
            if per_sequence:  # one product per sequence, without copies of queries
                blocks = D.reshape(last - first, per_sequence, -1)
                stacked = out[rows].reshape(*blocks.shape[:2], 1)
                np.matmul(blocks, moved[first:last, :, None], out=stacked)
            else:
                np.einsum("cd,cd->c", D, moved[self.sequence[rows]], out=out[rows])

        runs = self._runs(8 * d_x if sizes else d_x)  # what np.abs copies stays in the cache too
        if self._threaded:
            self._share_out(multiply, runs)
        else:
            for first, last, rows in runs:
                multiply(first, last, rows, self._rows(rows))
        return out

    def along_sizes(self, moved: FloatArray) -> FloatArray:
        r"""Products ``(m,)`` of :math:`|\delta_c|` with rows ``(n, d_x)``: of :math:`|W||z_i|`,
        bounds of the rounding of each margin.
        """
        return self.along(moved, sizes=True)

    def adjoint(self, dual: ArrayLike) -> FloatArray:
        r""":math:`\sum_c \lambda_c A_c`, shape ``(d_x, d_z)``: one segmented sum of the differences
        and one product with the queries.
        """
        lam = np.asarray(dual, dtype=np.float64)
        pulled = np.zeros((self.n, self.shape[0]))
        per_sequence = self._uniform

        def add_up(first: int, last: int, rows: slice, D: FloatArray) -> None:
            if per_sequence:
                blocks = D.reshape(last - first, per_sequence, -1)
                weights = lam[rows].reshape(last - first, 1, -1)
                np.matmul(weights, blocks, out=pulled[first:last, None])
            else:
                # sums over the rows of each sequence that has some
                filled = first + np.flatnonzero(np.diff(self.offsets[first : last + 1]))
                starts = self.offsets[filled] - rows.start
                pulled[filled] = np.add.reduceat(lam[rows, None] * D, starts)

        runs = (run for run in self._runs(self.shape[0]) if lam[run[2]].any())
        if self._threaded:
            self._share_out(add_up, runs)
        else:
            for first, last, rows in runs:
                add_up(first, last, rows, self._rows(rows))
        return pulled.T @ self.queries

    def _rows(self, index: Any) -> FloatArray:
        """The differences of these rows, a slice or positions."""
        return self.differences[index]

    @property
    def _threaded(self) -> bool:
        """Whether a second core pays."""
        return self.differences.size >= self.sweep.threaded_numbers

    def _share_out(
        self,
        work: Callable[[int, int, slice, FloatArray], None],
        runs: Iterable[tuple[int, int, slice]],
    ) -> None:
        """``work(first, last, rows, differences)`` of all runs, among threads."""
        from attsvm.base.cores import map_on_threads  # compiled code is imported where it is needed

        map_on_threads(lambda run: work(*run, self._rows(run[2])), list(runs))

    def _runs(self, row_numbers: int) -> Iterator[tuple[int, int, slice]]:
        """Runs of whole sequences whose rows, of so many numbers each, fill a block: the first
        sequence, one past the last, and their rows.
        """
        first, n = 0, len(self.queries)
        most = max(1, self.sweep.block_numbers // max(1, row_numbers))
        while first < n:
            start = int(self.offsets[first])
            last = int(np.searchsorted(self.offsets, start + most, side="right")) - 1
            last = max(first + 1, last)
            stop = int(self.offsets[last])
            if stop > start:
                yield first, last, slice(start, stop)
            first = last

    def gram(self, constraints: ArrayLike | None = None) -> FloatArray:
        r""":math:`\langle A_c, A_{c'}\rangle = (\delta_c^\top\delta_{c'})(z_{i(c)}^\top z_{i(c')})`
        on these constraints (default: all).
        """
        index = np.arange(self.m) if constraints is None else np.asarray(constraints)
        D, Z = self._rows(index), self.queries[self.sequence[index]]
        return (D @ D.T) * (Z @ Z.T)

    def restricted(self, constraints: ArrayLike) -> Margins:
        """The programme with only these constraints (sorted positions or a boolean mask); sequences
        keep their numbers.
        """
        chosen = np.asarray(constraints)
        index = (
            np.flatnonzero(chosen)
            if chosen.dtype == np.bool_
            else np.unique(chosen).astype(np.int64)
        )
        counts = np.bincount(self.sequence[index], minlength=self.n)
        offsets = np.concatenate([[0], np.cumsum(counts)])
        return Margins(
            self._rows(index),
            self.queries,
            offsets,
            self.rhs[index],
            self.token[index],
            self.selected,
            None if self.equality is None else self.equality[index],
            self.kind,
            self.origin,
            self.numbers,
        )
