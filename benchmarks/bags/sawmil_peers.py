"""The three classifiers of the package sawmil: NSK, sMIL and sAwMIL."""

from __future__ import annotations

from typing import Any

import numpy as np
from sawmil import NSK, sAwMIL, sMIL
from sawmil.bag import Bag
from sawmil.kernels import get_kernel
from shared import Array, one_by_one

from attsvm.datasets.bags import Bags

SOLVER = "osqp"


class SolverAware(sAwMIL):  # type: ignore[misc]
    """sawmil 0.2.1 does not hand the solver on to the first stage, which then asks for Gurobi."""

    def __fit_mil__(self, bags: list[Bag]) -> None:
        self.smil_ = sMIL(C=self.C, kernel=self.kernel, solver=self.solver).fit(bags)


class Sawmil:
    """One of them, by name; the kernel of instances is linear or RBF of width 1 / d. ``eta`` is the
    share of the instances of positive bags that sAwMIL takes for witnesses.
    """

    def __init__(self, name: str, C: float, kernel: str = "rbf", eta: float | None = None) -> None:
        self.name, self.C, self.kernel = name, C, kernel
        self.more = {} if eta is None else {"eta": eta}

    def fit(self, bags: Bags, y: Array) -> Sawmil:
        kernel: Any = (
            get_kernel("rbf", gamma=1.0 / bags.d) if self.kernel == "rbf" else get_kernel("linear")
        )
        kind = {"NSK": NSK, "sMIL": sMIL, "sAwMIL": SolverAware}[self.name]
        self.model = kind(C=self.C, kernel=kernel, solver=SOLVER, **self.more)
        self.model.fit([Bag(bags[i], float(y[i] > 0)) for i in range(bags.n)])
        return self

    def values(self, bags: Bags) -> Array:
        given = [Bag(bags[i], 0.0) for i in range(bags.n)]
        return np.asarray(self.model.decision_function(given), dtype=float)

    def instances(self, bags: Bags) -> Array:
        single = [Bag(row[None], 0.0) for row in bags.rows]
        return np.asarray(self.model.decision_function(single), dtype=float)


def _grid(name: str, costs: tuple[float, ...], **more: Any) -> list[dict[str, Any]]:
    return [{"name": name, "C": C, "kernel": "rbf", **more} for C in costs]


COSTS = 10.0, 100.0, 1000.0, 10_000.0
METHODS = {f"sawmil {name}": one_by_one(Sawmil, _grid(name, COSTS)) for name in ("NSK", "sMIL")}
METHODS["sawmil sAwMIL"] = one_by_one(
    Sawmil, [one for eta in (0.1, 0.5, 0.9) for one in _grid("sAwMIL", COSTS[:2], eta=eta)]
)
