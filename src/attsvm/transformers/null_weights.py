"""Other weights of the same spectrum, and the queries that they are as sure of."""

from __future__ import annotations

from typing import Literal

import numpy as np

from attsvm.datasets.attention_data import FloatArray, IntArray

Null = Literal["heads", "random", "rotated", "permuted", "reflected"]
NULLS: tuple[Null, ...] = ("heads", "random", "rotated", "permuted", "reflected")


def null_factors(
    singular: tuple[FloatArray, FloatArray, FloatArray], null: Null, rng: np.random.Generator
) -> tuple[FloatArray, FloatArray]:
    """Two factors of weights with these singular values: random singular vectors, the same ones
    ``rotated`` in their two subspaces, or left ones ``permuted`` against right ones.
    """
    # all of them keep the spectrum, and lose how left and right vectors belong together
    U, s, Vt = singular
    k = len(s)
    if null == "permuted":
        left, right = U, Vt[_derangement(k, rng)]
    elif null == "rotated":
        left, right = U @ _orthogonal(k, k, rng), _orthogonal(k, k, rng) @ Vt
    else:
        left, right = _orthogonal(len(U), k, rng), _orthogonal(Vt.shape[1], k, rng).T
    return left * s, right


def reflection(rows: FloatArray, rng: np.random.Generator) -> FloatArray:
    """Random signs ``(width, width)`` on the eigenvectors of the covariance of inputs
    ``(n, width)`` in the complement of their mean, which it leaves.
    """
    mean = rows.mean(axis=0)
    unit = mean / np.linalg.norm(mean)
    # eigenvectors outside the mean, which gets an eigenvalue above all others
    covariance = np.cov((rows - np.outer(rows @ unit, unit)).T)
    _, V = np.linalg.eigh(covariance + 2 * np.trace(covariance) * np.outer(unit, unit))
    signs = rng.choice([-1.0, 1.0], size=len(unit))
    signs[-1] = 1.0  # the mean has the largest eigenvalue here
    return (V * signs) @ V.T


def equally_sure_queries(
    logits: list[FloatArray],
    classes: list[IntArray],
    count: int,
    threshold: float,
    halvings: int = 15,
) -> IntArray:
    """The queries with top mass above ``threshold`` at the scale of the logits at which there are
    ``count`` of them, to a part in a thousand of that scale.

    Args:
        logits: per text ``(q, T)``, minus infinity on hidden keys.
        classes: per text ``(T,)`` integers: top mass is that of the class of the selected token,
            and a query needs a rival of another class.
        count: number of queries.
        threshold: top mass.
        halvings: of the logarithm of a scale between a millionth and a million; 15 reach 1e-3.
    """
    texts = list(zip(logits, classes, strict=True))
    same_class = [labels[of_text.argmax(axis=1)][:, None] == labels for of_text, labels in texts]
    # relative to the peak, so that every scale can be exponentiated
    below = [(x - x.max(axis=1, keepdims=True)).astype(np.float32) for x in logits]
    has_rival = np.concatenate(
        [
            (np.isfinite(of_text) & ~same).any(axis=1)
            for of_text, same in zip(logits, same_class, strict=True)
        ]
    )

    def sure_at(scale: float) -> IntArray:
        weights = [np.exp(np.float32(scale) * of_text) for of_text in below]
        totals = np.concatenate([of_text.sum(axis=1) for of_text in weights])
        tops = np.concatenate(
            [
                (of_text * same).sum(axis=1)
                for of_text, same in zip(weights, same_class, strict=True)
            ]
        )
        return np.flatnonzero(has_rival & (totals * threshold < tops))

    # bisection: a larger scale is sure of more queries
    low, high = 1e-6, 1e6  # in units of the weights as they are
    for _ in range(halvings):
        middle = float(np.sqrt(low * high))
        low, high = (low, middle) if len(sure_at(middle)) >= count else (middle, high)
    return sure_at(high)


def _derangement(n: int, rng: np.random.Generator) -> IntArray:
    """A random order without fixed points (by a shift where there are two or three)."""
    # one cycle through all in random order moves every one of them
    order = rng.permutation(n)
    shifted = np.empty(n, dtype=np.int64)
    shifted[order] = np.roll(order, 1)
    return shifted


def _orthogonal(n: int, k: int, rng: np.random.Generator) -> FloatArray:
    """Random orthonormal columns ``(n, k)``, by QR with positive diagonal."""
    # signs of R make the distribution uniform (Haar)
    Q, R = np.linalg.qr(rng.normal(size=(n, k)))
    return Q * np.sign(np.diag(R))
