"""Max-margin solvers: the front door :func:`max_margin` and what it hands back."""

from __future__ import annotations

from attsvm.solvers.batch import SolutionBatch
from attsvm.solvers.facts import Residuals
from attsvm.solvers.front import max_margin
from attsvm.solvers.local_tokens import locally_optimal, neighbours
from attsvm.solvers.path import margin_path
from attsvm.solvers.solution import MarginSolution, Status

__all__ = [
    "MarginSolution",
    "Residuals",
    "SolutionBatch",
    "Status",
    "locally_optimal",
    "margin_path",
    "max_margin",
    "neighbours",
]


def __dir__() -> list[str]:
    return __all__
