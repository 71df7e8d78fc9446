"""Max-margin solvers: :func:`max_margin` for one programme, :func:`max_margin_batch` for many,
:func:`max_margin_blocks` for those larger than memory; and the solutions that they return.
"""

from __future__ import annotations

from attsvm.solvers.batch import SolutionBatch
from attsvm.solvers.front import max_margin, max_margin_batch, max_margin_blocks
from attsvm.solvers.local_tokens import locally_optimal, neighbours
from attsvm.solvers.optimality_checks import Residuals
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
    "max_margin_batch",
    "max_margin_blocks",
    "neighbours",
]


def __dir__() -> list[str]:
    return __all__
