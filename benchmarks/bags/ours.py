"""attsvm's classifier of bags: instances as they are, or through random features; with `collective`
also with the context of the bag.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from shared import Array, FitFolds, Model, Scale, Scaled, one_by_one
from sklearn.kernel_approximation import Nystroem
from sklearn.pipeline import make_pipeline

from attsvm.bags import Bags
from attsvm.sklearn import AttentionSVC, BagFeatures

COMPONENTS = 200


class Ours:
    """The estimator, behind Nystroem features of width ``spread / d`` where ``spread`` is given.

    Args:
        assumption: ``standard`` or ``collective``.
        spread: None for linear instances.
        heads: attention heads.
        context: whether the features of an instance are those of its bag's mean, minimum and
            maximum.
    """

    def __init__(
        self,
        assumption: str,
        spread: float | None = None,
        heads: int = 1,
        context: bool = False,
    ) -> None:
        self.assumption, self.spread, self.heads = assumption, spread, heads
        self.context = context

    def fit(self, bags: Bags, y: Array) -> Ours:
        estimator = AttentionSVC(assumption=self.assumption, penalty="cv", heads=self.heads)
        if self.spread is not None:
            rows = bags.n if self.context else len(bags.rows)
            width = 3 * bags.d if self.context else bags.d
            map_: Any = Nystroem(
                gamma=self.spread / width, n_components=min(COMPONENTS, rows), random_state=0
            )
            features = BagFeatures("drop", context=map_) if self.context else BagFeatures(map_)
            estimator = make_pipeline(features, estimator)
        self.model = estimator.fit(bags, y)
        return self

    def _last(self, bags: Bags) -> tuple[AttentionSVC, Bags]:
        if self.spread is None:
            return self.model, bags
        return self.model[-1], self.model[:-1].transform(bags)

    def values(self, bags: Bags) -> Array:
        return np.asarray(self.model.decision_function(bags))

    def instances(self, bags: Bags) -> Array:
        estimator, bags = self._last(bags)
        if self.assumption == "standard":
            return np.concatenate(estimator.decision_function_instances(bags))
        return np.concatenate(estimator.contributions(bags))

    def select(self, bags: Bags) -> Array:
        estimator, bags = self._last(bags)
        return np.asarray(bags.offsets[:-1] + estimator.select(bags))


def left_out_loss(model: Ours, y: Array) -> float:
    """The mean logistic loss of the training bags by models that did not see them, which the
    estimator computes to choose its penalty; calibrated, so that assumptions compare.
    """
    estimator = model.model if model.spread is None else model.model[-1]
    values = estimator.predictor_.left_out[:, 0]
    seen = ~np.isnan(values)
    return float(np.mean(np.logaddexp(0.0, -estimator.calibration_ * (y * values)[seen])))


class Chosen:
    """The candidate whose left-out loss is the smallest, and those of each kind."""

    def __init__(self, fitted: dict[str, Scaled], losses: dict[str, float]) -> None:
        self.members = {}
        for kind in MEMBERS:
            if own := {name: loss for name, loss in losses.items() if name.startswith(kind)}:
                self.members[kind] = fitted[min(own, key=own.__getitem__)]
        best = min(losses, key=losses.__getitem__)
        self._best = fitted[best]
        self.choice = {"model": best} | losses

    def __getattr__(self, name: str) -> Any:
        return getattr(self._best, name)


CANDIDATES: dict[str, dict[str, Any]] = {
    "attsvm standard, RBF / 4": {"assumption": "standard", "spread": 0.25},
    "attsvm standard, RBF": {"assumption": "standard", "spread": 1.0},
    "attsvm collective, linear": {"assumption": "collective"},
    "attsvm collective, RBF": {"assumption": "collective", "spread": 1.0},
    "attsvm context, RBF / 4": {"assumption": "collective", "spread": 0.25, "context": True},
    "attsvm context, RBF": {"assumption": "collective", "spread": 1.0, "context": True},
}
STANDARD: dict[str, dict[str, Any]] = {
    "attsvm standard, linear": {"assumption": "standard"},
    "attsvm standard, RBF": {"assumption": "standard", "spread": 1.0},
    "attsvm standard, 8 RBF": {"assumption": "standard", "spread": 8.0},
    "attsvm standard, 8 RBF, 2 heads": {"assumption": "standard", "spread": 8.0, "heads": 2},
}
MEMBERS = ("attsvm standard", "attsvm collective", "attsvm context")


def choose(candidates: dict[str, dict[str, Any]]) -> FitFolds:
    """All candidates once on each training set; the left-out loss decides between them."""

    def fit(bags: Bags, y: Array, trains: list[Array], seed: int) -> Iterator[Model]:
        for train in trains:
            part, labels = bags.take(train), y[train]
            scale = Scale.of(part.rows)
            part, fitted, losses = scale(part), {}, {}
            for name, settings in candidates.items():
                model = Ours(**settings).fit(part, labels)
                fitted[name] = Scaled(scale, model, settings)
                losses[name] = left_out_loss(model, labels)
            yield Chosen(fitted, losses)

    return fit


METHODS = {"attsvm": choose(CANDIDATES)}
GRADED = {
    "attsvm standard": choose(STANDARD),
    "attsvm collective": one_by_one(Ours, [{"assumption": "collective"}]),
}
