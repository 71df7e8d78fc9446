"""What a fitted model does with bags: values, attention, contributions and the value of an instance
alone, in the units of the data.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy.special import softmax

from attsvm.datasets.attention_data import FloatArray, IntArray
from attsvm.datasets.rows import matmul
from attsvm.sklearn import segments


@dataclass(frozen=True, eq=False)
class Reading:
    """What a model sees in bags: ``N`` instances of ``n`` of them. ``C`` is one for two classes
    (positive values mean the second), else the number of classes.

    Attributes:
        values: ``(n, C)``.
        attention: ``(N, heads)``: sums to one in each bag.
        contributions: ``(N, C)``: sum to ``values`` in each bag.
        selected: ``(n, C)``: the instance that speaks most for each class (of two classes: for the
            one predicted).
    """

    values: FloatArray
    attention: FloatArray
    contributions: FloatArray
    selected: IntArray


@dataclass(frozen=True, eq=False)
class PooledLayer:
    r"""Attention pooling: :math:`f=\sum_hV_h^\top X^\top\mathrm{softmax}(XW_hz)+b`.

    Attributes:
        W: ``(heads, d, d_z)``.
        V: ``(heads, d, C)``.
        intercept: ``(C,)``.
        hard: whether each head looks at the instance with the largest logit alone.
    """

    W: FloatArray
    V: FloatArray
    intercept: FloatArray
    hard: bool = False

    def read(self, rows: FloatArray, offsets: IntArray, queries: FloatArray) -> Reading:
        """Everything about bags: ``rows`` ``(N, d)``, ``offsets`` ``(n + 1,)``, ``queries``
        ``(n, d_z)``.
        """
        logits = np.column_stack([segments.products(rows, queries @ W.T, offsets) for W in self.W])
        attention = _attention(logits, offsets, self.hard)
        scores = np.stack([matmul(rows, V) for V in self.V], axis=1)
        contributions = np.einsum("nh,nhc->nc", attention, scores)
        contributions += attention.mean(axis=1, keepdims=True) * self.intercept
        values = segments.sums(contributions, offsets)
        toward = contributions
        if values.shape[1] == 1:
            toward = contributions * np.repeat(np.where(values > 0, 1.0, -1.0), np.diff(offsets), 0)
        if self.hard:  # of one head: the selected instance, whatever its value
            toward = np.where(attention.max(axis=1, keepdims=True) > 0, toward, -np.inf)
        return Reading(values, attention, contributions, _largest(toward, offsets))

    def counted_from(self, threshold: float) -> PooledLayer:
        """The layer whose values are those of this one less a threshold."""
        return replace(self, intercept=self.intercept - threshold)

    def alone(self, rows: FloatArray) -> FloatArray:
        """``(N, C)``: the value of a bag that holds this instance only."""
        return matmul(rows, self.V.sum(axis=0)) + self.intercept


@dataclass(frozen=True, eq=False)
class WitnessLayer:
    """The standard assumption; see :mod:`attsvm.sklearn.witness`.

    Attributes:
        w: ``(columns, d)``: of the heads of two classes, or of the classes.
        intercept: ``(columns,)``.
        null: whether there are two classes.
        hard: whether the value of a bag is that of its best instance alone.
        threshold: what the values of two classes are counted from.
    """

    w: FloatArray
    intercept: FloatArray
    null: bool
    hard: bool
    threshold: float = 0.0

    def read(self, rows: FloatArray, offsets: IntArray, queries: FloatArray) -> Reading:
        """See :class:`PooledLayer`."""
        scores = matmul(rows, self.w.T) + self.intercept
        attention = _attention(scores, offsets, self.hard)
        reduced = segments.largest if self.hard else segments.log_sums
        values = self.joined(reduced(scores, offsets))
        shares = attention.mean(axis=1, keepdims=True) if self.null else attention
        contributions = self._contributions(scores, offsets, values)
        return Reading(values, attention, contributions, _largest(shares, offsets))

    def _contributions(
        self, scores: FloatArray, offsets: IntArray, values: FloatArray
    ) -> FloatArray:
        """``(N, C)``: what the value of a bag falls by without each instance, and an equal share of
        what these falls leave of the value. A likelier witness has the larger fall.
        """
        lengths = np.diff(offsets)
        reduced = segments.largest_others if self.hard else segments.log_sums_of_others
        before = np.repeat(values, lengths, axis=0)
        falls = before - self.joined(reduced(scores, offsets))
        falls[np.repeat(lengths == 1, lengths)] = 0.0  # a bag of nothing has no value
        rest = (values - segments.sums(falls, offsets)) / lengths[:, None]
        return falls + np.repeat(rest, lengths, axis=0)

    def shares(self, rows: FloatArray, offsets: IntArray) -> FloatArray:
        r"""``(N, columns)``: the probability that each instance is the witness, of a head or of a
        class, :math:`e^{g_t}/(1+\sum_\tau e^{g_\tau})` with the null token.
        """
        scores = matmul(rows, self.w.T) + self.intercept
        if self.null and len(self.w) == 1:
            scores -= self.threshold
        attention, sums = segments.softmax(scores, offsets)
        chances = np.exp(-np.logaddexp(0.0, -sums)) if self.null else softmax(sums, axis=1)
        return np.asarray(attention * np.repeat(chances, np.diff(offsets), axis=0))

    def joined(self, columns: FloatArray) -> FloatArray:
        """The value of a bag from those of its heads: the logarithm of the odds that all are found;
        the least of them when hard.
        """
        if not self.null:
            return columns
        if columns.shape[1] == 1:
            return columns - self.threshold
        if self.hard:
            return np.asarray(columns.min(axis=1, keepdims=True) - self.threshold)
        log_found = -np.logaddexp(0.0, -columns).sum(axis=1, keepdims=True)
        missed = np.log(-np.expm1(np.minimum(log_found, -1e-300)))
        return np.asarray(log_found - missed - self.threshold)

    def counted_from(self, threshold: float) -> WitnessLayer:
        """See :class:`PooledLayer`."""
        return replace(self, threshold=self.threshold + threshold)

    def alone(self, rows: FloatArray) -> FloatArray:
        """See :class:`PooledLayer`."""
        return self.joined(matmul(rows, self.w.T) + self.intercept)


Layer = PooledLayer | WitnessLayer
"""A model of bags."""


def _attention(logits: FloatArray, offsets: IntArray, hard: bool) -> FloatArray:
    return segments.hardmax(logits, offsets) if hard else segments.softmax(logits, offsets)[0]


def _largest(values: FloatArray, offsets: IntArray) -> IntArray:
    """``(n, columns)``: where in its bag the largest value of each column is."""
    return np.column_stack(
        [segments.first_largest(np.ascontiguousarray(column), offsets) for column in values.T]
    )
