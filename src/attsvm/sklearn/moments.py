"""The size and the spread of instances, read once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from attsvm.base.errors import InputError
from attsvm.datasets.attention_data import FloatArray
from attsvm.datasets.bags import Bags, check_finite
from attsvm.datasets.rows import Block, RowReader, bag_sums, pieces
from attsvm.sklearn.passes import map_shares

_SQUARED = 256  # rows that are squared together: few enough for a cache


@dataclass(frozen=True, eq=False)
class Moments:
    """Instances, each as often as its bag counts.

    Attributes:
        unit: root-mean-square norm; 1 where all instances are zero.
        mean: ``(d,)``.
        deviation: ``(d,)``, positive: of a feature that does not vary a millionth of its share of
            the unit.
        largest: size of the largest number.
    """

    unit: float
    mean: FloatArray
    deviation: FloatArray
    largest: float


def moments(bags: Bags, weights: FloatArray) -> Moments:
    """The moments of bags with ``(n,)`` weights, in one pass; bags of weight 0 play no part.

    Raises:
        InputError: a number that is not finite, in a table on disk.
    """
    row_weights = np.repeat(weights, bags.lengths)

    def read(blocks: Iterator[Block]) -> tuple[FloatArray, FloatArray, float, float]:
        total, squares = np.zeros(bags.d), np.zeros(bags.d)
        count, largest = 0.0, 0.0
        for begin, piece in _pieces(bags, blocks):
            check_finite(piece, bags.offsets, begin)
            weight = row_weights[begin : begin + len(piece)]
            rows = piece if weight.all() else piece[weight > 0]
            weight = weight[weight > 0]
            if len(rows) == 0:
                continue
            largest = max(largest, float(rows.max()), -float(rows.min()))
            with np.errstate(over="ignore"):  # which the caller refuses by the largest number
                total += weight @ rows
                for start in range(0, len(rows), _SQUARED):
                    some = slice(start, start + _SQUARED)
                    squares += weight[some] @ np.square(rows[some])
            count += float(weight.sum())
        return total, squares, count, largest

    total, squares, count, largest = zip(*map_shares(bags, np.float64, read), strict=True)
    with np.errstate(over="ignore"):
        mean, square = (np.sum(sums, axis=0) / sum(count) for sums in (total, squares))
    unit = float(np.sqrt(square.sum())) or 1.0
    with np.errstate(invalid="ignore", over="ignore"):
        variance = np.maximum(square - mean * mean, 1e-12 * unit**2 / bags.d)
    return Moments(unit, mean, np.sqrt(variance), max(largest))


def _pieces(bags: Bags, blocks: Iterator[Block]) -> Iterator[tuple[int, FloatArray]]:
    """The instances of blocks, a few thousand at a time, and where each piece begins."""
    for block in blocks:
        begin = int(bags.offsets[block.bags[0]])
        for start, rows in pieces(block.rows):
            yield begin + start, rows


def bag_means(bags: Bags) -> FloatArray:
    """``(n, d)``: the mean instance of each bag."""
    means = np.empty((bags.n, bags.d))
    for block in RowReader(bags.rows, bags.offsets, np.float64).blocks():
        means[block.bags] = bag_sums(block.rows, block.cuts) / np.diff(block.cuts)[:, None]
    return means


def check_sizes(moments: Moments, queries: FloatArray) -> None:
    """Refuse instances and ``(n, d_z)`` queries whose squares or products are no ordinary numbers.

    Raises:
        InputError: their size, or the product of both, is below 1e-145 or above 1e145.
    """
    tokens, z = moments.largest, float(np.abs(queries).max())
    for name, size in (("instances", tokens), ("queries", z), ("both together", tokens * z)):
        if size and not 1e-145 <= size <= 1e145:
            raise InputError(
                f"{name} have a size of about {size:.1e}, too close to the ends of float64 for"
                " training; divide them by a constant first"
            )
