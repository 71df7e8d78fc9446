"""What speaks for predictions of bags, and whether it suffices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from attsvm.datasets.attention_data import BoolArray, FloatArray, IntArray
from attsvm.datasets.bags import Bags
from attsvm.sklearn.choosing import against_rest, margin_values
from attsvm.sklearn.layers import Layer, Reading

Queries = Callable[[FloatArray, IntArray, BoolArray], FloatArray]
"""From instances and offsets of what is left of some bags, and which bags those are, to their
queries."""


@dataclass(frozen=True, eq=False)
class Evidence:
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
    >>> found = WitnessSVC(pooling="hard", penalty=0.01).fit(bags, bags.labels).evidence(bags)
    >>> bool(found.sufficient.all())  # by the form of the model
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
        return f"Evidence({len(self.margin)} bags: {shares})"


def weigh(
    layer: Layer,
    bags: Bags,
    queries: Queries,
    places: IntArray,
    instances: int,
    reject: float,
) -> Evidence:
    """The evidence of a model's predictions.

    Args:
        layer: the model.
        bags: what it predicts.
        queries: of bags.
        places: ``(N,)``: the position of each instance in its bag, as the caller counts.
        instances: how many of a bag are selected.
        reject: the threshold of margins.
    """
    every = np.ones(bags.n, dtype=np.bool_)
    whole = queries(bags.rows, bags.offsets, every)
    read = layer.read(bags.rows, bags.offsets, whole)
    column = predicted(read.values)
    order = np.lexsort([-_toward(read, column, bags), bags.bag])
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order)) - np.repeat(bags.offsets[:-1], bags.lengths)
    alone = _part(layer, bags, queries, rank < instances)
    without = _part(layer, bags, queries, rank >= instances)
    other = replace(layer, hard=not layer.hard).read(bags.rows, bags.offsets, whole).values
    margin = margin_values(read.values, column)
    best = np.maximum.reduceat(_two(layer.alone(bags.rows)), bags.offsets[:-1], axis=0)
    parts = np.split(places[order], bags.offsets[1:-1])
    return Evidence(
        [part[:instances] for part in parts],
        margin,
        alone == column,
        without != column,
        predicted(other) == column,
        against_rest(best, column),
        margin < reject,
    )


def predicted(values: FloatArray) -> IntArray:
    """``(n,)``: the class that values predict."""
    if values.shape[1] == 1:
        return np.asarray(values[:, 0] > 0, dtype=np.int64)
    return np.asarray(np.argmax(values, axis=1), dtype=np.int64)


def selected(read: Reading) -> IntArray:
    """``(n,)``: the instance that decides, counted in its bag."""
    column = predicted(read.values) if read.selected.shape[1] > 1 else 0
    return np.asarray(read.selected[np.arange(len(read.values)), column])


def _two(values: FloatArray) -> FloatArray:
    """Values of two classes in two columns."""
    return np.hstack([-values, values]) if values.shape[1] == 1 else values


def _part(layer: Layer, bags: Bags, queries: Queries, keep: BoolArray) -> IntArray:
    """``(n,)`` predicted columns of the bags with these rows only, -1 where none is left."""
    left = np.add.reduceat(keep.astype(np.int64), bags.offsets[:-1])
    filled = left > 0
    column = np.full(bags.n, -1, dtype=np.int64)
    if filled.any():
        rows = bags.rows[keep]
        offsets = np.concatenate([[0], np.cumsum(left[filled])])
        column[filled] = predicted(layer.read(rows, offsets, queries(rows, offsets, filled)).values)
    return column


def _toward(read: Reading, column: IntArray, bags: Bags) -> FloatArray:
    """``(N,)``: by what instances of a bag are ranked, the selected one first."""
    if read.contributions.shape[1] == 1:
        weight: FloatArray = read.contributions[:, 0] * np.where(column > 0, 1.0, -1.0)[bags.bag]
    else:
        weight = read.contributions[np.arange(len(bags.rows)), column[bags.bag]].copy()
    weight[bags.offsets[:-1] + selected(read)] = np.inf
    return weight
