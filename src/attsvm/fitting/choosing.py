"""Which penalty predicts best on bags that were left out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from attsvm.data import FloatArray, IntArray

Values = FloatArray
Course = Callable[[FloatArray], Sequence[FloatArray]]
"""From the share of each bag in the loss (zero where it is left out) to the values of all bags,
``(n, columns)``, one array for each candidate."""

FOLDS = 5


@dataclass(frozen=True, eq=False)
class Choice:
    """The candidate with the smallest loss on bags left out.

    Attributes:
        index: which one; the first on ties, so candidates come by falling penalty.
        losses: ``(candidates,)``: mean loss on bags left out.
        values: ``(n, columns)``: what models that did not see a bag say of it, ``nan`` where no
            model left it out.
    """

    index: int
    losses: FloatArray
    values: Values


def left_out(labels: IntArray, folds: int, seed: int, single: bool) -> list[IntArray]:
    """Bags to leave out together, each class spread over the folds; only the first fold when
    ``single``.
    """
    folds = max(min(folds, int(np.bincount(labels).min())), 2)
    generator = np.random.default_rng([seed, 11])
    fold = np.empty(len(labels), dtype=np.int64)
    start = 0
    for label in np.unique(labels):
        members = generator.permutation(np.flatnonzero(labels == label))
        fold[members] = (start + np.arange(len(members))) % folds
        start += len(members)
    return [np.flatnonzero(fold == k) for k in range(1 if single else folds)]


def choose(
    course: Course,
    parts: Sequence[IntArray],
    shares: FloatArray,
    losses: Callable[[Values], FloatArray],
) -> Choice:
    """Fit without each part in turn, and see what each candidate says of it.

    Args:
        course: fits all candidates.
        parts: the bags left out each time.
        shares: ``(n,)`` shares of the bags in the loss.
        losses: the ``(n,)`` losses of values.
    """
    kept: list[Any] = []
    for part in parts:
        without = shares.copy()
        without[part] = 0.0
        without /= without.sum()
        found = course(without)
        if not kept:
            kept = [np.full_like(values, np.nan) for values in found]
        for whole, values in zip(kept, found, strict=True):
            whole[part] = values[part]
    seen = np.concatenate(list(parts))
    weight = shares[seen] / shares[seen].sum()
    mean = np.array([float(weight @ losses(values)[seen]) for values in kept])
    best = int(np.argmin(mean))
    return Choice(best, mean, kept[best])
