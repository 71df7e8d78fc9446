"""attsvm's classifier of bags: instances as they are, or through random features; with `collective`
also with the context of the bag.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from shared import Array, one_by_one
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


STANDARD = [{"assumption": "standard", "spread": spread} for spread in (None, 0.25, 1.0)]
COLLECTIVE = [{"assumption": "collective", "spread": spread} for spread in (None, 0.25, 1.0)]
METHODS = {
    "attsvm standard": one_by_one(Ours, STANDARD),
    "attsvm collective": one_by_one(Ours, COLLECTIVE),
}
