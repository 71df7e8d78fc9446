r"""Attention pooling whose weights are penalised: several heads, several classes, weighted bags.

.. math:: f_i=\sum_hV_h^\top X_i^\top\mathrm{softmax}(X_iW_hz_i),\qquad
          \min\ \sum_ic_i\,\ell(f_i,y_i)+\tfrac\lambda2\|V\|^2+\tfrac{\lambda\rho}2\|W\|^2,

with the logistic loss, or the cross-entropy of three classes and more. At :math:`W=0` this is mean
pooling, which is convex, is solved with a certificate, and is where training starts; ``rho`` is
infinite where attention does not pay.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from attsvm.datasets.attention_data import FloatArray, IntArray
from attsvm.sklearn import segments
from attsvm.sklearn.minimise import ConvexStep, certified, cross_entropy, descend

_RANDOM_SIZE = 0.1  # of the first attention weights of further heads
_PRECISION = 1e-2  # a loss that falls by a millionth tells nothing of bags left out


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

    def take(self, kept: IntArray) -> Pooled:
        """The bags at these positions."""
        lengths = np.diff(self.offsets)[kept]
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        at = np.arange(offsets[-1]) + np.repeat(self.offsets[kept] - offsets[:-1], lengths)
        return replace(
            self,
            rows=self.rows[at],
            offsets=offsets,
            queries=self.queries[kept],
            labels=self.labels[kept],
        )

    def means(self) -> FloatArray:
        """``(n, d + 1)``."""
        return segments.sums(self.rows, self.offsets) / np.diff(self.offsets)[:, None]

    def values(self, W: FloatArray, V: FloatArray) -> FloatArray:
        """``(n, columns)`` for ``(heads, d, d_z)`` and ``(heads, d + 1, columns)`` weights."""
        total = np.zeros((len(self.labels), self.columns))
        for w, v in zip(W, V, strict=True):
            p, scores = self._read(w, v)
            total += segments.sums(p[:, None] * scores, self.offsets)
        return total

    def loss(
        self, W: FloatArray, V: FloatArray, shares: FloatArray
    ) -> tuple[float, FloatArray, FloatArray]:
        """The loss of the weights (see :meth:`values`) without penalty, and both gradients."""
        lengths = np.diff(self.offsets)
        kept = []
        for w, v in zip(W, V, strict=True):
            p, scores = self._read(w, v)
            kept.append((p, scores, segments.sums(p[:, None] * scores, self.offsets)))
        values = np.sum([own for _, _, own in kept], axis=0)
        found, slope = losses(values, self.labels)
        slope *= shares[:, None]
        each = np.repeat(slope, lengths, axis=0)
        at_W, at_V = np.empty_like(W), np.empty_like(V)
        for h, (p, scores, own) in enumerate(kept):
            at_V[h] = segments.columns(self.rows.T, p[:, None] * each)
            scores -= np.repeat(own, lengths, axis=0)
            pulled = p * np.einsum("nc,nc->n", scores, each)
            at_W[h] = segments.outer_sum(pulled, self.rows, self.queries, self.offsets)[:-1]
        return float(shares @ found), at_W, at_V

    def _read(self, w: FloatArray, v: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Attention ``(N,)`` and scores ``(N, columns)`` of one head."""
        moved = np.zeros((len(self.queries), len(w) + 1))
        moved[:, :-1] = self.queries @ w.T
        logits = segments.products(self.rows, moved, self.offsets)
        return segments.softmax(logits, self.offsets)[0], segments.columns(self.rows, v)


def losses(values: FloatArray, labels: IntArray) -> tuple[FloatArray, FloatArray]:
    """``(n,)`` losses of ``(n, columns)`` values, and their slopes: logistic for one column, else
    the cross-entropy.
    """
    if values.shape[1] > 1:
        return cross_entropy(values, labels)
    sign = np.where(labels > 0, 1.0, -1.0)[:, None]
    found = np.logaddexp(0.0, -sign * values)
    return found[:, 0], -sign * np.exp(-np.logaddexp(0.0, sign * values))


def mean_head(
    problem: Pooled, means: FloatArray, shares: FloatArray, penalty: float, start: FloatArray | None
) -> tuple[FloatArray, ConvexStep]:
    """The head ``(k, columns)`` of mean pooling on ``(n, k)`` means, certified."""

    def loss(V: FloatArray) -> tuple[float, FloatArray]:
        found, slope = losses(means @ V, problem.labels)
        return float(shares @ found), means.T @ (shares[:, None] * slope)

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

    found = descend(loss, start, penalty, iterations, _PRECISION)
    return found[:cut].reshape(first.shape) / root, found[cut:].reshape(heads, d + 1, -1)
