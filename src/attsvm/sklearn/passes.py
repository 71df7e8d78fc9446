"""Passes over bags, shared out among threads: each reads some of the bags, a block at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from numpy.typing import DTypeLike

from attsvm.base.cores import even_shares, map_on_threads
from attsvm.datasets.bags import Bags
from attsvm.datasets.rows import BLOCK, Block, ListedRows, RowReader, StoredRows

Result = TypeVar("Result")

_ROWS = 8 * BLOCK
"""Least rows of a share on average: the blocks that threads hold are few beside the table, and a
share takes far longer than it takes a thread to begin."""
_READABLE = ("numpy", "h5py", "zarr", "attsvm")
"""Packages whose tables several threads may read; of h5py they do so one after the other."""


def map_shares(
    bags: Bags, dtype: DTypeLike, work: Callable[[Iterator[Block]], Result]
) -> list[Result]:
    """Results of ``work`` on the blocks of each share of the bags, in their order.

    Which bags are a share depends on the table alone, so sums over the shares do not depend on the
    number of threads.

    Args:
        bags: where the rows are.
        dtype: of the rows that are read.
        work: on blocks, of which the next may overwrite the one before.
    """
    shares = even_shares(bags.n, int(bags.offsets[-1]) // _ROWS)
    return map_on_threads(
        lambda share: work(_blocks(bags, dtype, *share)), shares, most_readers(bags)
    )


def most_readers(bags: Bags) -> int | None:
    """Most threads that may read the table; None where any number may."""
    return None if _is_readable(bags.rows) else 1


def _blocks(bags: Bags, dtype: DTypeLike, first: int, last: int) -> Iterator[Block]:
    """Bags from ``first`` to ``last``, as many whole ones at a time as fit into a block."""
    for block in RowReader(bags.rows, bags.offsets[first : last + 1], dtype).blocks():
        yield Block(first + block.bags, block.rows, block.cuts)


def _is_readable(rows: Any) -> bool:
    """Whether several threads may read these rows."""
    if isinstance(rows, ListedRows):
        return all(map(_is_readable, rows.tables))
    table = rows.table if isinstance(rows, StoredRows) else rows
    return type(table).__module__.split(".")[0] in _READABLE
