"""Peers made of scikit-learn: pooled features, and the two support vector machines of Andrews,
Tsochantaridis and Hofmann (2002) as loops around ``SVC``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from shared import Array, first_best, one_by_one, reduced
from sklearn.linear_model import LogisticRegression
from sklearn.svm import SVC

from attsvm.datasets.bags import Bags

ROUNDS = 20


class Pooled:
    """A classifier of one vector per bag: the mean, the maximum, or minimum, maximum and mean."""

    def __init__(self, pooling: str, machine: str, C: float, gamma: float = 1.0) -> None:
        self.pooling = pooling
        self.machine: Any = (
            LogisticRegression(C=C, max_iter=2000)
            if machine == "logistic"
            else SVC(C=C, gamma=gamma)
        )

    def _pool(self, bags: Bags) -> Array:
        mean = reduced(np.add, bags.rows, bags) / bags.lengths[:, None]
        if self.pooling == "mean":
            return mean
        most = reduced(np.maximum, bags.rows, bags)
        if self.pooling == "max":
            return most
        return np.hstack([reduced(np.minimum, bags.rows, bags), most, mean])

    def _vectors(self, bags: Bags) -> Array:
        return (self._pool(bags) - self.mean) / self.deviation

    def fit(self, bags: Bags, y: Array) -> Pooled:
        pooled = self._pool(bags)
        self.mean, deviation = pooled.mean(axis=0), pooled.std(axis=0)
        self.deviation = np.where(deviation > 0, deviation, 1.0) * np.sqrt(pooled.shape[1])
        self.machine.fit(self._vectors(bags), y)
        return self

    def values(self, bags: Bags) -> Array:
        return self.machine.decision_function(self._vectors(bags))

    def instances(self, bags: Bags) -> Array | None:
        if self.pooling != "mean":
            return None
        return bags.rows @ (self.machine.coef_[0] / self.deviation)


class InstanceMachine:
    """What mi-SVM and MI-SVM share: an ``SVC`` of instances, a bag's value is its largest one."""

    def __init__(self, C: float, kernel: str = "rbf", spread: float = 1.0) -> None:
        self.C, self.kernel, self.spread = C, kernel, spread

    def _machine(self, rows: Array, labels: Array) -> SVC:
        gamma = self.spread / rows.shape[1]
        return SVC(C=self.C, kernel=self.kernel, gamma=gamma, cache_size=500).fit(rows, labels)

    def values(self, bags: Bags) -> Array:
        return reduced(np.maximum, self.instances(bags), bags)

    def instances(self, bags: Bags) -> Array:
        return self.machine.decision_function(bags.rows)


class InstanceLabels(InstanceMachine):
    """mi-SVM: instances of positive bags are relabelled until nothing changes; each positive bag
    keeps at least one positive.
    """

    def fit(self, bags: Bags, y: Array) -> InstanceLabels:
        labels = y[bags.bag].copy()
        for _ in range(ROUNDS):
            self.machine = self._machine(bags.rows, labels)
            values = self.instances(bags)
            new = np.where((values > 0) & (y[bags.bag] > 0), 1.0, -1.0)
            new[first_best(values, bags)[y > 0]] = 1.0
            if (new == labels).all():
                break
            labels = new
        return self


class Witnesses(InstanceMachine):
    """MI-SVM: a positive bag is its best instance, chosen anew until it stays; of negative bags all
    instances count, the violating ones added as they appear.
    """

    def fit(self, bags: Bags, y: Array) -> Witnesses:
        positive = bags.take(y > 0)
        negative = bags.take(y < 0)
        means = reduced(np.add, positive.rows, positive) / positive.lengths[:, None]
        working = np.unique(np.linspace(0, len(negative.rows) - 1, 3 * negative.n).astype(int))
        chosen, before = means, None
        for _ in range(ROUNDS):
            working = self._solve(chosen, negative, working)
            best = first_best(self.instances(positive), positive)
            if before is not None and (best == before).all():
                break
            chosen, before = positive.rows[best], best
        return self

    def _solve(self, chosen: Array, negative: Bags, working: Array) -> Array:
        for _ in range(ROUNDS):
            rows = np.vstack([chosen, negative.rows[working]])
            labels = np.repeat([1.0, -1.0], [len(chosen), len(working)])
            self.machine = self._machine(rows, labels)
            values = self.instances(negative)
            worst = first_best(values, negative)
            new = np.setdiff1d(worst[values[worst] > -1 + 1e-2], working)
            if len(new) == 0:
                return working
            working = np.union1d(working, new)
        return working


COSTS = [0.1, 1.0, 10.0, 100.0]
METHODS = {
    "mean + logistic": one_by_one(
        Pooled, [{"pooling": "mean", "machine": "logistic", "C": C} for C in COSTS]
    ),
    "max + logistic": one_by_one(
        Pooled, [{"pooling": "max", "machine": "logistic", "C": C} for C in COSTS]
    ),
    "min/max/mean + RBF SVC": one_by_one(
        Pooled,
        [
            {"pooling": "all", "machine": "svc", "C": C, "gamma": gamma}
            for C in COSTS[1:]
            for gamma in (0.25, 1.0)
        ],
    ),
    "mi-SVM": one_by_one(InstanceLabels, [{"C": C} for C in (1.0, 10.0)]),
    "MI-SVM": one_by_one(Witnesses, [{"C": C} for C in (1.0, 10.0)]),
}
