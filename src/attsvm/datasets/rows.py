"""Rows of bags that stay where they are: an array of any float type, a list of arrays, a data set
on disk. They are read in blocks of a few thousand, so that nothing of their size is ever made.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from attsvm.datasets.attention_data import IntArray

BLOCK = 4096
"""Rows that are read together: products of so many run at full speed, and they fit into a cache."""


class ListedRows:
    """The rows ``(N, d)`` of arrays, one after the other, without a copy.

    Args:
        tables: ``(T_i, d)`` arrays, or data sets of h5py or zarr.

    >>> import numpy as np
    >>> from attsvm.datasets.rows import ListedRows
    >>> rows = ListedRows([np.zeros((2, 3)), np.ones((1, 3))])
    >>> rows.shape, rows[1:3].tolist()
    ((3, 3), [[0.0, 0.0, 0.0], [1.0, 1.0, 1.0]])
    """

    ndim = 2

    def __init__(self, tables: Sequence[Any]) -> None:
        self.tables = list(tables)
        self.offsets = np.concatenate([[0], np.cumsum([table.shape[0] for table in tables])])
        self.shape = (int(self.offsets[-1]), int(tables[0].shape[1]))
        self.dtype = np.result_type(*{np.dtype(table.dtype) for table in tables})
        self.size = self.shape[0] * self.shape[1]

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, chosen: Any) -> NDArray[Any]:
        """The rows of a slice, without a copy where they lie in one array; of positions or a mask a
        copy.
        """
        if isinstance(chosen, slice):
            start, stop, step = chosen.indices(len(self))
            if step == 1:
                return self._between(start, max(stop, start))
        at = np.arange(len(self))[chosen]
        if at.ndim == 0:
            return self._between(int(at), int(at) + 1)[0]
        table = np.searchsorted(self.offsets, at, side="right") - 1
        rows = np.empty((len(at), self.shape[1]), self.dtype)
        for k, (t, row) in enumerate(zip(table, at - self.offsets[table], strict=True)):
            rows[k] = self.tables[t][int(row)]
        return rows

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:
        return np.asarray(self._between(0, len(self)), dtype)

    def _between(self, start: int, stop: int) -> NDArray[Any]:
        first = int(np.searchsorted(self.offsets, start, side="right")) - 1
        if stop <= self.offsets[min(first + 1, len(self.tables))]:
            within = start - int(self.offsets[first])
            return np.asarray(self.tables[first][within : within + stop - start])
        rows = np.empty((stop - start, self.shape[1]), self.dtype)
        self.read_into(rows, start)
        return rows

    def read_into(self, rows: NDArray[Any], start: int) -> None:
        """Fill ``rows`` with those from ``start`` on."""
        table, filled = int(np.searchsorted(self.offsets, start, side="right")) - 1, 0
        while filled < len(rows):
            within = start + filled - int(self.offsets[table])
            count = min(len(rows) - filled, int(self.offsets[table + 1] - start) - filled)
            copy_rows(rows[filled : filled + count], self.tables[table][within : within + count])
            filled, table = filled + count, table + 1


class StoredRows:
    """Neighbouring rows of a table on disk, which are read when they are asked for.

    Args:
        table: ``(N, d)``, of h5py or zarr.
        start, stop: rows.

    >>> import numpy as np
    >>> from attsvm.datasets.rows import StoredRows
    >>> StoredRows(np.arange(8.0).reshape(4, 2), 1, 3)[1:].tolist()
    [[4.0, 5.0]]
    """

    def __init__(self, table: Any, start: int, stop: int) -> None:
        self.table, self.start, self.dtype = table, start, np.dtype(table.dtype)
        self.shape = (stop - start, int(table.shape[1]))

    def __getitem__(self, chosen: Any) -> NDArray[Any]:
        if isinstance(chosen, slice):
            start, stop, step = chosen.indices(self.shape[0])
            return np.asarray(self.table[self.start + start : self.start + max(stop, start)])[
                ::step
            ]
        return np.asarray(self[:])[chosen]


def tables_of(rows: Any, start: int, stop: int) -> list[Any]:
    """Tables of the rows from ``start`` to ``stop``, views of arrays and nothing read from disk."""
    if isinstance(rows, np.ndarray):
        return [rows[start:stop]]
    if not isinstance(rows, ListedRows):
        return [StoredRows(rows, start, stop)]
    tables, t = [], int(np.searchsorted(rows.offsets, start, side="right")) - 1
    while start < stop:
        end, first = min(stop, int(rows.offsets[t + 1])), int(rows.offsets[t])
        is_whole = start == first and end == rows.offsets[t + 1]
        table = rows.tables[t]
        tables += [table] if is_whole else tables_of(table, start - first, end - first)
        start, t = end, t + 1
    return tables


def is_stored(value: Any) -> bool:
    """Whether this is a table on disk, of h5py or zarr or what answers like them: its rows are read
    by slices, and it is no array of NumPy or of a framework.
    """
    return (
        hasattr(value, "shape")
        and hasattr(value, "dtype")
        and hasattr(value, "__getitem__")
        and not isinstance(value, np.ndarray | np.generic)
        and not hasattr(value, "detach")
        and not hasattr(value, "__array_interface__")
        and not hasattr(value, "__dlpack__")
        and not hasattr(value, "columns")
        and not hasattr(value, "index")
    )


@dataclass(frozen=True, eq=False)
class Block:
    """Rows that were read together; the next block may overwrite them.

    Attributes:
        bags: positions of the bags.
        rows: ``(R, d)``; of very long bags :class:`LongRows`.
        cuts: ``(bags + 1,)``: where the rows of each bag begin among ``rows``.
    """

    bags: IntArray
    rows: Any
    cuts: IntArray


class RowReader:
    """Reads the rows of bags in one float type, into one buffer where they are of another.

    Args:
        rows: ``(N, d)``: an array, :class:`ListedRows` or a table on disk.
        offsets: ``(n + 1,)``: where each bag begins.
        dtype: that blocks have.
        size: most rows of a block of several bags. Of more than four times as many rows a product
            is made by pieces.
    """

    def __init__(
        self, rows: Any, offsets: IntArray, dtype: DTypeLike = np.float32, size: int = BLOCK
    ) -> None:
        self.rows, self.offsets, self.dtype, self.size = rows, offsets, np.dtype(dtype), size
        self._buffer = np.empty((0, rows.shape[1]), self.dtype)

    def blocks(self) -> Iterator[Block]:
        """All bags in turn: as many as fit into a block, and alone those that are longer."""
        first, n = 0, len(self.offsets) - 1
        while first < n:
            end = int(self.offsets[first]) + self.size
            last = max(int(np.searchsorted(self.offsets, end, side="right")) - 1, first + 1)
            bags = np.arange(first, last)
            rows, cuts = self.take(bags)
            yield Block(bags, rows, cuts)
            first = last

    def take(self, bags: IntArray) -> tuple[Any, IntArray]:
        """The rows of these bags and where each bag begins among them; a view where the bags are
        neighbours in an array of the wanted type.
        """
        starts, stops = self.offsets[bags], self.offsets[bags + 1]
        cuts = np.concatenate([[0], np.cumsum(stops - starts)])
        if cuts[-1] > 4 * self.size:
            return LongRows(self, starts, stops), cuts
        return self.read(starts, stops), cuts

    def read(self, starts: IntArray, stops: IntArray) -> NDArray[Any]:
        """The rows of these ranges, one range after the other."""
        if (starts[1:] == stops[:-1]).all():  # neighbours are one range
            starts, stops = starts[:1], stops[-1:]
            if self._is_ready:
                rows: NDArray[Any] = self.rows[int(starts[0]) : int(stops[0])]
                return rows
        lengths = stops - starts
        rows = self._space(int(lengths.sum()))
        filled = 0
        for start, length in zip(starts.tolist(), lengths.tolist(), strict=True):
            self._fill(rows[filled : filled + length], start)
            filled += length
        return rows

    @property
    def _is_ready(self) -> bool:
        return isinstance(self.rows, np.ndarray) and self.rows.dtype == self.dtype

    def _space(self, count: int) -> NDArray[Any]:
        if len(self._buffer) < count:
            self._buffer = np.empty((count, self.rows.shape[1]), self.dtype)
        return self._buffer[:count]

    def _fill(self, rows: NDArray[Any], start: int) -> None:
        if isinstance(self.rows, ListedRows):
            self.rows.read_into(rows, start)
        else:
            copy_rows(rows, self.rows[start : start + len(rows)])


def copy_rows(rows: NDArray[Any], values: Any) -> None:
    """``rows[...] = values`` of ``(R, d)``, from float16 three times as fast as NumPy does it.

    The exponent of float16 is moved to its place in float32 and made 112 larger by a product, which
    is exact, subnormal numbers included. Infinities become 65,536 that way, and are left to NumPy.
    """
    values = np.asarray(values)
    if values.dtype != np.float16 or rows.dtype not in (np.float32, np.float64):
        rows[...] = values
        return
    step = max(_CACHED // max(values.shape[1], 1), 1)
    for start in range(0, len(values), step):
        piece = values[start : start + step]
        # sign, exponent and mantissa where float32 has them; the sign fills the bits between
        bits = np.ascontiguousarray(piece).view(np.int16).astype(np.int32)
        np.left_shift(bits, 13, out=bits)
        np.bitwise_and(bits, _SIGN_AND_NUMBER, out=bits)
        # the exponent, which float32 counts from 127 and float16 from 15
        cast = rows[start : start + step]
        np.multiply(bits.view(np.float32), _BIAS, out=cast)
        # what was infinite or no number
        if not (cast.min(initial=0.0) > -_BEYOND and cast.max(initial=0.0) < _BEYOND):
            cast[...] = piece


def matmul(rows: Any, factor: NDArray[Any]) -> NDArray[Any]:
    """``rows @ factor`` of finite numbers, without warnings of operations that are none of it.

    OpenBLAS multiplies whole registers, also the places that hold no row, and NumPy reports what
    happens to leftovers there ("invalid value encountered in matmul"): with OpenBLAS 0.3.31, where
    single-precision rows of five numbers are multiplied by a vector. The product is right.

    Args:
        rows: ``(R, d)``, an array or :class:`LongRows`.
        factor: ``(d,)`` or ``(d, columns)``.
    """
    with np.errstate(invalid="ignore"):
        return np.asarray(rows @ factor)


class LongRows:
    """Rows ``(R, d)`` that are read in pieces whenever they are multiplied, for they are too many
    to be in memory: ``rows @ factor``, ``rows.T @ shares``, and ``rows[positions]``, an array where
    these are few.

    Args:
        reader: of the table.
        starts: where ranges of rows begin.
        stops: where they end.

    >>> import numpy as np
    >>> from attsvm.datasets.rows import LongRows, RowReader
    >>> table = np.arange(10.0).reshape(5, 2)
    >>> reader = RowReader(table, np.array([0, 5]), np.float64, size=2)
    >>> rows = LongRows(reader, np.array([0]), np.array([5]))
    >>> (rows @ np.ones(2)).tolist(), (rows.T @ np.ones((5, 1))).ravel().tolist()
    ([1.0, 5.0, 9.0, 13.0, 17.0], [20.0, 25.0])
    >>> rows[[0, 3]].tolist()
    [[0.0, 1.0], [6.0, 7.0]]
    """

    __array_ufunc__ = None  # an operator with an array is this class's, or refused
    ndim = 2

    def __init__(self, reader: RowReader, starts: IntArray, stops: IntArray) -> None:
        self.reader, self.starts = reader, starts
        self.ends = np.cumsum(stops - starts)
        self.shape = (int(self.ends[-1]), int(reader.rows.shape[1]))
        self.dtype = reader.dtype

    def __len__(self) -> int:
        return self.shape[0]

    def pieces(self) -> Iterator[tuple[int, NDArray[Any]]]:
        """The rows a block at a time, each with where it begins; the next may overwrite them."""
        for start in range(0, len(self), self.reader.size):
            ranges = self._ranges(start, min(start + self.reader.size, len(self)))
            yield start, self.reader.read(*ranges)

    def __matmul__(self, factor: NDArray[Any]) -> NDArray[Any]:
        shape = (len(self), *factor.shape[1:])
        product = np.empty(shape, np.result_type(self.dtype, factor))
        for start, rows in self.pieces():
            product[start : start + len(rows)] = matmul(rows, factor)
        return product

    @property
    def T(self) -> _TransposedRows:
        """``(d, R)``, to be multiplied."""
        return _TransposedRows(self)

    def __getitem__(self, chosen: Any) -> Any:
        if isinstance(chosen, slice):
            start, stop, step = chosen.indices(len(self))
            if step == 1:
                return self._of(*self._ranges(start, max(stop, start)))
        at = np.arange(len(self))[chosen]
        begins = np.flatnonzero(np.diff(at, prepend=at[:1] - 2) != 1)
        runs = [
            self._ranges(int(run[0]), int(run[-1]) + 1)
            for run in np.split(at, begins[1:])
            if len(run)
        ]
        return self._of(
            np.concatenate([starts for starts, _ in runs]),
            np.concatenate([stops for _, stops in runs]),
        )

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:
        return np.concatenate([np.array(rows, dtype) for _, rows in self.pieces()])

    def _of(self, starts: IntArray, stops: IntArray) -> Any:
        """The rows of ranges of the table: an array of its own where they are few."""
        if (stops - starts).sum() > self.reader.size:
            return LongRows(self.reader, starts, stops)
        return self.reader.read(starts, stops).copy()

    def _ranges(self, start: int, stop: int) -> tuple[IntArray, IntArray]:
        """Where in the table rows from ``start`` to ``stop`` of this one are."""
        begins = self.ends - np.diff(self.ends, prepend=0)
        low = np.clip(start - begins, 0, self.ends - begins)
        high = np.clip(stop - begins, 0, self.ends - begins)
        filled = high > low
        return (self.starts + low)[filled], (self.starts + high)[filled]


class _TransposedRows:
    """``(d, R)`` of :class:`LongRows`."""

    def __init__(self, rows: LongRows) -> None:
        self.rows = rows

    def __matmul__(self, shares: NDArray[Any]) -> NDArray[Any]:
        total: NDArray[Any] = np.zeros(
            (self.rows.shape[1], *shares.shape[1:]), np.result_type(self.rows.dtype, shares)
        )
        for start, rows in self.rows.pieces():
            total += rows.T @ shares[start : start + len(rows)]
        return total


def pieces(rows: Any) -> Iterator[tuple[int, NDArray[Any]]]:
    """Rows in memory, a few thousand at a time where they are :class:`LongRows`, and where each
    piece begins.
    """
    if isinstance(rows, LongRows):
        yield from rows.pieces()
    else:
        yield 0, rows


def bag_sums(rows: Any, offsets: IntArray) -> NDArray[Any]:
    """``(n, d)``: the sum of the rows of each bag; :class:`LongRows` are one bag."""
    if isinstance(rows, LongRows):
        return np.asarray(rows.T @ np.ones((len(rows), 1))).T
    sums: NDArray[Any] = np.add.reduceat(rows, offsets[:-1], axis=0)
    return sums


_CACHED = 1 << 17  # numbers whose steps stay in a cache
_SIGN_AND_NUMBER = np.int32(0x8FFFE000 - (1 << 32))  # the bits of float32 that float16 has
_BIAS = np.float32(2.0**112)  # 127 - 15
_BEYOND = 65536.0  # the least power of two above float16
