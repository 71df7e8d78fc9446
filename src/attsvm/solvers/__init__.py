"""Max-margin solvers: the front door :func:`max_margin` and what it hands back. Numba is imported
by the first solve.
"""

from __future__ import annotations

from attsvm.solvers.answers.solution import MarginSolution, SecondOpinion, Status
from attsvm.solvers.front import max_margin
from attsvm.solvers.large.batch import SolutionBatch
from attsvm.solvers.path import margin_path
from attsvm.solvers.proofs.residuals import Residuals

__all__ = [
    "MarginSolution",
    "Residuals",
    "SecondOpinion",
    "SolutionBatch",
    "Status",
    "margin_path",
    "max_margin",
]
