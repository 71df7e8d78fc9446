r"""Attention pooling whose weights are penalised: several heads, several classes, weighted bags.

.. math:: f_i=\sum_hV_h^\top X_i^\top\mathrm{softmax}(X_iW_hz_i),\qquad
          \min\ \sum_ic_i\,\ell(f_i,y_i)+\tfrac\lambda2\|V\|^2+\tfrac{\lambda\rho}2\|W\|^2,

with the logistic loss, or the cross-entropy of three classes and more. At :math:`W=0` this is mean
pooling, which is convex, is solved with a certificate, and is where training starts; ``rho`` is
infinite where attention does not pay.

Where one instance has to decide, the loss of a bag is the expected one of an instance drawn with
attention, each of which answers alone,

.. math:: \sum_ta_{it}\,\ell(v^\top x_{it},y_i),\qquad a_i=\mathrm{softmax}(X_iWz_i).

It is at least that of the mean answer, and least where all attention is on the instances that
answer best: attention that may grow selects.

Candidates are columns: bags left out are shares :math:`c_i` of zero, and a product of a block of
rows with the weights of all candidates serves them all. The weights of ``C`` candidates with ``H``
heads and ``K`` values of a bag are ``W`` ``(H, d, d_z, C)`` and ``V`` ``(H, d + 1, K, C)``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from attsvm.datasets.attention_data import FloatArray, IntArray
from attsvm.datasets.bags import Bags
from attsvm.datasets.rows import Block, RowReader
from attsvm.sklearn import segments
from attsvm.sklearn.choosing import CONSTANT
from attsvm.sklearn.lockstep import DescentOptions, descend_columns
from attsvm.sklearn.minimise import ConvexStep, certified, cross_entropy
from attsvm.sklearn.moments import bag_means

_RANDOM_SIZE = 0.1  # of the first attention weights of further heads


@dataclass(frozen=True, eq=False)
class Pooled:
    """Bags with classes and queries, whose instances stay where they are.

    Attributes:
        bags: where their instances are.
        unit: of the instances: weights are of rows divided by it.
        queries: ``(n, d_z)``, in units.
        labels: ``(n,)``: 0 and 1 of two classes, or 0 to K - 1.
        columns: K, values of a bag: one for two classes.
        dtype: of products; sums over blocks are in float64.
        log_counts: ``(N,)``: the logarithm of how many rows each row stands for; None where it is
            one.
        drawn: whether one instance has to decide: the loss of a bag is the expected one of an
            instance drawn with attention, of one head, and its value that of the instance with the
            most attention.
    """

    bags: Bags
    unit: float
    queries: FloatArray
    labels: IntArray
    columns: int
    dtype: type = np.float32
    log_counts: FloatArray | None = None
    drawn: bool = False

    def blocks(self, dtype: type) -> Iterator[Block]:
        """The bags with instances of this type, a few at a time."""
        return RowReader(self.bags.rows, self.bags.offsets, dtype).blocks()

    def rows_of(self, block: Block, by_row: FloatArray) -> FloatArray:
        """``(R,)`` of ``(N,)``: what belongs to the rows of a block."""
        begin = int(self.bags.offsets[block.bags[0]])
        return by_row[begin : begin + len(block.rows)]

    def means(self) -> FloatArray:
        """``(n, d + 1)``: means of the instances in units, with the constant feature at the end."""
        constant = np.full((self.bags.n, 1), CONSTANT)
        return np.hstack([bag_means(self.bags) / self.unit, constant])

    def values(self, W: FloatArray, V: FloatArray) -> FloatArray:
        """``(n, K, C)``: the values of bags."""
        values = np.empty((self.bags.n, self.columns, V.shape[-1]))
        attended = _Attended(self, W, V)
        for block in self.blocks(self.dtype):
            attention, scores, outputs = attended.read(block)
            if self.drawn:
                of_one = attention[:, 0]  # of the rows that a row stands for
                if self.log_counts is not None:
                    of_one = of_one * np.exp(-self.rows_of(block, self.log_counts))[:, None]
                largest = segments.hardmax(of_one, block.cuts)
                outputs = segments.sums(largest[:, None, None] * scores, block.cuts)
            values[block.bags] = outputs.sum(axis=1, dtype=np.float64)
        return values

    def bag_losses(self, W: FloatArray, V: FloatArray) -> FloatArray:
        """``(n, C)``: the losses of bags."""
        if not self.drawn:
            return losses(self.values(W, V), self.labels)[0]
        bag_losses = np.empty((self.bags.n, V.shape[-1]))
        attended = _Attended(self, W, V)
        for block in self.blocks(self.dtype):
            bag_losses[block.bags] = self._drawn_losses(block, attended.read(block))[0]
        return bag_losses

    def loss(
        self, W: FloatArray, V: FloatArray, shares: FloatArray
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """``(C,)`` losses without penalty for ``(n, C)`` shares, and both gradients.

        For each block: 1. attention, scores and outputs of the heads; 2. losses of the bags, their
        slopes in the scores of instances and in the logits; 3. the gradient of ``V``; 4. that of
        ``W``.
        """
        total, at_V = np.zeros(V.shape[-1]), np.zeros_like(V)
        attended = _Attended(self, W, V)
        slopes = self._drawn_slopes if self.drawn else self._mean_slopes
        for block in self.blocks(self.dtype):
            # 1. attention
            reading = attended.read(block)
            # 2. losses
            bag_losses, at_scores, at_constant, at_logits = slopes(
                block, shares[block.bags], reading
            )
            total += np.einsum("nc,nc->c", shares[block.bags], bag_losses)
            # 3. the heads
            at_V[:, :-1] += attended.moments(block, at_scores)
            at_V[:, -1] += CONSTANT * at_constant
            # 4. attention
            attended.add_gradient(block, at_logits)
        return total, attended.gradient(), at_V

    def _mean_slopes(
        self, block: Block, shares: FloatArray, reading: _BlockReading
    ) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
        """Losses ``(b, C)`` of the values of bags, and their slopes times ``(b, C)`` shares: in
        scores ``(R, H, K, C)``, attention times the slope in the value; their sum ``(K, C)``; and
        in logits ``(R, H, C)``, that times what a score has above the output. The scores that were
        read are overwritten.
        """
        attention, scores, outputs = reading
        lengths = np.diff(block.cuts)
        values = outputs.sum(axis=1, dtype=np.float64)
        bag_losses, slope = losses(values, self.labels[block.bags])
        slope *= shares[:, None]
        at_scores = attention[:, :, None] * np.repeat(
            slope.astype(self.dtype)[:, None], lengths, axis=0
        )
        scores -= np.repeat(outputs, lengths, axis=0)
        scores *= at_scores
        return bag_losses, at_scores, slope.sum(axis=0), scores.sum(axis=2)

    def _drawn_slopes(
        self, block: Block, shares: FloatArray, reading: _BlockReading
    ) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
        """The same of an instance drawn with attention: attention times the slope of the loss of
        each instance, and attention times what that loss is above its mean.
        """
        lengths = np.diff(block.cuts)
        bag_losses, row_losses, slope = self._drawn_losses(block, reading)
        weights = reading.attention[:, 0] * np.repeat(shares.astype(self.dtype), lengths, axis=0)
        above = row_losses - np.repeat(bag_losses, lengths, axis=0)
        # products with rows of single precision are slow, unless both are of it
        at_scores: FloatArray = (weights[:, None] * slope).astype(self.dtype)
        at_constant = at_scores.sum(axis=0, dtype=np.float64)
        at_logits: FloatArray = (weights * above).astype(self.dtype)
        return bag_losses, at_scores[:, None], at_constant, at_logits[:, None]

    def _drawn_losses(
        self, block: Block, reading: _BlockReading
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Expected losses ``(b, C)`` of an instance drawn with attention, losses ``(R, C)`` of the
        instances, and their slopes ``(R, K, C)``.
        """
        labels = np.repeat(self.labels[block.bags], np.diff(block.cuts))
        row_losses, slope = losses(reading.scores[:, 0], labels)
        bag_losses = segments.sums(reading.attention[:, 0] * row_losses, block.cuts)
        return bag_losses, row_losses, slope


