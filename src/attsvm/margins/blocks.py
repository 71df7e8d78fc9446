r"""Programmes whose constraints are never in memory together.

A programme of :math:`10^7` rows :math:`\delta_c^\top W z_{i(c)}\ge b_c` of 128 features takes ten
gigabytes. :class:`MarginBlocks` asks for it a block at a time, as often as a solver needs: each
block is made or read anew, looked at (:mod:`attsvm.margins.block_rows`), and dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from attsvm.base.errors import InputError
from attsvm.base.printable import kind


class MarginBlocks:
    """A programme in blocks; :meth:`attsvm.Margins.from_blocks` makes it.

    Attributes:
        count: how many blocks there are.

    Example:
        >>> import numpy as np
        >>> import attsvm
        >>> rows = np.random.default_rng(0).normal(size=(3, 20, 100))
        >>> blocks = attsvm.Margins.from_blocks(lambda k: rows[k], count=3)
        >>> blocks
        MarginBlocks(3 blocks)
        >>> solution = attsvm.max_margin_blocks(blocks)
        >>> solution.status, bool((rows @ solution.W[:, 0]).min() > 1 - 1e-8)
        ('optimal', True)
    """

    def __init__(self, blocks: Any, count: int | None = None) -> None:
        if callable(blocks):
            if isinstance(count, bool) or not isinstance(count, int) or count < 1:
                raise InputError(
                    f"count is {kind(count)}; give the number of blocks, at least 1, beside the"
                    " function that makes block k"
                )
        elif isinstance(blocks, Sequence) and not isinstance(blocks, str) and len(blocks):
            if count is not None and count != len(blocks):
                raise InputError(f"count is {count} and there are {len(blocks)} blocks")
            count = len(blocks)
        else:
            raise InputError(
                f"blocks is {kind(blocks)}; give a function of the block's number and count, or a"
                " list of blocks (every block is asked for several times, which no generator"
                " allows)"
            )
        self.count = count
        self._blocks = blocks

    def __repr__(self) -> str:
        return f"MarginBlocks({self.count} blocks)"

    def maker(self, k: int) -> Callable[[], Any]:
        """A function that makes block ``k``, to be sent to another process."""
        return (
            partial(self._blocks, k)
            if callable(self._blocks)
            else partial(_return_block, self._blocks[k])
        )


def _return_block(block: Any) -> Any:
    return block
