"""Max-margin solvers: the front door :func:`max_margin` and what it hands back. Numba is imported by the first solve."""

from __future__ import annotations

from attsvm.solvers.batch import SolutionBatch
from attsvm.solvers.front import max_margin
from attsvm.solvers.solution import MarginSolution, Residuals, Status

__all__ = ["MarginSolution", "Residuals", "SolutionBatch", "Status", "max_margin"]
