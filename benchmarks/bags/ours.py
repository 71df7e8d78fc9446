"""attsvm's classifier of bags, as it is used here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from shared import Array, FitFolds, Model, Scale, Scaled, one_by_one
from sklearn.kernel_approximation import Nystroem
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures

from attsvm.datasets.bags import Bags
from attsvm.sklearn import AttentionSVC, BagContext, BagFeatures, WitnessSVC

COMPONENTS = 200
QUADRATIC = 30  # features up to which products of two of them are features, too


class Ours:
    """An estimator behind features of instances.

    Args:
        assumption: ``standard`` or ``collective``.
        heads: attention heads; 0 is the mean.
        features: ``linear``: as they are; ``context``: with what their bag looks like;
            ``quadratic``; or a number: Nystroem features of width ``number / d``.
    """

    def __init__(self, assumption: str, heads: int = 1, features: str | float = "linear") -> None:
        self.assumption, self.heads, self.features = assumption, heads, features

    def _features(self, bags: Bags) -> BagFeatures | BagContext:
        if self.features == "linear":
            return BagFeatures()
        if self.features == "context":
            return BagContext()
        if self.features == "quadratic":
            return BagFeatures(PolynomialFeatures(2, include_bias=False))
        components, gamma = min(COMPONENTS, len(bags.rows)), float(self.features) / bags.d
        return BagFeatures(Nystroem(gamma=gamma, n_components=components, random_state=0))

    def fit(self, bags: Bags, y: Array) -> Ours:
        kind = WitnessSVC if self.assumption == "standard" else AttentionSVC
        self.model = make_pipeline(self._features(bags), kind(heads=self.heads)).fit(bags, y)
        return self

    def values(self, bags: Bags) -> Array:
        return np.asarray(self.model.decision_function(bags))

    def instances(self, bags: Bags) -> Array:
        estimator, bags = self.model[-1], self.model[:-1].transform(bags)
        if self.assumption == "standard":
            return np.concatenate(estimator.decision_function_instances(bags))
        return np.concatenate(estimator.contributions(bags))

    def select(self, bags: Bags) -> Array:
        estimator, bags = self.model[-1], self.model[:-1].transform(bags)
        return np.asarray(bags.offsets[:-1] + estimator.select(bags))

    def left_out_loss(self, y: Array) -> float:
        """The mean logistic loss of the training bags by models that did not see them, which the
        estimator computes to choose its penalty; calibrated, so that candidates compare.
        """
        estimator = self.model[-1]
        values = estimator.predictor_.left_out[:, 0]
        seen = ~np.isnan(values)
        margins = estimator.calibration_ * (y * values)[seen]
        return float(np.mean(np.logaddexp(0.0, -margins)))


def choose(candidates: list[dict[str, Any]]) -> FitFolds:
    """All candidates once on each training set; the smallest left-out loss decides."""

    def fit(bags: Bags, y: Array, trains: list[Array], seed: int) -> Iterator[Model]:
        for train in trains:
            part, labels = bags.take(train), y[train]
            scale = Scale.of(part.rows)
            part = scale(part)
            settings = [
                each
                for each in candidates
                if each.get("features") != "quadratic" or part.d <= QUADRATIC
            ]
            fitted = [Ours(**each).fit(part, labels) for each in settings]
            best = int(np.argmin([model.left_out_loss(labels) for model in fitted]))
            yield Scaled(scale, fitted[best], settings[best])

    return fit


def shuffled(bags: Bags, y: Array, trains: list[Array], seed: int) -> Iterator[Model]:
    """The null: labels that have nothing to do with their bags."""
    fit = _only(assumption="standard")
    yield from fit(bags, np.random.default_rng(seed).permutation(y), trains, seed)


def _only(**settings: Any) -> FitFolds:
    return one_by_one(Ours, [settings])


STANDARD = [
    {"assumption": "standard"},
    {"assumption": "standard", "features": 1.0},
    {"assumption": "standard", "features": "quadratic"},
    {"assumption": "standard", "features": "quadratic", "heads": 2},
]
METHODS = {
    "attsvm collective, context": _only(assumption="collective", heads=0, features="context"),
    "attsvm collective": _only(assumption="collective"),
    "attsvm standard": _only(assumption="standard", features=1.0),
}
GRADED = {
    "attsvm standard": choose(STANDARD),
    "attsvm standard, linear": _only(assumption="standard"),
    "attsvm mean": _only(assumption="collective", heads=0),
    "null: attsvm standard, shuffled labels": shuffled,
    "attsvm standard, quadratic": _only(assumption="standard", features="quadratic"),
    "attsvm collective": _only(assumption="collective"),
}
