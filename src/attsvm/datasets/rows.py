"""Rows of bags that stay where they are: an array of any float type, a list of arrays, a data set
on disk. They are read in blocks of a few thousand, so that memory never holds a copy of them all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from attsvm.datasets.attention_data import IntArray

BLOCK = 4096
"""Rows that are read together: enough for products to run at full speed, few enough for a cache."""

_LONG = 4  # times the size of a block: more rows than these are read again for each product
_CACHED = 1 << 17  # numbers that are cast together: every step of a cast finds them in a cache
_SIGN_AND_NUMBER = np.int32(0x8FFFE000 - (1 << 32))  # the bits of float32 that float16 has
_BIAS = np.float32(2.0**112)  # 127 - 15, the biases of their exponents
_BEYOND = 65536.0  # the least power of two that float16 cannot hold


class ListedRows:
    """The rows ``(N, d)`` of arrays, one after the other, without a copy.

    Args:
        tables: ``(T_i, d)`` arrays, or data sets of h5py or zarr.

    Attributes:
        offsets: ``(tables + 1,)``: where the rows of each table begin.
        dtype: the type that holds the numbers of all tables.

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
        """The rows of a slice, a view where they lie in one array; a copy of those at positions or
        of a mask; one row ``(d,)`` for an integer.
        """
        if isinstance(chosen, slice):
            start, stop, step = chosen.indices(len(self))
            if step == 1:
                return self._between(start, max(stop, start))
        at = np.arange(len(self))[chosen]
        if at.ndim == 0:
            return self._between(int(at), int(at) + 1)[0]
        # scattered rows, one at a time: each from its table, by its position there
        table = np.searchsorted(self.offsets, at, side="right") - 1
        rows = np.empty((len(at), self.shape[1]), self.dtype)
        for k, (t, within) in enumerate(zip(table, at - self.offsets[table], strict=True)):
            rows[k] = self.tables[t][int(within)]
        return rows

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:
        return np.asarray(self._between(0, len(self)), dtype)

    def _between(self, start: int, stop: int) -> NDArray[Any]:
        """The rows from ``start`` to ``stop``: of one table as it gives them, of several a copy."""
        first = int(np.searchsorted(self.offsets, start, side="right")) - 1
        if stop <= self.offsets[min(first + 1, len(self.tables))]:
            within = start - int(self.offsets[first])
            return np.asarray(self.tables[first][within : within + stop - start])
        rows = np.empty((stop - start, self.shape[1]), self.dtype)
        self.read_into(rows, start)
        return rows

    def read_into(self, rows: NDArray[Any], start: int) -> None:
        """Fill ``rows``, of any float type, with those from ``start`` on."""
        stop = start + len(rows)
        table, at = int(np.searchsorted(self.offsets, start, side="right")) - 1, start
        while at < stop:
            # up to the end of this table, or of what was asked for
            first, end = int(self.offsets[table]), min(stop, int(self.offsets[table + 1]))
            copy_rows(rows[at - start : end - start], self.tables[table][at - first : end - first])
            at, table = end, table + 1


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
    """Tables that together are the rows from ``start`` to ``stop``: views of arrays, and
    :class:`StoredRows` of what is on disk, of which nothing is read.

    Args:
        rows: an array, :class:`ListedRows` or a table on disk.
        start: the first row.
        stop: one past the last.
    """
    if isinstance(rows, np.ndarray):
        return [rows[start:stop]]
    if not isinstance(rows, ListedRows):
        return [StoredRows(rows, start, stop)]
    tables, t = [], int(np.searchsorted(rows.offsets, start, side="right")) - 1
    while start < stop:
        # what is wanted of table t, which stays the table itself where that is all of it
        table, first = rows.tables[t], int(rows.offsets[t])
        end = min(stop, int(rows.offsets[t + 1]))
        is_whole = start == first and end == rows.offsets[t + 1]
        tables += [table] if is_whole else tables_of(table, start - first, end - first)
        start, t = end, t + 1
    return tables


