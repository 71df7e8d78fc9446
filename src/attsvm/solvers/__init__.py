"""Max-margin solvers: the front door :func:`max_margin` and what it hands back. Numba is imported by the first solve."""

from __future__ import annotations

from attsvm.solvers.front import max_margin
from attsvm.solvers.path import margin_path
from attsvm.solvers.solution import MarginSolution, Residuals, Status

__all__ = ["MarginSolution", "Residuals", "Status", "margin_path", "max_margin"]