class _BlockReading(NamedTuple):
    """What candidates see in a block of ``R`` rows of ``b`` bags.

    Attributes:
        attention: ``(R, H, C)``.
        scores: ``(R, H, K, C)``, what the heads say of each row.
        outputs: ``(b, H, K, C)``, their means with attention.
    """

    attention: FloatArray
    scores: FloatArray
    outputs: FloatArray


class _Attended:
    """What many candidates see in blocks of a table, and their gradients of attention.

    Args:
        problem: the bags.
        W, V: weights.
    """

    def __init__(self, problem: Pooled, W: FloatArray, V: FloatArray) -> None:
        self.problem, self.shape, dtype = problem, W.shape, problem.dtype
        heads, d, d_z, count = W.shape
        queries = problem.queries
        self.same = bool((queries == queries[0]).all())
        keys = W.transpose(2, 1, 0, 3).reshape(d_z, -1) / problem.unit  # (d_z, d * H * C)
        if self.same:
            keys = queries[0] @ keys
        self.keys: FloatArray = keys.astype(dtype)
        factor = V[:, :-1].transpose(1, 0, 2, 3).reshape(d, -1) / problem.unit
        self.factor: FloatArray = factor.astype(dtype)
        self.constant: FloatArray = (CONSTANT * V[:, -1]).astype(dtype)
        self.total = np.zeros((d if self.same else d_z, self.keys.size // self.keys.shape[0]))
        if self.same:
            self.total = np.zeros((d, heads * count))

    def read(self, block: Block) -> _BlockReading:
        """Attention, scores and outputs."""
        heads, d, _, count = self.shape
        rows, cuts = block.rows, block.cuts
        if self.same:
            logits = segments.columns(rows, self.keys.reshape(d, -1))
        else:
            keys = self._queries(block) @ self.keys
            logits = segments.bag_products(rows, keys.reshape(len(keys), d, -1), cuts)
        if self.problem.log_counts is not None:
            log_counts = self.problem.rows_of(block, self.problem.log_counts)[:, None]
            logits += log_counts.astype(logits.dtype)
        attention = segments.softmax(logits, cuts)[0].reshape(-1, heads, count)
        scores = segments.columns(rows, self.factor).reshape(-1, *self.constant.shape)
        scores += self.constant
        outputs = segments.sums(attention[:, :, None] * scores, cuts)
        return _BlockReading(attention, scores, outputs)

    def moments(self, block: Block, pulled: FloatArray) -> FloatArray:
        """``(H, d, K, C)``: the sum of the rows in units, each as often as ``(R, H, K, C)`` say."""
        moments = segments.columns(block.rows.T, pulled.reshape(len(pulled), -1))
        return moments.reshape(-1, *pulled.shape[1:]).swapaxes(0, 1) / self.problem.unit

    def add_gradient(self, block: Block, pulled: FloatArray) -> None:
        """Add the gradient of a block, by ``(R, H, C)`` slopes of its logits."""
        flat = pulled.reshape(len(pulled), -1)
        if self.same:
            self.total += segments.columns(block.rows.T, flat)
        else:
            moments = segments.bag_moments(block.rows, flat, block.cuts)
            self.total += self._queries(block).T @ moments.reshape(len(moments), -1)

    def gradient(self) -> FloatArray:
        """``(H, d, d_z, C)``: of all blocks."""
        heads, d, d_z, count = self.shape
        total = self.total / self.problem.unit
        if self.same:
            total = np.multiply.outer(self.problem.queries[0], total)
        return np.ascontiguousarray(total.reshape(d_z, d, heads, count).transpose(2, 1, 0, 3))

    def _queries(self, block: Block) -> FloatArray:
        return np.asarray(self.problem.queries[block.bags], self.problem.dtype)


def losses(values: FloatArray, labels: IntArray) -> tuple[FloatArray, FloatArray]:
    """``(n, C)`` losses of ``(n, K, C)`` values, and their slopes: logistic for one value, else the
    cross-entropy.
    """
    if values.shape[1] > 1:
        return cross_entropy(values, labels)
    sign = np.where(labels > 0, 1.0, -1.0)[:, None, None]
    margins = sign * values
    small = np.exp(-np.abs(margins))  # one exponential for both, which never overflows
    bag_losses = np.log1p(small) - np.minimum(margins, 0.0)
    return bag_losses[:, 0], -sign * np.where(margins > 0.0, small, 1.0) / (1.0 + small)


def mean_heads(
    problem: Pooled, means: FloatArray, shares: FloatArray, penalty: FloatArray
) -> FloatArray:
    """The heads ``(k, K, C)`` of mean pooling on ``(n, k)`` means, for ``(n, C)`` shares."""
    # in units of the root of its curvature every coordinate needs steps of about one length
    root = np.sqrt(_CURVATURE * (means**2).T @ shares + penalty)[:, None]

    def loss(points: FloatArray, columns: IntArray) -> tuple[FloatArray, FloatArray]:
        unit, weight = root[..., columns], penalty[columns]
        V = points.reshape(len(unit), -1, len(columns)) / unit
        values = (means @ V.reshape(len(V), -1)).reshape(len(means), *V.shape[1:])
        bag_losses, slope = losses(values, problem.labels)
        chosen = shares[:, columns]
        slope *= chosen[:, None]
        gradient = (means.T @ slope.reshape(len(slope), -1)).reshape(V.shape) + weight * V
        total = np.einsum("nc,nc->c", chosen, bag_losses)
        total += 0.5 * weight * np.einsum("dkc,dkc->c", V, V)
        return total, (gradient / unit).reshape(points.shape)

    start = np.zeros((means.shape[1] * problem.columns, len(penalty)))
    points = descend_columns(loss, start, _HEADS)[0]
    return points.reshape(len(root), -1, len(penalty)) / root


def certified_head(
    problem: Pooled, means: FloatArray, shares: FloatArray, penalty: float
) -> tuple[FloatArray, ConvexStep]:
    """The head ``(k, K)`` of mean pooling on ``(n, k)`` means for ``(n,)`` shares, certified."""

    def loss(V: FloatArray) -> tuple[float, FloatArray]:
        bag_losses, slope = losses((means @ V)[..., None], problem.labels)
        return float(shares @ bag_losses[:, 0]), means.T @ (shares[:, None] * slope[..., 0])

    return certified(loss, np.zeros((means.shape[1], problem.columns)), penalty)


def attention_start(
    head: FloatArray, shape: tuple[int, int, int], seed: int
) -> tuple[FloatArray, FloatArray]:
    """Weights ``W`` of ``shape`` ``(H, d, d_z)`` and ``V`` for all candidates, from the heads
    ``(d + 1, K, C)`` of mean pooling. Several heads of attention begin with random weights, for
    they must differ.
    """
    first: FloatArray = np.zeros((*shape, head.shape[-1]))
    if shape[0] > 1:
        first += _RANDOM_SIZE * np.random.default_rng([seed, 3]).normal(size=(*shape, 1))
    return first, np.tile(head / shape[0], (shape[0], 1, 1, 1))


def attention_heads(
    problem: Pooled,
    shares: FloatArray,
    penalty: FloatArray,
    ratio: FloatArray,
    W: FloatArray,
    V: FloatArray,
    options: DescentOptions,
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Weights of attention and heads of all candidates, and their ``(C,)`` objectives.

    Args:
        problem: the bags.
        shares: ``(n, C)`` of the bags in the loss.
        penalty: ``(C,)``.
        ratio: ``(C,)`` of the penalty on attention to it.
        W: where attention starts.
        V: where heads start.
        options: of the descent.
    """
    root = np.sqrt(ratio)  # points are root * W and V, so that one penalty is on both
    cut, size = W[..., 0].size, V[..., 0].size

    def parted(points: FloatArray, columns: IntArray) -> tuple[FloatArray, FloatArray]:
        of_W = (points[:cut] / root[columns]).reshape(*W.shape[:-1], -1)
        return of_W, points[cut:].reshape(*V.shape[:-1], -1)

    def loss(points: FloatArray, columns: IntArray) -> tuple[FloatArray, FloatArray]:
        total, at_W, at_V = problem.loss(*parted(points, columns), shares[:, columns])
        flat = at_W.reshape(cut, -1) / root[columns], at_V.reshape(size, -1)
        total += 0.5 * penalty[columns] * np.einsum("dc,dc->c", points, points)
        return total, np.concatenate(flat) + penalty[columns] * points

    start = np.concatenate([root * W.reshape(cut, -1), V.reshape(size, -1)])
    points, values, _ = descend_columns(loss, start, options)
    return *parted(points, np.arange(len(penalty))), values


def objectives(
    problem: Pooled,
    shares: FloatArray,
    penalty: float,
    ratio: float,
    W: FloatArray,
    V: FloatArray,
) -> FloatArray:
    """``(C,)``: loss and penalty of candidates for ``(n, C)`` shares."""
    bag_losses = problem.bag_losses(W, V)
    squares = np.sum(V * V, axis=(0, 1, 2)) + ratio * np.sum(W * W, axis=(0, 1, 2))
    total: FloatArray = np.einsum("nc,nc->c", shares, bag_losses) + 0.5 * penalty * squares
    return total


_HEADS = DescentOptions(iterations=1000, tolerance=1e-8, memory=8)
_CURVATURE = 0.01  # of the loss in the value of a bag near the optimum; 1/4 is that of an open one