def is_stored(value: Any) -> bool:
    """Whether this is a table on disk, of h5py, zarr or what behaves like them: it has a shape and
    a type, its rows are read by slices, and it is no array or frame of whatever library.
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
        rows: ``(R, d)``: an array, or the :class:`LongRows` of a very long bag.
        cuts: ``(bags + 1,)``: where the rows of each bag begin among ``rows``.
    """

    bags: IntArray
    rows: Any
    cuts: IntArray


class RowReader:
    """Reads the rows of bags in one float type.

    What is read is a view where it lies together in an array of that type. All else is cast into
    one buffer, which the next read overwrites.

    Args:
        rows: ``(N, d)``: an array, :class:`ListedRows` or a table on disk.
        offsets: ``(n + 1,)``: where each bag begins.
        dtype: of what is read.
        size: most rows of a block of several bags. More than four times as many are never read at
            once: they are :class:`LongRows`.

    >>> import numpy as np
    >>> from attsvm.datasets.rows import RowReader
    >>> reader = RowReader(np.arange(6.0).reshape(6, 1), np.array([0, 1, 4, 6]), size=4)
    >>> [(block.bags.tolist(), block.cuts.tolist()) for block in reader.blocks()]
    [([0, 1], [0, 1, 4]), ([2], [0, 2])]
    """

    def __init__(
        self, rows: Any, offsets: IntArray, dtype: DTypeLike = np.float32, size: int = BLOCK
    ) -> None:
        self.rows, self.offsets, self.dtype, self.size = rows, offsets, np.dtype(dtype), size
        self._buffer = np.empty((0, rows.shape[1]), self.dtype)

    def blocks(self) -> Iterator[Block]:
        """All bags in turn: as many whole ones as fit into a block, alone one that is longer."""
        first, n = 0, len(self.offsets) - 1
        while first < n:
            end = int(self.offsets[first]) + self.size
            last = max(int(np.searchsorted(self.offsets, end, side="right")) - 1, first + 1)
            bags = np.arange(first, last)
            rows, cuts = self.take(bags)
            yield Block(bags, rows, cuts)
            first = last

    def take(self, bags: IntArray) -> tuple[Any, IntArray]:
        """The rows of the bags at these positions, and ``(bags + 1,)`` where each bag begins among
        them.
        """
        starts, stops = self.offsets[bags], self.offsets[bags + 1]
        cuts = np.concatenate([[0], np.cumsum(stops - starts)])
        if cuts[-1] > _LONG * self.size:
            return LongRows(self, starts, stops), cuts
        return self.read(starts, stops), cuts

    def read(self, starts: IntArray, stops: IntArray) -> NDArray[Any]:
        """The rows of ranges of the table, one range after the other."""
        if (starts[1:] == stops[:-1]).all():  # each begins where the one before ends: one range
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
        """Whether the table is an array of the wanted type, so that a range of it is a view."""
        return isinstance(self.rows, np.ndarray) and self.rows.dtype == self.dtype

    def _space(self, count: int) -> NDArray[Any]:
        """So many rows of the buffer, which grows to the largest number asked for."""
        if len(self._buffer) < count:
            self._buffer = np.empty((count, self.rows.shape[1]), self.dtype)
        return self._buffer[:count]

    def _fill(self, rows: NDArray[Any], start: int) -> None:
        """Fill ``rows`` with those of the table from ``start`` on."""
        if isinstance(self.rows, ListedRows):
            self.rows.read_into(rows, start)
        else:
            copy_rows(rows, self.rows[start : start + len(rows)])


