"""Singular values of weights."""

from __future__ import annotations

import numpy as np

from attsvm.data import FloatArray


def singular_values(W: FloatArray) -> FloatArray:
    """``(q,)``, falling."""
    return np.asarray(np.linalg.svd(W, compute_uv=False), dtype=np.float64)
