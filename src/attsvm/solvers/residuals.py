"""The optimality conditions of a solution in any norm, recomputed from the caller's margins."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from attsvm.geometry import Frobenius

if TYPE_CHECKING:
    from attsvm.solvers.solution import MarginSolution


class Residuals(NamedTuple):
    r"""How far a solution is from the optimality conditions, recomputed from the caller's margins.

    With :math:`V=A^\top\lambda` stationarity asks for :math:`V\in\|W\|\,\partial\|W\|`, up to a positive factor for the hard margin.

    Attributes:
        stationarity: distance of :math:`V` from there, free of scale. Frobenius norm: :math:`\|W-V\|_F/\|W\|_F`, the distance itself.
            Other norms: what Hoelder's inequality leaves, :math:`1-\langle V,W\rangle/(\|W\|\,\|V\|_*)`, which is zero exactly when
            :math:`V` is a positive multiple of a subgradient (for the soft margin what Fenchel's leaves,
            :math:`(\tfrac12\|W\|^2+\tfrac12\|V\|_*^2-\langle V,W\rangle)/\|W\|^2`); 1 when :math:`V=0`.
        primal: largest :math:`b_c-\xi_c-\langle A_c,W\rangle`, 0 when none is positive, in units of the largest power of two that is
            not above the largest :math:`b_c`.
        dual: largest distance of a multiplier to its box, relative to the largest multiplier.
        complementarity: largest :math:`\lambda_c|\langle A_c,W\rangle-b_c+\xi_c|` and, for the soft margin,
            :math:`(C-\lambda_c)\xi_c`, relative to :math:`b^\top\lambda`.
    """

    stationarity: float
    primal: float
    dual: float
    complementarity: float


def residuals_of(solution: MarginSolution) -> Residuals:
    """Residuals of the optimality conditions in the norm that was minimised; all ``inf`` when infeasible."""
    if solution.status == "infeasible":
        return Residuals(np.inf, np.inf, np.inf, np.inf)
    near = solution.near()
    cap = np.inf if near.slack is None else near.slack
    room = near.margins(near.W) - near.margins.rhs + near.slacks
    equal = near.margins.equalities
    room[equal] = -np.abs(room[equal])
    top = float(np.abs(near.dual).max(initial=0.0))
    outside = max(float(-near.dual[~equal].min(initial=0.0)), float((near.dual - cap).max(initial=0.0)))
    products = float((np.abs(near.dual) * np.abs(room)).max(initial=0.0))
    if near.slack is not None:
        products = max(products, float(((near.slack - near.dual) * near.slacks).max(initial=0.0)))
    total = float(near.margins.rhs @ near.dual)
    return Residuals(
        stationarity=_stationarity(near),
        primal=max(0.0, float((-room).max(initial=0.0))),
        dual=outside / top if top > 0 else outside,
        complementarity=products / total if total > 0 else products,
    )


def _stationarity(near: MarginSolution) -> float:
    V = near.margins.adjoint(near.dual)
    if near.norm == 0.0:
        return float(np.abs(V).max(initial=0.0))
    if near.geometry == Frobenius():
        return float(np.linalg.norm(near.W - V)) / near.norm
    size, product = float(near.geometry.dual_value(V)), float(np.sum(V * near.W))
    if near.slack is not None:
        return max(0.0, (0.5 * near.norm**2 + 0.5 * size**2 - product) / near.norm**2)
    return max(0.0, 1.0 - product / (size * near.norm)) if size > 0.0 else 1.0
