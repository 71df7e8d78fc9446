"""Mirror descent as the third paper's released code computes it, rounding included, many runs at
once.
"""

from collections.abc import Sequence

import numpy as np

from attsvm import AttentionData
from attsvm.base.softmax import softmax_rows
from attsvm.datasets.attention_data import FloatArray

EPSILON = 2.0**-52


def published_descent(
    data: AttentionData,
    head: FloatArray,
    start: FloatArray,
    p: float,
    lr: float,
    at: Sequence[int],
    *,
    joint: bool = False,
) -> tuple[FloatArray, FloatArray]:
    r"""Normalised :math:`\ell_p` descent with three habits that :class:`attsvm.optim.MirrorDescent`
    does not have.

    The gradient of the softmax is the textbook one, :math:`s_t(\gamma_t-\bar\gamma)`, which cancels
    at the selected token once its probability rounds to one. The dual norm is a plain sum of
    powers, with machine epsilon added to it, so steps shrink once the gradient is smaller than
    that. The dual iterate is made from the weights at every step.

    Args:
        data: one instance per run, all sequences of the same length.
        head: ``(runs, d_x)``, where it starts.
        start: ``(runs, d_x, d_z)``.
        p: exponent of the potential.
        lr: step in the dual.
        at: steps at which weights are kept, sorted; the last one is the end.
        joint: whether the head descends too, by the same rule.

    Returns:
        weights ``(records, runs, d_x, d_z)`` and heads ``(records, runs, d_x)``.
    """
    W, v = start.copy(), head.copy()
    X, Z, y = data.tokens, data.queries, data.labels
    weights, heads = np.empty((len(at), *W.shape)), np.empty((len(at), *v.shape))
    step = 0
    for record, stop in enumerate(at):
        for _ in range(stop - step):
            G, g = _loss_gradients(X, Z, y, W, v)
            _published_step(W, G, p, lr)
            if joint:
                _published_step(v, g, p, lr)
        step = stop
        weights[record], heads[record] = W, v
    return weights, heads


def _loss_gradients(
    X: FloatArray, Z: FloatArray, y: FloatArray, W: FloatArray, v: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Gradients of the mean logistic loss of every run, for the weights and the head."""
    images = np.einsum("rjk,rik->rij", W, Z)
    logits, score = np.einsum("ritj,rij->rit", X, images), np.einsum("ritj,rj->rit", X, v)
    s = softmax_rows(logits)
    output = (s * score).sum(axis=-1)
    slope = (-y / (1.0 + np.exp(y * output)) / y.shape[1])[..., None]
    pulls = np.einsum("rit,ritj->rij", slope * (s * (score - output[..., None])), X)
    return np.einsum("rij,rik->rjk", pulls, Z), np.einsum("rit,ritj->rj", slope * s, X)


def _published_step(w: FloatArray, g: FloatArray, p: float, lr: float) -> None:
    """One step of every run, in place."""
    axes, r = tuple(range(1, g.ndim)), 1.0 / (p - 1.0)
    size = np.abs(g)
    total = (size * _signed_entries_to(size, r)).sum(axis=axes, keepdims=True)
    norm = total ** ((p - 1.0) / p) + EPSILON
    w[...] = _signed_entries_to(_signed_entries_to(w, p - 1.0) - lr * (g / norm), r)


def _signed_entries_to(x: FloatArray, r: float) -> FloatArray:
    if r == 1.0:
        return x
    if r == 2.0:
        return x * np.abs(x)
    return np.copysign(np.sqrt(np.abs(x)) if r == 0.5 else np.abs(x) ** r, x)
