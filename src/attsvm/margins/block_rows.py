"""The rows of one block of :class:`~attsvm.margins.MarginBlocks`, whichever form it has."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from attsvm.base.errors import InputError
from attsvm.base.printable import kind
from attsvm.datasets.attention_data import BoolArray, FloatArray, IntArray
from attsvm.margins.checks import integers, reals
from attsvm.margins.operator import Kind, Margins
from attsvm.margins.pairs import PairMargins

_FORMS = (
    "give margins, (tokens, queries, selected), (tokens, queries, selected, mask),"
    " (differences, queries) of one row each, or rows of a vector"
)


def block_rows(block: Any, k: int) -> BlockRows:
    """The rows of block ``k``, checked.

    Raises:
        InputError: a block of no known form, or arrays that do not fit or are not finite.
    """
    try:
        if isinstance(block, Margins):
            return _MarginsRows(block)
        arrays = block if isinstance(block, tuple | list) else (block,)
        if len(arrays) in (3, 4):
            return _SelectionRows(*arrays)
        if len(arrays) == 2:
            return _MarginsRows(_margins_by_row(*arrays))
        if len(arrays) == 1 and np.ndim(block) == 2:
            return _MarginsRows(_margins_by_row(block, np.ones((len(block), 1))))
        raise InputError(f"it is {kind(block)}; {_FORMS}")
    except InputError as error:
        raise InputError(f"block {k}: {error}") from None


class BlockRows(ABC):
    """The rows of one block, numbered from 0, some of which may be no constraints.

    Attributes:
        shape: of the weights.
        queries: ``(n, d_z)``.
        offsets: ``(n + 1,)``, where the rows of each sequence begin.
        constraints: how many rows are constraints.
        kind: of the margins.
        texts: how many texts the positions of ``kind`` ``position`` come from.
        arrays: everything that the block is made of.
    """

    shape: tuple[int, int]
    queries: FloatArray
    offsets: IntArray
    constraints: int
    kind: Kind = "selection"
    texts = 0
    arrays: list[Any]

    @property
    @abstractmethod
    def rhs(self) -> FloatArray:
        """Right-hand sides ``(rows,)``."""

    @abstractmethod
    def values(self, W: FloatArray, exact: bool) -> FloatArray:
        """The margins of ``W``, ``(rows,)``; ``inf`` for rows that are no constraints. From the
        products of whole tokens where that is quicker, or when ``exact`` from their differences.
        """

    @abstractmethod
    def size(self, exact: bool) -> float:
        """An upper bound of the norms that are multiplied with moved queries in :meth:`values`."""

    @abstractmethod
    def mean(self) -> FloatArray:
        """The sum of all constraints, as weights."""

    @abstractmethod
    def write_out(self, rows: IntArray) -> Margins:
        """These rows (sorted), written out; ``numbers`` are those of their sequences."""

    @property
    def nbytes(self) -> int:
        """Memory of :attr:`arrays`."""
        return sum(array.nbytes for array in self.arrays)

    def checksum(self) -> int:
        """A number for all bytes: another one for another block, but for a chance in
        :math:`2^{64}`.
        """
        from attsvm.margins.checksums import checksum

        number = 0
        for array in self.arrays:
            number = checksum(array, number)
        return number


class _MarginsRows(BlockRows):
    """The rows of a :class:`~attsvm.margins.Margins`."""

    def __init__(self, margins: Margins) -> None:
        if margins.equalities.any():
            raise InputError("its margins hold equalities, which blocks cannot; give inequalities")
        rows_name = "keys" if isinstance(margins, PairMargins) else "differences"
        for name in (rows_name, "queries", "rhs"):
            if not np.isfinite(getattr(margins, name)).all():
                raise InputError(f"margins.{name} holds values that are not finite")
        if (margins.rhs < 0.0).any():
            raise InputError("margins.rhs holds negative values; they must be zero or positive")
        m = self.margins = margins
        self.shape, self.offsets, self.constraints, self.kind = m.shape, m.offsets, m.m, m.kind
        self.queries = np.asarray(m.queries, dtype=np.float64)
        if self.kind == "position" and m.origin is not None and m.n:
            self.texts = int(m.origin[:, 0].max()) + 1
        rows = [m.keys, m.winner, m.rival] if isinstance(m, PairMargins) else [m.differences]
        self.arrays = [*rows, m.queries, m.offsets, m.rhs, m.token, m.selected]

    @property
    def rhs(self) -> FloatArray:
        return np.asarray(self.margins.rhs, dtype=np.float64)

    def values(self, W: FloatArray, exact: bool) -> FloatArray:
        if isinstance(self.margins, PairMargins) and not exact:
            return self.margins.estimate(W)
        return self.margins(W)

    def size(self, exact: bool) -> float:
        m = self.margins
        return (
            2.0 * _largest_norm(m.keys)
            if isinstance(m, PairMargins)
            else _largest_norm(m.differences)
        )

    def mean(self) -> FloatArray:
        return self.margins.adjoint(np.ones(self.margins.m))

    def write_out(self, rows: IntArray) -> Margins:
        restricted, m = self.margins.restricted(rows), self.margins
        filled = np.flatnonzero(np.diff(restricted.offsets))  # sequences that have rows
        return Margins(
            restricted.differences,
            self.queries[filled],
            np.append(restricted.offsets[filled], restricted.m),
            restricted.rhs,
            restricted.token,
            m.selected[filled],
            kind=m.kind,
            origin=None if m.origin is None else m.origin[filled],
            numbers=filled,
        )


class _SelectionRows(BlockRows):
    """One selected token of each sequence against all others; row ``i T + t`` is token ``t`` of
    sequence ``i``, and that of the selected token and those of masked ones are no constraints.
    """

    def __init__(self, tokens: Any, queries: Any, selected: Any, mask: Any = None) -> None:
        X = self.tokens = reals("tokens", tokens, (None, None, None), "(sequences, tokens, d_x)")
        n, T, _ = X.shape
        self.queries = reals("queries", queries, (n, None), f"({n}, d_z), one per sequence")
        self.selected = integers("selected", selected)
        if self.selected.shape != (n,):
            raise InputError(f"selected has shape {self.selected.shape}; it must be ({n},)")
        self.mask: BoolArray | None = None
        if mask is not None:
            self.mask = np.asarray(mask)
            if self.mask.shape != (n, T) or self.mask.dtype != np.bool_:
                raise InputError(
                    f"mask has shape {self.mask.shape} and dtype {self.mask.dtype}; it must be"
                    f" booleans ({n}, {T})"
                )
        inside = (self.selected >= 0) & (self.selected < T)
        if inside.all() and self.mask is not None:
            inside = self.mask[np.arange(n), self.selected]
        if not inside.all():
            i = int(np.flatnonzero(~inside)[0])
            raise InputError(
                f"selected[{i}] is {self.selected[i]}, which is no visible token of {T}"
            )
        self.shape = X.shape[2], self.queries.shape[1]
        self.offsets = np.arange(n + 1) * T
        self.constraints = int(n * T if self.mask is None else self.mask.sum()) - n
        # the caller's array, whose bytes may be of another type than X
        stored = tokens if isinstance(tokens, np.ndarray) else X
        self.arrays = [stored, self.queries, self.selected]
        self.arrays += [] if self.mask is None else [self.mask]

    @property
    def rhs(self) -> FloatArray:
        return np.ones(int(self.offsets[-1]))

    def _selected_tokens(self) -> Any:
        return self.tokens[np.arange(len(self.tokens)), self.selected]

    def _differences(self) -> Any:
        return self._selected_tokens()[:, None, :] - self.tokens

    def values(self, W: FloatArray, exact: bool) -> FloatArray:
        moved = self.queries @ W.T
        sequences = np.arange(len(self.tokens))
        if exact:
            margins = np.matmul(self._differences(), moved[:, :, None])[:, :, 0]
        else:
            logits = np.matmul(self.tokens, moved[:, :, None])[:, :, 0]
            margins = logits[sequences, self.selected][:, None] - logits
        # masked and selected tokens are no constraints
        if self.mask is not None:
            margins[~self.mask] = np.inf
        margins[sequences, self.selected] = np.inf
        flat: FloatArray = margins.reshape(-1)
        return flat

    def size(self, exact: bool) -> float:
        return _largest_norm(self._differences()) if exact else 2.0 * _largest_norm(self.tokens)

    def mean(self) -> FloatArray:
        X, mask = self.tokens, self.mask
        counts = X.shape[1] if mask is None else mask.sum(axis=1)[:, None]
        visible = X if mask is None else np.where(mask[:, :, None], X, 0.0)
        summed: FloatArray = (
            counts * self._selected_tokens() - visible.sum(axis=1)
        ).T @ self.queries
        return summed

    def write_out(self, rows: IntArray) -> Margins:
        sequence, token = np.divmod(rows, self.tokens.shape[1])
        filled, counts = np.unique(sequence, return_counts=True)
        return Margins(
            self.tokens[sequence, self.selected[sequence]] - self.tokens[sequence, token],
            self.queries[filled],
            np.concatenate([[0], np.cumsum(counts)]),
            np.ones(len(rows)),
            token,
            self.selected[filled],
            numbers=filled,
        )


def _margins_by_row(differences: Any, queries: Any) -> Margins:
    """Margins of one row per difference and query."""
    D = reals("differences", differences, (None, None), "(rows, d_x)")
    m = len(D)
    Z = reals("queries", queries, (m, None), f"({m}, d_z), one per row of the differences")
    no_token = np.zeros(m, dtype=np.int64)
    return Margins(D, Z, np.arange(m + 1), np.ones(m), no_token, no_token)


def _largest_norm(rows: FloatArray) -> float:
    """The largest norm along the last axis."""
    flat = rows.reshape(-1, rows.shape[-1])
    return float(np.sqrt(np.einsum("cd,cd->c", flat, flat).max(initial=0.0)))
