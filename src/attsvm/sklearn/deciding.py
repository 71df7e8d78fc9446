"""The smallest set of instances without which a model of one head calls a bag otherwise."""

from __future__ import annotations

import numpy as np

from attsvm.datasets.attention_data import FloatArray, IntArray
from attsvm.datasets.bags import Bags
from attsvm.datasets.rows import matmul
from attsvm.sklearn import segments
from attsvm.sklearn.layers import Layer, WitnessLayer


def deciding_sets(layer: Layer, bags: Bags, queries: FloatArray) -> list[IntArray]:
    r"""For each bag the rows of its deciding set, counted in the bag, the weightiest first.

    The value of what is left of a bag has the sign of a sum over it: of :math:`e^{g_t-\theta}` less
    one for witnesses, of :math:`e^{a_t}(v^\top x_t+b)` for attention. So the set that turns it is a
    prefix of the instances by falling terms. Queries stay as they are.

    Args:
        layer: of two classes and one head.
        bags: what it predicts.
        queries: ``(n, d_z)``.
    """
    rows, offsets = bags.rows, bags.offsets
    if isinstance(layer, WitnessLayer):
        scores = matmul(rows, layer.w[0]) + layer.intercept[0]
        by_bag = np.split(scores, offsets[1:-1])
        return [_witnesses(bag, layer.threshold, layer.hard) for bag in by_bag]
    logits = segments.products(rows, queries @ layer.W[0].T, offsets)
    values = matmul(rows, layer.V[0, :, 0]) + layer.intercept[0]
    pairs = zip(np.split(logits, offsets[1:-1]), np.split(values, offsets[1:-1]), strict=True)
    return [_most_attended(*pair) if layer.hard else _largest_terms(*pair) for pair in pairs]


def _witnesses(scores: FloatArray, threshold: float, hard: bool) -> IntArray:
    """The likeliest witnesses that have to go until the bag is negative."""
    order = np.argsort(scores, kind="stable")
    rising = scores[order]
    left = rising if hard else np.logaddexp.accumulate(rising)
    return order[np.count_nonzero(left <= threshold) :][::-1]


def _largest_terms(logits: FloatArray, values: FloatArray) -> IntArray:
    """The largest terms towards the sign of the sum that have to go until it is another one."""
    terms = np.exp(logits - logits.max()) * values
    positive = terms.sum() > 0
    order = np.argsort(terms if positive else -terms, kind="stable")
    left = np.cumsum(terms[order])
    changed = np.flatnonzero(left <= 0 if positive else left > 0)
    return order[(changed[-1] + 1 if len(changed) else 0) :][::-1]


def _most_attended(logits: FloatArray, values: FloatArray) -> IntArray:
    """The instances of most attention ahead of the first whose value has another sign."""
    order = np.argsort(-logits, kind="stable")
    changed = np.flatnonzero((values[order] > 0) != (values[order[0]] > 0))
    return order[: changed[0] if len(changed) else len(order)]
