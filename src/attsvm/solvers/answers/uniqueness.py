r"""Whether the weights of least norm are the only ones.

For :math:`1<p<\infty` the norm is strictly convex and they are. For :math:`p=1,\infty` a multiplier
vector :math:`\lambda` that proves optimality also says where every solution lies: with
:math:`V=A^\top\lambda`, solutions meet the rows with
:math:`\lambda_c>0` exactly, and for :math:`p=1` vanish where :math:`|V_e|<\|V\|_\infty`, for
:math:`p=\infty` are at their bound where :math:`V_e\ne0`. If the columns of those rows on the
remaining entries are independent, there is one solution. Conversely a null vector of all tight rows
on the entries that can move both ways moves the weights without cost (Mangasarian, *Uniqueness of
solution in linear programming*, 1979). The norm of soft-margin solutions is unique, and what was
said holds with the rows
:math:`0<\lambda_c<C` in place of :math:`\lambda_c>0`.
"""

from __future__ import annotations

import math

import numpy as np

from attsvm.data import FloatArray
from attsvm.solvers.answers.solution import MarginSolution

_CLEAR = 1e-6  # relative size that counts as different from zero
_LARGEST = 1 << 22  # entries of the matrix whose rank is decided
_RANK = 1e-9


def unique_weights(solution: MarginSolution, p: float) -> bool | None:
    """True or False where it is clear, ``None`` where it is not or the programme is too large."""
    if solution.status != "optimal":
        return None
    if 1.0 < p < math.inf:
        return True
    if solution.gap > _CLEAR**1.5:
        return None
    margins, W, dual = solution.margins, solution.W, solution.dual
    size = np.abs(W)
    pull = np.abs(margins.adjoint(dual))
    if p == 1.0:
        still = pull < (1.0 - _CLEAR) * pull.max()
        movable = size > _CLEAR * size.max()
    else:
        still = pull > _CLEAR * pull.max()
        movable = size < (1.0 - _CLEAR) * size.max()
    room = margins(W) - margins.rhs
    scale = max(float(margins.rhs.max()), 1e-300)
    bound = dual > _CLEAR * dual.max()
    tight = room <= _CLEAR * scale
    if solution.slack is not None:
        bound &= dual < (1.0 - _CLEAR) * solution.slack
        tight &= room >= -_CLEAR * scale
    if (
        int(bound.sum()) * int((~still).sum()) > _LARGEST
        or int(tight.sum()) * int(movable.sum()) > _LARGEST
    ):
        return None
    held, moved = _columns(solution, bound, ~still), _columns(solution, tight, movable)
    if p == 1.0 and solution.slack is not None:
        # The norm is the same in all solutions. Of hard margins the rows above imply it; here
        # missed rows have a share in it.
        signs = np.sign(W)
        held = np.vstack([held, np.sign(margins.adjoint(dual))[~still]])
        moved = np.vstack([moved, signs[movable]])
    if _independent(held):
        return True
    return False if movable.any() and not _independent(moved) else None


def _columns(solution: MarginSolution, rows: np.ndarray, entries: np.ndarray) -> FloatArray:
    """The chosen rows, scaled to a largest entry of one, on the chosen entries."""
    margins = solution.margins
    a, e = np.nonzero(entries)
    D, Z = margins.differences[rows], margins.queries[margins.sequence[rows]]
    D = D / np.maximum(np.abs(D).max(axis=1, keepdims=True), np.finfo(np.float64).tiny)
    Z = Z / np.maximum(np.abs(Z).max(axis=1, keepdims=True), np.finfo(np.float64).tiny)
    columns: FloatArray = D[:, a] * Z[:, e]
    return columns


def _independent(columns: FloatArray) -> bool:
    if columns.shape[1] == 0:
        return True
    if columns.shape[0] < columns.shape[1]:
        return False
    values = np.linalg.svd(columns, compute_uv=False)
    return bool(values[-1] > _RANK * values[0])
