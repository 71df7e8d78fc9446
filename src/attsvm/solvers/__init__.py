"""Max-margin solvers: the front door :func:`max_margin` and what it hands back. Numba is imported
by the first solve.
"""

from __future__ import annotations

from attsvm.solvers.answers.solution import MarginSolution, Status
from attsvm.solvers.facts import Residuals
from attsvm.solvers.front import max_margin
from attsvm.solvers.large.batch import SolutionBatch
from attsvm.solvers.path import margin_path

__all__ = [
    "MarginSolution",
    "Residuals",
    "SolutionBatch",
    "Status",
    "margin_path",
    "max_margin",
]
