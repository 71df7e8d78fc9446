"""Other weights of the same spectrum, and the queries that they are as sure of."""

from __future__ import annotations

from typing import Literal

import numpy as np

from attsvm.datasets.attention_data import FloatArray, IntArray

Null = Literal["heads", "random", "rotated", "permuted", "reflected"]
NULLS: tuple[Null, ...] = ("heads", "random", "rotated", "permuted", "reflected")
_HALVINGS = 15  # of the logarithm of a scale between a millionth and a million: to 1e-3


def variant(
    singular: tuple[FloatArray, FloatArray, FloatArray], null: Null, rng: np.random.Generator
) -> FloatArray:
    """Weights with these singular values: random singular vectors, the same ones ``rotated`` in
    their two subspaces, or left ones ``permuted`` against right ones.
    """
    U, s, Vt = singular
    k = len(s)
    if null == "permuted":
        left, right = U, Vt[_derangement(k, rng)]
    elif null == "rotated":
        left, right = U @ _orthogonal(k, k, rng), _orthogonal(k, k, rng) @ Vt
    else:
        left, right = _orthogonal(len(U), k, rng), _orthogonal(Vt.shape[1], k, rng).T
    return (left * s) @ right


def reflection(rows: FloatArray, rng: np.random.Generator) -> FloatArray:
    """``(width, width)``: random signs on the eigenvectors of the covariance of inputs
    ``(n, width)`` in the complement of their mean, which it leaves.
    """
    mean = rows.mean(axis=0)
    unit = mean / np.linalg.norm(mean)
    covariance = np.cov((rows - np.outer(rows @ unit, unit)).T)
    _, V = np.linalg.eigh(covariance + 2 * np.trace(covariance) * np.outer(unit, unit))
    signs = rng.choice([-1.0, 1.0], size=len(unit))
    signs[-1] = 1.0  # the mean has the largest eigenvalue here
    return (V * signs) @ V.T


def surest(
    logits: list[FloatArray], classes: list[IntArray], wanted: int, threshold: float
) -> IntArray:
    """The queries with top mass above ``threshold`` at the scale of the logits at which they are
    ``wanted`` many (to a part in a thousand of that scale).

    Args:
        logits: per text ``(q, T)``, minus infinity on hidden keys.
        classes: per text ``(T,)`` integers: top mass is that of the class of the selected token,
            and a query needs a rival of another class.
        wanted: how many.
        threshold: top mass.
    """
    own = [c[each.argmax(axis=1)][:, None] == c for each, c in zip(logits, classes, strict=True)]
    below = [(each - each.max(axis=1, keepdims=True)).astype(np.float32) for each in logits]
    rivals = np.concatenate(
        [(np.isfinite(each) & ~mine).any(axis=1) for each, mine in zip(logits, own, strict=True)]
    )

    def sure(scale: float) -> IntArray:
        weights = [np.exp(np.float32(scale) * each) for each in below]
        totals = [each.sum(axis=1) for each in weights]
        tops = [(each * mine).sum(axis=1) for each, mine in zip(weights, own, strict=True)]
        return np.flatnonzero(rivals & (np.concatenate(totals) * threshold < np.concatenate(tops)))

    low, high = 1e-6, 1e6  # in units of the weights as they are
    for _ in range(_HALVINGS):
        middle = float(np.sqrt(low * high))
        low, high = (low, middle) if len(sure(middle)) >= wanted else (middle, high)
    return sure(high)


def _derangement(n: int, rng: np.random.Generator) -> IntArray:
    """A random order without fixed points (by a shift where there are two or three)."""
    order = rng.permutation(n)
    found = np.empty(n, dtype=np.int64)
    found[order] = np.roll(order, 1)
    return found


def _orthogonal(n: int, k: int, rng: np.random.Generator) -> FloatArray:
    Q, R = np.linalg.qr(rng.normal(size=(n, k)))
    return Q * np.sign(np.diag(R))
