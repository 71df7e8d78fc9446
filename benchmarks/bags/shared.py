"""What every method of this benchmark is: something that is fitted to bags and gives values."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from sklearn.model_selection import StratifiedKFold

from attsvm.datasets.bags import Bags

Array = np.ndarray[Any, Any]


class Model(Protocol):
    """A fitted method."""

    choice: dict[str, Any]
    """The hyper-parameters that the inner folds chose."""

    def values(self, bags: Bags) -> Array:
        """``(n,)``: positive values mean the positive class."""

    def instances(self, bags: Bags) -> Array | None:
        """``(N,)``: how much each instance speaks for the positive class, or its attention; None
        when the method does not say.
        """


def selected(model: Model, bags: Bags) -> Array | None:
    """``(n,)``: the row of the instance that speaks most for the predicted class of each bag.

    A model's own ``select`` decides where it has one, then its instance scores; attention has no
    sign and is always the largest one.
    """
    if hasattr(model, "select"):
        return model.select(bags)
    scores = model.instances(bags)
    if scores is None:
        return None
    sign = 1.0 if getattr(model, "unsigned", False) else np.sign(model.values(bags))[bags.bag]
    return first_best(sign * scores, bags)


FitFolds = Callable[[Bags, Array, list[Array], int], Iterator[Model]]
"""``fit(bags, y, trains, seed)`` yields one model for each of the training sets in ``trains``."""


@dataclass(frozen=True)
class Scale:
    """Features brought to mean 0 and standard deviation 1 on the training instances."""

    mean: Array
    deviation: Array

    @classmethod
    def of(cls, rows: Array) -> Scale:
        rows = np.asarray(rows)
        deviation = rows.std(axis=0)
        return cls(rows.mean(axis=0), np.where(deviation > 0, deviation, 1.0))

    def __call__(self, bags: Bags) -> Bags:
        return replace(bags, rows=(np.asarray(bags.rows) - self.mean) / self.deviation)


class Scaled:
    """A model behind the scale of its training instances."""

    def __init__(self, scale: Scale, model: Any, choice: dict[str, Any]) -> None:
        self._scale, self._model, self.choice = scale, model, choice

    def values(self, bags: Bags) -> Array:
        return self._model.values(self._scale(bags))

    def instances(self, bags: Bags) -> Array | None:
        return self._model.instances(self._scale(bags))

    def select(self, bags: Bags) -> Array | None:
        return selected(self._model, self._scale(bags))


def one_by_one(make: Callable[..., Any], grid: list[dict[str, Any]]) -> FitFolds:
    """Folds one after the other; hyper-parameters by three inner folds of each training set.

    The best mean accuracy counts, the earlier entry of ``grid`` on ties.
    """

    def fit(bags: Bags, y: Array, trains: list[Array], seed: int) -> Iterator[Model]:
        for train in trains:
            part, labels = bags.take(train), y[train]
            scale = Scale.of(part.rows)
            part = scale(part)
            choice = grid[0] if len(grid) == 1 else _best(make, grid, part, labels, seed)
            yield Scaled(scale, make(**choice).fit(part, labels), choice)

    return fit


def _best(
    make: Callable[..., Any], grid: list[dict[str, Any]], bags: Bags, y: Array, seed: int
) -> dict[str, Any]:
    inner = list(StratifiedKFold(3, shuffle=True, random_state=seed).split(y, y))
    accuracy = np.zeros(len(grid))
    for k, parameters in enumerate(grid):
        for train, test in inner:
            model = make(**parameters).fit(bags.take(train), y[train])
            accuracy[k] += np.mean((model.values(bags.take(test)) > 0) == (y[test] > 0))
    return grid[int(np.argmax(accuracy.round(12)))]


def reduced(function: np.ufunc, values: Array, bags: Bags) -> Array:
    """``(n, ...)``: a ufunc over the instances of each bag."""
    return function.reduceat(values, bags.offsets[:-1], axis=0)


def first_best(values: Array, bags: Bags) -> Array:
    """``(n,)``: the row of the largest value in each bag, the first on ties."""
    is_best = values == np.repeat(reduced(np.maximum, values, bags), bags.lengths)
    rows = np.flatnonzero(is_best)
    return rows[np.unique(bags.bag[rows], return_index=True)[1]]
