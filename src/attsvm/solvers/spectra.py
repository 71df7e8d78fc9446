"""Singular values of weights, and their gauge."""

from __future__ import annotations

import math

import numpy as np

from attsvm.data import FloatArray


def singular_values(W: FloatArray) -> FloatArray:
    """``(q,)``, falling."""
    return np.asarray(np.linalg.svd(W, compute_uv=False), dtype=np.float64)


def length(s: FloatArray, p: float) -> float:
    """:meth:`attsvm.geometry.gauge.Gauge.length` of singular values, in fewer calls: splittings ask
    for it every few iterations.
    """
    if p == 1.0 or math.isinf(p) or not s[0] > 0.0:
        return float(s.sum() if p == 1.0 else s[0])
    return float(s[0]) * float(((s / s[0]) ** p).sum() ** (1.0 / p))
