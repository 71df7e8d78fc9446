"""The optimality conditions of a solution in any norm, recomputed from the caller's margins."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from attsvm.data import FloatArray
from attsvm.geometry import Frobenius, Norm
from attsvm.margins import Margins


class Residuals(NamedTuple):
    r"""How far a solution is from the optimality conditions, recomputed from the caller's margins.

    With :math:`V=A^\top\lambda` stationarity asks for :math:`V\in\|W\|\,\partial\|W\|`, up to a
    positive factor for the hard margin.

    Attributes:
        stationarity: distance of :math:`V` from there, free of scale. Frobenius norm:
            :math:`\|W-V\|_F/\|W\|_F`, the distance itself. Other norms: what Hoelder's inequality
            leaves, :math:`1-\langle V,W\rangle/(\|W\|\,\|V\|_*)`, which is zero exactly when
            :math:`V` is a positive multiple of a subgradient (for the soft margin what Fenchel's
            leaves,
            :math:`(\tfrac12\|W\|^2+\tfrac12\|V\|_*^2-\langle V,W\rangle)/\|W\|^2`); 1 when
            :math:`V=0`.
        primal: largest :math:`b_c-\xi_c-\langle A_c,W\rangle`, 0 when none is positive, in units of
            the largest power of two that is not above the largest :math:`b_c`.
        dual: largest distance of a multiplier to its box, relative to the largest multiplier.
        complementarity: largest :math:`\lambda_c|\langle A_c,W\rangle-b_c+\xi_c|` and, for the soft
            margin,
            :math:`(C-\lambda_c)\xi_c`, relative to :math:`b^\top\lambda`.
    """

    stationarity: float
    primal: float
    dual: float
    complementarity: float


def residuals_of(
    margins: Margins,
    norm: Norm,
    W: FloatArray,
    dual: FloatArray,
    slack: float | None,
    slacks: FloatArray,
) -> Residuals:
    """Residuals of the optimality conditions of the programme of these margins, at a scale near
    one, in the norm that was minimised.
    """
    cap = np.inf if slack is None else slack
    room = margins(W) - margins.rhs + slacks
    equal = margins.equalities
    room[equal] = -np.abs(room[equal])
    top = float(np.abs(dual).max(initial=0.0))
    outside = max(float(-dual[~equal].min(initial=0.0)), float((dual - cap).max(initial=0.0)))
    products = float((np.abs(dual) * np.abs(room)).max(initial=0.0))
    if slack is not None:
        products = max(products, float(((slack - dual) * slacks).max(initial=0.0)))
    total = float(margins.rhs @ dual)
    return Residuals(
        stationarity=_stationarity(margins.adjoint(dual), W, norm, soft=slack is not None),
        primal=max(0.0, float((-room).max(initial=0.0))),
        dual=outside / top if top > 0 else outside,
        complementarity=products / total if total > 0 else products,
    )


def _stationarity(V: FloatArray, W: FloatArray, norm: Norm, *, soft: bool) -> float:
    length = float(norm.value(W))
    if length == 0.0:
        return float(np.abs(V).max(initial=0.0))
    if norm == Frobenius():
        return float(np.linalg.norm(W - V)) / length
    size, product = float(norm.dual_value(V)), float(np.sum(V * W))
    if soft:
        return max(0.0, (0.5 * length**2 + 0.5 * size**2 - product) / length**2)
    return max(0.0, 1.0 - product / (size * length)) if size > 0.0 else 1.0
