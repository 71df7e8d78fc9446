"""Straight lines through records: every fitted rate of the experiments is one of these slopes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from attsvm.data import FloatArray


def slopes(x: FloatArray, y: FloatArray, inside: NDArray[np.bool_]) -> FloatArray:
    """Least-squares slopes ``(rows,)`` of ``y`` against ``x``, ``(rows, records)`` each or
    ``(records,)`` for all rows, over the records that are ``inside``; NaN where fewer than two are.
    """
    x, y, inside = np.broadcast_arrays(x, y, inside)
    kept = inside.astype(np.float64)
    total = np.maximum(kept.sum(axis=-1, keepdims=True), 1.0)
    x, y = np.where(inside, x, 0.0), np.where(inside, y, 0.0)
    dx = kept * (x - x.sum(axis=-1, keepdims=True) / total)
    dy = y - y.sum(axis=-1, keepdims=True) / total
    spread = np.sum(dx**2, axis=-1)
    found: FloatArray = np.sum(dx * dy, axis=-1) / np.where(spread > 0, spread, np.nan)
    return found
