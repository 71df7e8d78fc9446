"""What a trained layer does with data: logits, probabilities, values. NumPy, one pass, for
evaluation.
"""

from __future__ import annotations

import numpy as np

from attsvm.data import AttentionData, FloatArray, IntArray


def logits(data: AttentionData, W: FloatArray) -> FloatArray:
    r"""``(n, T)``: :math:`x_{it}^\top W z_i`; ``-inf`` on masked tokens."""
    moved = data.queries @ W.T
    raw = np.matmul(data.tokens, moved[:, :, None])[..., 0]
    return np.where(data.mask, raw, -np.inf)


def selected_tokens(data: AttentionData, W: FloatArray) -> IntArray:
    """``(n,)``: the visible token with the largest logit, the first one on ties."""
    return np.argmax(logits(data, W), axis=1)


def probabilities(data: AttentionData, W: FloatArray) -> FloatArray:
    """``(n, T)``: the softmax of the logits; zero on masked tokens."""
    a = logits(data, W)
    weights: FloatArray = np.exp(a - a.max(axis=1, keepdims=True))
    weights /= weights.sum(axis=1, keepdims=True)
    return weights


def soft_values(
    data: AttentionData, W: FloatArray, head: FloatArray, intercept: float
) -> FloatArray:
    """``(n,)``: the head's value of the attention output; its sign is the predicted label."""
    return np.sum(probabilities(data, W) * (data.tokens @ head), axis=1) + intercept


def token_values(
    data: AttentionData, tokens: IntArray, head: FloatArray, intercept: float
) -> FloatArray:
    """``(n,)``: the head's value of one chosen token per sequence."""
    return data.tokens[np.arange(data.n), tokens] @ head + intercept