def copy_rows(rows: NDArray[Any], values: Any) -> None:
    """``rows[...] = values`` of ``(R, d)``, from float16 three times as fast as NumPy does it.

    The bits of float16 are moved to their places in float32. The exponent is then too small by 112,
    for float32 counts it from another zero; a product with :math:`2^{112}` mends that, exactly and
    for subnormal numbers too. Infinities and what is no number come out as finite numbers of 65,536
    and more; NumPy casts the pieces that hold them.

    Args:
        rows: is filled.
        values: ``(R, d)`` of any float type: an array, or what becomes one.
    """
    values = np.asarray(values)
    if values.dtype != np.float16 or rows.dtype not in (np.float32, np.float64):
        rows[...] = values
        return
    step = max(_CACHED // max(values.shape[1], 1), 1)
    for start in range(0, len(values), step):
        piece = values[start : start + step]
        # sign, exponent and mantissa to where float32 has them; copies of the sign fill the bits
        # between, and are cleared
        bits = np.ascontiguousarray(piece).view(np.int16).astype(np.int32)
        np.left_shift(bits, 13, out=bits)
        np.bitwise_and(bits, _SIGN_AND_NUMBER, out=bits)
        # the exponent, which float32 counts from 127 and float16 from 15
        cast = rows[start : start + step]
        np.multiply(bits.view(np.float32), _BIAS, out=cast)
        # a piece that held an infinity or no number
        if not (cast.min(initial=0.0) > -_BEYOND and cast.max(initial=0.0) < _BEYOND):
            cast[...] = piece


def matmul(rows: Any, factor: NDArray[Any]) -> NDArray[Any]:
    """``rows @ factor`` of finite numbers, without a warning that the product does not deserve.

    OpenBLAS multiplies whole registers, including places that hold no row, and NumPy reports what
    happens to the leftovers there ("invalid value encountered in matmul"): OpenBLAS 0.3.31 does
    where single-precision rows of five numbers are multiplied by a vector. The product is right.

    Args:
        rows: ``(R, d)``, an array or :class:`LongRows`.
        factor: ``(d,)`` or ``(d, columns)``.
    """
    with np.errstate(invalid="ignore"):
        return np.asarray(rows @ factor)


class LongRows:
    """Rows ``(R, d)`` that are too many to be in memory, and are read piece by piece for each
    product: ``rows @ factor`` and ``rows.T @ shares``. ``rows[positions]`` is an array where the
    positions are few.

    Args:
        reader: of the table.
        starts: ``(ranges,)``: where ranges of its rows begin.
        stops: ``(ranges,)``: where they end.

    Attributes:
        ends: ``(ranges,)``: where each range ends among these rows.

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

    __array_ufunc__ = None  # NumPy leaves operators to this class, which has @ alone
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
        # positions: each run of neighbours among them is one range of the table, or a few
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
        """The rows of ranges of the table: an array of its own where they fit into a block."""
        if (stops - starts).sum() > self.reader.size:
            return LongRows(self.reader, starts, stops)
        return self.reader.read(starts, stops).copy()

    def _ranges(self, start: int, stop: int) -> tuple[IntArray, IntArray]:
        """Where in the table the rows from ``start`` to ``stop`` of these begin and end, range by
        range.
        """
        lengths = np.diff(self.ends, prepend=0)
        begins = self.ends - lengths
        # the part of each range that lies between, counted from the beginning of the range
        low = np.clip(start - begins, 0, lengths)
        high = np.clip(stop - begins, 0, lengths)
        is_met = high > low
        return (self.starts + low)[is_met], (self.starts + high)[is_met]


class _TransposedRows:
    """The transpose ``(d, R)`` of :class:`LongRows`, which has products alone."""

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
    """Where each piece of ``(R, d)`` rows begins, and the piece in memory: of :class:`LongRows` a
    few thousand rows, of an array all.
    """
    if isinstance(rows, LongRows):
        yield from rows.pieces()
    else:
        yield 0, rows


def bag_sums(rows: Any, offsets: IntArray) -> NDArray[Any]:
    """``(n, d)``: the sum of the rows of each bag, with ``offsets`` where bags begin;
    :class:`LongRows` are one bag.
    """
    if isinstance(rows, LongRows):
        return np.asarray(rows.T @ np.ones((len(rows), 1))).T
    sums: NDArray[Any] = np.add.reduceat(rows, offsets[:-1], axis=0)
    return sums
