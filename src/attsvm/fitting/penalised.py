r"""Attention pooling whose weights are penalised: several heads, several classes, weighted bags.

.. math:: f_i=\sum_hV_h^\top X_i^\top\mathrm{softmax}(X_iW_hz_i),\qquad
          \min\ \sum_ic_i\,\ell(f_i,y_i)+\tfrac\lambda2\|V\|^2+\tfrac{\lambda\rho}2\|W\|^2,

with the logistic loss, or the cross-entropy of three classes and more. At :math:`W=0` this is mean
pooling, which is convex, is solved with a certificate, and is where training starts; ``rho`` is
infinite where attention does not pay.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attsvm.data import FloatArray, IntArray
from attsvm.fitting import segments
from attsvm.fitting.minimise import ConvexStep, certified, cross_entropy, descend

_RANDOM_SIZE = 0.1  # of the first attention weights of further heads


@dataclass(frozen=True, eq=False)
class Pooled:
    """Bags with classes, queries, and the constant feature at the end of each instance.

    Attributes:
        rows: ``(N, d + 1)``.
        offsets: ``(n + 1,)``.
        queries: ``(n, d_z)``.
        labels: ``(n,)``: 0 and 1 of two classes, or 0 to K - 1.
        columns: values of a bag: one for two classes, else K.
    """

    rows: FloatArray
    offsets: IntArray
    queries: FloatArray
    labels: IntArray
    columns: int

    def means(self) -> FloatArray:
        """``(n, d + 1)``."""
        return segments.sums(self.rows, self.offsets) / np.diff(self.offsets)[:, None]

    def losses(self, values: FloatArray) -> tuple[FloatArray, FloatArray]:
        """``(n,)`` losses and ``(n, columns)`` slopes in the values."""
        if self.columns == 1:
            sign = np.where(self.labels > 0, 1.0, -1.0)[:, None]
            losses = np.logaddexp(0.0, -sign * values)
            return losses[:, 0], -sign * np.exp(-np.logaddexp(0.0, sign * values))
        return cross_entropy(values, self.labels)

    def loss(
        self, W: FloatArray, V: FloatArray, shares: FloatArray
    ) -> tuple[float, FloatArray, FloatArray]:
        """The loss of ``W``, ``(heads, d, d_z)``, and ``V``, ``(heads, d + 1, columns)``, without
        penalty, and both gradients.
        """
        lengths = np.diff(self.offsets)
        values = np.zeros((len(lengths), self.columns))
        kept = []
        for w, v in zip(W, V, strict=True):
            moved = np.pad(self.queries @ w.T, ((0, 0), (0, 1)))
            p, _ = segments.softmax(segments.products(self.rows, moved, self.offsets), self.offsets)
            scores = self.rows @ v
            own = segments.sums(p[:, None] * scores, self.offsets)
            values += own
            kept.append((p, scores, own))
        losses, slope = self.losses(values)
        slope *= shares[:, None]
        each = np.repeat(slope, lengths, axis=0)
        at_W, at_V = np.empty_like(W), np.empty_like(V)
        for h, (p, scores, own) in enumerate(kept):
            at_V[h] = self.rows.T @ (p[:, None] * each)
            pulled = p * np.sum((scores - np.repeat(own, lengths, axis=0)) * each, axis=1)
            moved = segments.combinations(pulled, self.rows, self.offsets)
            at_W[h] = moved[:, :-1].T @ self.queries
        return float(shares @ losses), at_W, at_V


def mean_head(
    problem: Pooled, means: FloatArray, shares: FloatArray, penalty: float, start: FloatArray | None
) -> tuple[FloatArray, ConvexStep]:
    """The head ``(k, columns)`` of mean pooling on ``(n, k)`` means, certified."""

    def loss(V: FloatArray) -> tuple[float, FloatArray]:
        losses, slope = problem.losses(means @ V)
        return float(shares @ losses), means.T @ (shares[:, None] * slope)

    first = np.zeros((means.shape[1], problem.columns)) if start is None else start
    return certified(loss, first, penalty)


def attention_heads(
    problem: Pooled,
    shares: FloatArray,
    penalty: float,
    ratio: float,
    head: FloatArray,
    heads: int,
    seed: int,
    iterations: int,
) -> tuple[FloatArray, FloatArray]:
    """Attention and head weights ``(heads, d, d_z)``, ``(heads, d + 1, columns)``, from the mean
    pooling ``head`` of ``(d + 1, columns)``.
    """
    d, d_z = problem.rows.shape[1] - 1, problem.queries.shape[1]
    root = float(np.sqrt(ratio))
    first: FloatArray = np.zeros((heads, d, d_z))
    if heads > 1:
        first = _RANDOM_SIZE * np.random.default_rng([seed, 3]).normal(size=first.shape)
    start = np.concatenate([(root * first).ravel(), np.tile(head / heads, (heads, 1, 1)).ravel()])
    cut = first.size

    def loss(flat: FloatArray) -> tuple[float, FloatArray]:
        W, V = flat[:cut].reshape(first.shape) / root, flat[cut:].reshape(heads, d + 1, -1)
        value, at_W, at_V = problem.loss(W, V, shares)
        return value, np.concatenate([at_W.ravel() / root, at_V.ravel()])

    found = descend(loss, start, penalty, iterations)
    return found[:cut].reshape(first.shape) / root, found[cut:].reshape(heads, d + 1, -1)
