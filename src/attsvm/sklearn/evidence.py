"""What speaks for predictions of bags, and whether it suffices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace

import numpy as np

from attsvm.datasets.attention_data import BoolArray, FloatArray, IntArray
from attsvm.datasets.bags import Bags
from attsvm.sklearn import segments
from attsvm.sklearn.choosing import against_rest, margin_values
from attsvm.sklearn.layers import Layer, Reading, WitnessLayer

Queries = Callable[[FloatArray, IntArray, BoolArray], FloatArray]
"""From instances and offsets of what is left of some bags, and which bags those are, to their
queries."""


@dataclass(frozen=True, eq=False)
class BagEvidence:
    """The evidence of predictions, bag by bag.

    Attributes:
        instances: for each bag the positions of the selected instances, the weightiest first.
        margin: ``(n,)``: the value of the predicted class above that of the runner-up (of two
            classes, the size of the decision value).
        sufficient: ``(n,)``: the selected instances alone give the same prediction.
        necessary: ``(n,)``: without them the prediction is another one, or nothing is left.
        agrees: ``(n,)``: soft attention and the instance with the most attention alone give the
            same prediction.
        runner_up: ``(n,)``: the best instance for the predicted class, alone, above the best
            instance for any other class.
        rejected: ``(n,)``: ``margin`` is below the threshold.

    >>> from attsvm.datasets import planted_witnesses
    >>> from attsvm.sklearn import WitnessSVC
    >>> bags = planted_witnesses("linear", n=40, instances=5, seed=0, d=3)
    >>> evidence = WitnessSVC(pooling="hard", penalty=0.01).fit(bags, bags.labels).evidence(bags)
    >>> bool(evidence.sufficient.all())  # by the form of the model
    True
    """

    instances: list[IntArray]
    margin: FloatArray
    sufficient: BoolArray
    necessary: BoolArray
    agrees: BoolArray
    runner_up: FloatArray
    rejected: BoolArray

    def __repr__(self) -> str:
        shares = ", ".join(
            f"{name} {np.mean(getattr(self, name)):.1%}"
            for name in ("sufficient", "necessary", "agrees", "rejected")
        )
        return f"BagEvidence({len(self.margin)} bags: {shares})"


def weigh(
    layer: Layer,
    bags: Bags,
    queries: Queries,
    positions: IntArray,
    instances: int,
    reject: float,
) -> BagEvidence:
    """The evidence of a model's predictions.

    Args:
        layer: the model.
        bags: what it predicts.
        queries: of bags.
        positions: ``(N,)``: the position of each instance in its bag, as the caller counts.
        instances: how many of a bag are selected.
        reject: the threshold of margins.
    """
    every = np.ones(bags.n, dtype=np.bool_)
    all_queries = queries(bags.rows, bags.offsets, every)
    reading = layer.read(bags.rows, bags.offsets, all_queries)
    column = predicted(reading.values)
    weights = ranking_weights(layer, reading, column, bags)
    weights[bags.offsets[:-1] + selected(reading)] = np.inf
    order = np.lexsort([-weights, bags.bag])
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order)) - np.repeat(bags.offsets[:-1], bags.lengths)
    alone = _predicted_of(layer, bags, queries, rank < instances)
    without = _predicted_of(layer, bags, queries, rank >= instances)
    other = replace(layer, hard=not layer.hard).read(bags.rows, bags.offsets, all_queries).values
    margin = margin_values(reading.values, column)
    best = np.maximum.reduceat(_two_columns(layer.alone(bags.rows)), bags.offsets[:-1], axis=0)
    ranked = np.split(positions[order], bags.offsets[1:-1])
    return BagEvidence(
        [bag[:instances] for bag in ranked],
        margin,
        alone == column,
        without != column,
        predicted(other) == column,
        against_rest(best, column),
        margin < reject,
    )


def joined_evidence(pieces: list[BagEvidence]) -> BagEvidence:
    """The evidence of bags from that of some at a time."""
    arrays = {
        field.name: np.concatenate([getattr(piece, field.name) for piece in pieces])
        for field in fields(BagEvidence)
        if field.name != "instances"
    }
    return BagEvidence([bag for piece in pieces for bag in piece.instances], **arrays)


def predicted(values: FloatArray) -> IntArray:
    """``(n,)``: the column of the class that values predict."""
    if values.shape[1] == 1:
        return np.asarray(values[:, 0] > 0, dtype=np.int64)
    return np.asarray(np.argmax(values, axis=1), dtype=np.int64)


def selected(reading: Reading) -> IntArray:
    """``(n,)``: the instance that decides, counted in its bag."""
    column = predicted(reading.values) if reading.selected.shape[1] > 1 else 0
    return np.asarray(reading.selected[np.arange(len(reading.values)), column])


def _two_columns(values: FloatArray) -> FloatArray:
    """Values of two classes in two columns."""
    return np.hstack([-values, values]) if values.shape[1] == 1 else values


def _predicted_of(layer: Layer, bags: Bags, queries: Queries, chosen: BoolArray) -> IntArray:
    """``(n,)`` predicted columns of the bags with these rows only, -1 where none is left."""
    left = np.add.reduceat(chosen.astype(np.int64), bags.offsets[:-1])
    filled = left > 0
    column = np.full(bags.n, -1, dtype=np.int64)
    if filled.any():
        rows = bags.rows[chosen]
        offsets = np.concatenate([[0], np.cumsum(left[filled])])
        column[filled] = predicted(layer.read(rows, offsets, queries(rows, offsets, filled)).values)
    return column


def ranking_weights(layer: Layer, reading: Reading, column: IntArray, bags: Bags) -> FloatArray:
    """``(N,)``: by what instances of a bag are ranked: contributions to the predicted class, or, of
    two classes with witnesses, as likely witnesses whatever the class.
    """
    if reading.contributions.shape[1] > 1:
        return np.asarray(reading.contributions[np.arange(len(bags.rows)), column[bags.bag]])
    toward = np.where((column > 0) | isinstance(layer, WitnessLayer), 1.0, -1.0)
    return np.asarray(reading.contributions[:, 0] * toward[bags.bag])


def first_and_second(
    weights: FloatArray, reading: Reading, offsets: IntArray
) -> tuple[IntArray, IntArray]:
    """``(n,)`` and ``(n,)``: the selected instance of each bag and the next one by ``(N,)``
    weights, counted in the bag; -1 where there is no other.
    """
    first = selected(reading)
    others = weights.copy()
    others[offsets[:-1] + first] = -np.inf
    second = segments.first_largest(others, offsets)
    return first, np.where(np.diff(offsets) > 1, second, -1)
