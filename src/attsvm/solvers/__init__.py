"""Max-margin solvers: the front door :func:`max_margin` and what it hands back. Numba is imported
by the first solve.
"""

from __future__ import annotations

from attsvm.solvers.batch import SolutionBatch
from attsvm.solvers.choice import Choice, choose, solver_names
from attsvm.solvers.front import max_margin
from attsvm.solvers.path import margin_path
from attsvm.solvers.residuals import Residuals
from attsvm.solvers.solution import MarginSolution, SecondOpinion, Status

__all__ = [
    "Choice",
    "MarginSolution",
    "Residuals",
    "SecondOpinion",
    "SolutionBatch",
    "Status",
    "choose",
    "margin_path",
    "max_margin",
    "solver_names",
]
