"""Rows that pair, and straight lines, whose slopes are all fitted rates of the experiments."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from attsvm.claims import Evidence
from attsvm.datasets.attention_data import FloatArray


def in_order(evidence: Evidence, column: str = "seed", **values: Any) -> Evidence:
    """The rows with these values in other columns, sorted by one: rows of several variants pair."""
    rows = evidence.where(**values)
    return rows.take(np.argsort(rows[column]))


def exponents(
    steps: NDArray[Any],
    values: NDArray[Any],
    first: float,
    last: float,
    among: NDArray[np.bool_] | bool = True,
) -> FloatArray:
    """Least-squares slopes ``(rows,)`` of log values ``(rows, records)`` against log steps, which
    have the same shape or are ``(records,)`` for all rows: the power of the step that values
    follow from step ``first`` to ``last``. Records that are not ``among`` do not count.
    """
    inside = (steps >= first) & (steps <= last) & among
    with np.errstate(divide="ignore", invalid="ignore"):
        y = np.log(np.where(inside, values, 1.0))
        return slopes(np.log(np.where(inside, steps, 1.0)), y, inside)


def slopes(x: FloatArray, y: FloatArray, inside: NDArray[np.bool_]) -> FloatArray:
    """Least-squares slopes ``(rows,)`` of ``y`` against ``x``, ``(rows, records)`` each or
    ``(records,)`` for all rows, over the records that are ``inside``; NaN where fewer than two are.
    """
    x, y, inside = np.broadcast_arrays(x, y, inside)
    counted = inside.astype(np.float64)
    total = np.maximum(counted.sum(axis=-1, keepdims=True), 1.0)
    x, y = np.where(inside, x, 0.0), np.where(inside, y, 0.0)
    dx = counted * (x - x.sum(axis=-1, keepdims=True) / total)
    dy = y - y.sum(axis=-1, keepdims=True) / total
    spread = np.sum(dx**2, axis=-1)
    slope: FloatArray = np.sum(dx * dy, axis=-1) / np.where(spread > 0, spread, np.nan)
    return slope
