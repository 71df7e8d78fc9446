"""Singular values and vectors of weights, and their gauge."""

from __future__ import annotations

import math

import numpy as np

from attsvm.data import FloatArray


def singular_values(W: FloatArray) -> FloatArray:
    """``(q,)``, falling."""
    try:
        return np.asarray(np.linalg.svd(W, compute_uv=False), dtype=np.float64)
    except np.linalg.LinAlgError:
        return svd(W)[1]


def svd(W: FloatArray, full_matrices: bool = False) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Singular vectors and values of finite weights. LAPACK's fast method (``gesdd``) does not
    converge on rare matrices; its slow one then does.
    """
    try:
        left, s, right = np.linalg.svd(W, full_matrices=full_matrices)
    except np.linalg.LinAlgError:
        from scipy.linalg import svd as slow

        left, s, right = slow(W, full_matrices=full_matrices, lapack_driver="gesvd")
    return left, s, right


def length(s: FloatArray, p: float) -> float:
    """:meth:`attsvm.geometry.gauge.Gauge.length` of singular values, in fewer calls: splittings ask
    for it every few iterations.
    """
    if p == 1.0 or math.isinf(p) or not s[0] > 0.0:
        return float(s.sum() if p == 1.0 else s[0])
    return float(s[0]) * float(((s / s[0]) ** p).sum() ** (1.0 / p))
