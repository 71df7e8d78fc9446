"""The recurrences of the papers in the numbers of ``np.longdouble``, whose exponents reach
e^-11000: what every loop is compared with.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from attsvm.datasets.attention_data import AttentionData

Array = np.ndarray
WIDE = np.finfo(np.longdouble).minexp < -16000

needs_wide = pytest.mark.skipif(not WIDE, reason="np.longdouble is no wider than float64 here")


def extended_descent(
    data: AttentionData,
    v: Array,
    start: Array,
    marks: Sequence[int],
    lr: float = 0.1,
    p: float = 2.0,
    epsilon: float = 0.0,
) -> dict[int, Array]:
    """Weights at the marks of normalised mirror descent on the logistic loss, in differences to the
    token of the largest logit; at ``p = 2`` this is normalised gradient descent.
    """
    real = np.longdouble
    x, z, W = (np.asarray(a, real) for a in (data.tokens, data.queries, start))
    score = data.labels[:, None] * (x @ np.asarray(v, real))
    exponent, rows, found = real(p), np.arange(data.n), {}
    for step in range(max(marks) + 1):
        if step in marks:
            found[step] = W.astype(np.float64)
        a = (x @ (z @ W.T)[..., None])[..., 0]
        win = a.argmax(axis=1)
        s = np.exp(a - a[rows, win, None])
        s /= s.sum(axis=1, keepdims=True)
        lag = score[rows, win, None] - score
        mean = (s * lag).sum(axis=1, keepdims=True)
        pull = s * (lag - mean)
        pull[rows, win] = 0.0
        pull[rows, win] = -pull.sum(axis=1)
        slope = 1.0 / (1.0 + np.exp(score[rows, win] - mean[:, 0])) / data.n
        G = (slope[:, None] * (pull[:, None, :] @ x)[:, 0]).T @ z
        top = np.abs(G).max()
        q = exponent / (exponent - 1)
        size = top * ((np.abs(G) / top) ** q).sum() ** (1 / q)
        image = np.sign(W) * np.abs(W) ** (exponent - 1) - real(lr) * G / (size + real(epsilon))
        W = np.sign(image) * np.abs(image) ** (1 / (exponent - 1))
    return found
