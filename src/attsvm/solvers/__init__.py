"""Max-margin solvers: the front door :func:`max_margin` and what it hands back. Numba is imported by the first solve."""

from __future__ import annotations

from attsvm.solvers.front import max_margin
from attsvm.solvers.residuals import Residuals
from attsvm.solvers.solution import MarginSolution, Status
from attsvm.solvers.verification import SecondOpinion

__all__ = ["MarginSolution", "Residuals", "SecondOpinion", "Status", "max_margin"]
