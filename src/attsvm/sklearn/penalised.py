r"""Attention pooling whose weights are penalised: several heads, several classes, weighted bags.

.. math:: f_i=\sum_hV_h^\top X_i^\top\mathrm{softmax}(X_iW_hz_i),\qquad
          \min\ \sum_ic_i\,\ell(f_i,y_i)+\tfrac\lambda2\|V\|^2+\tfrac{\lambda\rho}2\|W\|^2,

with the logistic loss, or the cross-entropy of three classes and more. At :math:`W=0` this is mean
pooling, which is convex, is solved with a certificate, and is where training starts; ``rho`` is
infinite where attention does not pay.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from attsvm.datasets.attention_data import FloatArray, IntArray
from attsvm.datasets.bags import Bags
from attsvm.datasets.rows import Block, RowReader
from attsvm.sklearn import segments
from attsvm.sklearn.choosing import CONSTANT
from attsvm.sklearn.minimise import ConvexStep, certified, cross_entropy, descend

_RANDOM_SIZE = 0.1  # of the first attention weights of further heads
_PRECISION = 1e-2  # a loss that falls by a millionth tells nothing of bags left out


@dataclass(frozen=True, eq=False)
class Pooled:
    """Bags with classes and queries, whose instances stay where they are.

    Attributes:
        bags: where their instances are.
        unit: of the instances: weights are of rows divided by it.
        queries: ``(n, d_z)``, in units.
        labels: ``(n,)``: 0 and 1 of two classes, or 0 to K - 1.
        columns: values of a bag: one for two classes, else K.
        dtype: of products; sums over blocks are in float64.
    """

    bags: Bags
    unit: float
    queries: FloatArray
    labels: IntArray
    columns: int
    dtype: type = np.float64

    def take(self, positions: IntArray) -> Pooled:
        """The bags at these positions."""
        if len(positions) == self.bags.n:
            return self
        return replace(
            self,
            bags=self.bags.take(positions),
            queries=self.queries[positions],
            labels=self.labels[positions],
        )

    def blocks(self, dtype: type) -> Iterator[Block]:
        """The bags with instances of this type, a few at a time."""
        return RowReader(self.bags.rows, self.bags.offsets, dtype).blocks()

    def means(self) -> FloatArray:
        """``(n, d + 1)``: means of the instances in units, with the constant feature at the end."""
        means = np.full((self.bags.n, self.bags.d + 1), CONSTANT)
        for block in self.blocks(np.float64):
            lengths = np.diff(block.cuts)[:, None] * self.unit
            means[block.bags, :-1] = segments.sums(block.rows, block.cuts) / lengths
        return means

    def values(self, W: FloatArray, V: FloatArray) -> FloatArray:
        """``(n, columns)`` for ``(heads, d, d_z)`` and ``(heads, d + 1, columns)`` weights."""
        total = np.zeros((self.bags.n, self.columns))
        for block in self.blocks(self.dtype):
            for w, v in zip(W, V, strict=True):
                p, scores = self._attended(block, w, v)
                total[block.bags] += segments.sums(p[:, None] * scores, block.cuts)
        return total

    def loss(
        self, W: FloatArray, V: FloatArray, shares: FloatArray
    ) -> tuple[float, FloatArray, FloatArray]:
        """The loss of the weights (see :meth:`values`) without penalty, and both gradients."""
        total, at_W, at_V = 0.0, np.zeros_like(W), np.zeros_like(V)
        for block in self.blocks(self.dtype):
            bags, cuts, lengths = block.bags, block.cuts, np.diff(block.cuts)
            heads = [self._attended(block, w, v) for w, v in zip(W, V, strict=True)]
            outputs = [segments.sums(p[:, None] * scores, cuts) for p, scores in heads]
            values = np.asarray(np.sum(outputs, axis=0, dtype=np.float64))
            bag_losses, slope = losses(values, self.labels[bags])
            slope *= shares[bags, None]
            total += float(shares[bags] @ bag_losses)
            slopes: FloatArray = np.repeat(slope.astype(self.dtype), lengths, axis=0)
            for h, ((p, scores), output) in enumerate(zip(heads, outputs, strict=True)):
                at_V[h, :-1] += segments.columns(block.rows.T, p[:, None] * slopes) / self.unit
                at_V[h, -1] += CONSTANT * slope.sum(axis=0)
                scores -= np.repeat(output, lengths, axis=0)
                pulled = p * np.einsum("nc,nc->n", scores, slopes)
                queries: FloatArray = self.queries[bags].astype(self.dtype)
                at_W[h] += segments.outer_sum(pulled, block.rows, queries, cuts) / self.unit
        return total, at_W, at_V

    def _attended(
        self, block: Block, w: FloatArray, v: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """Attention ``(R,)`` and scores ``(R, columns)`` of one head."""
        moved: FloatArray = (self.queries[block.bags] @ w.T / self.unit).astype(self.dtype)
        logits = segments.products(block.rows, moved, block.cuts)
        scores = segments.columns(block.rows, (v[:-1] / self.unit).astype(self.dtype))
        scores += (CONSTANT * v[-1]).astype(self.dtype)
        return segments.softmax(logits, block.cuts)[0], scores


def losses(values: FloatArray, labels: IntArray) -> tuple[FloatArray, FloatArray]:
    """``(n,)`` losses of ``(n, columns)`` values, and their slopes: logistic for one column, else
    the cross-entropy.
    """
    if values.shape[1] > 1:
        return cross_entropy(values, labels)
    sign = np.where(labels > 0, 1.0, -1.0)[:, None]
    bag_losses = np.logaddexp(0.0, -sign * values)
    return bag_losses[:, 0], -sign * np.exp(-np.logaddexp(0.0, sign * values))


def mean_head(
    problem: Pooled, means: FloatArray, shares: FloatArray, penalty: float, start: FloatArray | None
) -> tuple[FloatArray, ConvexStep]:
    """The head ``(k, columns)`` of mean pooling on ``(n, k)`` means, certified."""

    def loss(V: FloatArray) -> tuple[float, FloatArray]:
        bag_losses, slope = losses(means @ V, problem.labels)
        return float(shares @ bag_losses), means.T @ (shares[:, None] * slope)

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
    d, d_z = problem.bags.d, problem.queries.shape[1]
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

    flat = descend(loss, start, penalty, iterations, _PRECISION)
    return flat[:cut].reshape(first.shape) / root, flat[cut:].reshape(heads, d + 1, -1)
