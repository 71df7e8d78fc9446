r"""The standard assumption: a bag is positive because it holds a witness, and a negative bag holds
none.

Attention goes over the instances of a bag and one *null* token of logit 0. With scores
:math:`g_t=w^\top x_t+b`,

.. math:: P(\text{witness is } t)=\frac{e^{g_t}}{1+\sum_\tau e^{g_\tau}},\qquad
          P(\text{no witness})=\frac1{1+\sum_\tau e^{g_\tau}},

so a bag is positive with probability :math:`\sigma(s)`, :math:`s=\log\sum_te^{g_t}`. No weight can
make an instance speak *against* a witness elsewhere in its bag: more instances never lower the
value. As weights grow this becomes the max-margin selection of the theory: in a negative bag the
null token is ahead of every instance, in a positive one the witness is ahead of the null token and
of its rivals. A positive bag of several ``heads`` needs a witness of each,
:math:`P=\prod_h\sigma(s_h)`. With three classes or more there is no null token: each class has its
own scores, and the attention over all pairs of instance and class sums to one.

The penalised loss :math:`\sum_ic_i\,(-\log P(y_i))+\frac\lambda2\|w\|^2` is not convex, because the
witness is unknown. For a fixed selection :math:`\tau` (which instance is the witness) it is:

.. math:: \min_w\ \sum_ic_i\Big(\log\big(1+\textstyle\sum_te^{g_{it}}\big)-\sum_t\tau_{it}g_{it}
          \Big)+\tfrac\lambda2\|w\|^2 ,

and where :math:`\tau` is the softmax of the weights themselves both have the same gradient. So at a
stationary point of the loss the convex step is solved, and it certifies: the probabilities are
feasible for its dual, and by Fenchel and Young the gap between primal and dual value is exactly
:math:`\|\nabla\|^2/2\lambda`. Where pooling is hard, selection (the largest score) and convex step
alternate until the selection stands.

Values of bags are at last counted from a threshold (:func:`attsvm.sklearn.choosing.threshold`),
which is the logit of the null token then.

Arrays of many candidates are columns: scores of ``C`` candidates with ``G`` columns each (heads of
two classes, or classes) are ``(N, C * G)``, the ``G`` of a candidate next to each other.

Sources: Dietterich, Lathrop and Lozano-Perez (1997) for the assumption; Andrews, Tsochantaridis and
Hofmann (2003) for the alternation; Raff and Holt (2023) for why the form matters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from attsvm.datasets.attention_data import FloatArray, IntArray
from attsvm.datasets.bags import Bags
from attsvm.datasets.rows import Block, RowReader
from attsvm.sklearn import segments
from attsvm.sklearn.choosing import CONSTANT
from attsvm.sklearn.passes import map_shares

BagLoss = Callable[[FloatArray, IntArray], tuple[FloatArray, FloatArray]]
"""From ``(n, C, G)`` logarithms of sums over bags and their ``(n,)`` labels to ``(n, C)`` losses
and ``(n, C, G)`` slopes."""


@dataclass(frozen=True, eq=False)
class Witnesses:
    """Bags with classes, as the standard assumption reads them.

    Attributes:
        bags: where their instances are.
        labels: ``(n,)``: 0 and 1 of two classes, or 0 to K - 1.
        unit: of the instances: weights are of rows divided by it.
        columns: G, scores of an instance: heads of two classes, or classes.
        null: whether there is a null token (two classes).
    """

    bags: Bags
    labels: IntArray
    unit: float
    columns: int
    null: bool

    def blocks(self, dtype: type) -> Iterator[Block]:
        """The bags with instances of this type, a few at a time."""
        return RowReader(self.bags.rows, self.bags.offsets, dtype).blocks()

    def scores(self, rows: FloatArray, weights: FloatArray) -> FloatArray:
        """``(R, C * G)`` in the type of ``(R, d)`` rows, of weights ``(d + 1, C * G)``."""
        scores = segments.columns(rows, (weights[:-1] / self.unit).astype(rows.dtype))
        scores += (CONSTANT * weights[-1]).astype(rows.dtype)
        return scores

    def log_sums(self, weights: FloatArray, largest: bool = False) -> FloatArray:
        r"""``(n, C, G)``: :math:`\log\sum_te^{g_t}` of each bag, or its largest score, in one pass
        in single precision.
        """
        reduced = segments.largest if largest else segments.log_sums
        sums = np.empty((self.bags.n, weights.shape[1]))

        def read(blocks: Iterator[Block]) -> None:
            for block in blocks:
                sums[block.bags] = reduced(self.scores(block.rows, weights), block.cuts)

        map_shares(self.bags, np.float32, read)
        return sums.reshape(self.bags.n, -1, self.columns)

    def losses(self, sums: FloatArray, labels: IntArray) -> tuple[FloatArray, FloatArray]:
        """The loss of bags; see :data:`BagLoss`."""
        if not self.null:
            return _cross_entropy(sums, labels)
        positive = labels[:, None] > 0
        if self.columns == 1:
            sign = np.where(positive, -1.0, 1.0)
            signed = sign * sums[..., 0]
            return np.logaddexp(0.0, signed), (sign * _sigmoid(signed))[..., None]
        log_found, missed = -np.logaddexp(0.0, -sums), _sigmoid(-sums)
        all_found = log_found.sum(axis=-1)
        none = _log_one_minus_exp(all_found)
        odds = np.exp(np.minimum(all_found - none, 700.0))
        slopes = np.where(positive[..., None], -missed, odds[..., None] * missed)
        return np.where(positive, -all_found, -none), slopes

    def convex_losses(self, sums: FloatArray, labels: IntArray) -> tuple[FloatArray, FloatArray]:
        """The part of the convex step that does not know the selection; see :data:`BagLoss`."""
        if self.null:
            return np.logaddexp(0.0, sums).sum(axis=-1), _sigmoid(sums)
        total = _log_sum(sums)
        return total, np.exp(sums - total[..., None])

    def chances(self, sums: FloatArray, labels: IntArray) -> FloatArray:
        """``(n, C, G)``: how likely each column has a witness in each bag, given its label."""
        if not self.null:
            of_class = labels[:, None] == np.arange(self.columns)
            return np.broadcast_to(of_class[:, None, :].astype(np.float64), sums.shape)
        positive = labels[:, None, None] > 0
        if self.columns == 1:
            return np.where(positive, 1.0, 0.0) * np.ones_like(sums)
        # in a negative bag a head may have found its witness, although not all have
        log_found = -np.logaddexp(0.0, -sums)
        every = log_found.sum(axis=-1, keepdims=True)
        some = np.exp(log_found) * -np.expm1(every - log_found) / -np.expm1(every)
        return np.where(positive, 1.0, some)

    def selection_gain(
        self, weights: FloatArray, shares: FloatArray
    ) -> tuple[IntArray, FloatArray]:
        r"""The selection of largest scores under ``(d + 1, C * G)`` weights: the row of each bag,
        ``(n, C * G)``, and :math:`\sum_{it}c_i\tau_{it}x_{it}`, ``(d + 1, C * G)``, for ``(n, C)``
        shares.
        """
        selected = np.empty((self.bags.n, weights.shape[1]), dtype=np.int64)
        wide = np.repeat(shares, self.columns, axis=1)

        def read(blocks: Iterator[Block]) -> FloatArray:
            gain = np.zeros_like(weights)
            for block in blocks:
                scores, at = self.scores(block.rows, weights), block.bags
                sums = segments.log_sums(scores, block.cuts).reshape(len(at), -1, self.columns)
                chances = self.chances(sums, self.labels[at]).reshape(len(at), -1) * wide[at]
                for k in range(weights.shape[1]):
                    first = segments.first_largest(np.ascontiguousarray(scores[:, k]), block.cuts)
                    selected[at, k] = first
                    gain[:-1, k] += chances[:, k] @ block.rows[block.cuts[:-1] + first] / self.unit
                gain[-1] += CONSTANT * chances.sum(axis=0)
            return gain

        return selected, np.sum(map_shares(self.bags, np.float64, read), axis=0)


def _cross_entropy(sums: FloatArray, labels: IntArray) -> tuple[FloatArray, FloatArray]:
    total = _log_sum(sums)
    slopes = np.exp(sums - total[..., None])
    bag = np.arange(len(labels))
    slopes[bag, :, labels] -= 1.0
    return total - sums[bag, :, labels], slopes


def _log_sum(values: FloatArray) -> FloatArray:
    """The logarithm of the sum of exponentials over the last axis."""
    top = values.max(axis=-1)
    return np.asarray(top + np.log(np.exp(values - top[..., None]).sum(axis=-1)))


def _sigmoid(values: FloatArray) -> FloatArray:
    return np.exp(-np.logaddexp(0.0, -values))


def _log_one_minus_exp(x: FloatArray) -> FloatArray:
    r""":math:`\log(1-e^x)` for :math:`x<0`."""
    with np.errstate(divide="ignore"):
        value: FloatArray = np.where(
            x > -np.log(2.0), np.log(-np.expm1(x)), np.log1p(-np.exp(np.minimum(x, -0.1)))
        )
    return np.maximum(value, -700.0)
