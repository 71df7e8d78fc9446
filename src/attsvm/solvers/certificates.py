r"""Proofs of accuracy that do not depend on how a solution was found.

For any :math:`\lambda\ge0` and any :math:`W` whose margins meet :math:`b`,

.. math:: \frac{b^\top\lambda}{\|A^\top\lambda\|_*} \;\le\; \min\|W\| \;\le\; \|W\|,

because :math:`b^\top\lambda\le\langle A^\top\lambda, W\rangle\le\|A^\top\lambda\|_*\|W\|`. When
:math:`A^\top\lambda = 0` and
:math:`b^\top\lambda>0` the lower bound is infinite and no weights exist (Farkas). Every number here
is computed from the caller's margins.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attsvm.data import BoolArray, FloatArray
from attsvm.geometry import Norm
from attsvm.margins import Margins

_TINY = float(np.finfo(np.float64).tiny)
_RESCALINGS = 3
_ROUNDING = 4e-16


@dataclass(frozen=True, eq=False)
class Certificate:
    """Weights and multipliers with their certified gap and violation, and the violation that the
    rounding of the margins can hide.
    """

    W: FloatArray
    dual: FloatArray
    values: FloatArray
    norm: float
    gap: float
    violation: float
    rounding: float

    @property
    def error(self) -> float:
        """The larger of gap and violation: what a solver makes small."""
        return max(self.gap, self.violation)


def certify_hard(margins: Margins, norm: Norm, W: FloatArray, dual: FloatArray) -> Certificate:
    r"""``W`` rescaled until the smallest :math:`\langle A_c, W\rangle/b_c` is one, with the gap to
    the bound of ``dual``.

    The smallest among :func:`scale_rows`; what the others miss is violation.
    The gap is 1 (nothing proved) when the margins of ``W`` cannot be scaled to their right-hand
    sides.
    """
    positive = scale_rows(margins.rhs)
    values = margins(W)
    for _ in range(_RESCALINGS):
        ratio = float((values[positive] / margins.rhs[positive]).min())
        if not 0.0 < ratio < np.inf:
            return Certificate(
                W,
                dual,
                values,
                float(norm.value(W)),
                1.0,
                _violation(margins, values),
                _rounding(margins, W, values),
            )
        if abs(ratio - 1.0) <= _ROUNDING:
            break
        W = W / ratio
        values = margins(W)
    upper = float(norm.value(W))
    lower = lower_bound(margins, norm, dual)
    gap = max(0.0, 1.0 - lower / upper) if upper > 0 and np.isfinite(upper) else 1.0
    return Certificate(
        W, dual, values, upper, gap, _violation(margins, values), _rounding(margins, W, values)
    )


def scale_rows(rhs: FloatArray) -> BoolArray:
    """The rows whose ratio of margin to right-hand side says how far weights must be scaled: those
    with a positive right-hand side.

    A negative one is half of an equality written as two opposite rows. The other half holds exactly
    at the right scale, and where its right-hand side is small the ratio is mostly rounding; so then
    only the largest right-hand sides are asked.
    """
    positive: BoolArray = rhs > 0.0
    return positive if (rhs >= 0.0).all() else rhs > 0.5 * rhs.max(initial=0.0)


def certify_soft(
    margins: Margins, norm: Norm, W: FloatArray, dual: FloatArray, slack: float
) -> Certificate:
    r"""Gap between primal and dual objective, relative to the primal.

    Primal :math:`\tfrac12\|W\|^2+C\sum_c(b_c-\langle A_c,W\rangle)_+`, dual
    :math:`b^\top\lambda-\tfrac12\|A^\top\lambda\|_*^2`.
    """
    values = margins(W)
    upper = float(norm.value(W))
    primal = 0.5 * upper**2 + slack * float(np.maximum(margins.rhs - values, 0.0).sum())
    bound = float(margins.rhs @ dual) - 0.5 * float(norm.dual_value(margins.adjoint(dual))) ** 2
    gap = max(0.0, primal - bound) / max(primal, _TINY)
    return Certificate(W, dual, values, upper, gap, 0.0, 0.0)


def lower_bound(margins: Margins, norm: Norm, dual: FloatArray) -> float:
    r""":math:`b^\top\lambda/\|A^\top\lambda\|_*`: no weights that meet the margins have a smaller
    norm; ``inf`` when none exist.
    """
    top = float(margins.rhs @ dual)
    bottom = float(norm.dual_value(margins.adjoint(dual)))
    if top <= 0.0:
        return 0.0
    return top / bottom if bottom > 0.0 else np.inf


def farkas_residual(margins: Margins, dual: FloatArray) -> float:
    r"""How far ``dual`` is from proving that no weights exist; 0 is a proof.

    .. math:: \frac{b_{\max}\,\|A^\top\lambda\|_F}{b^\top\lambda\;\max_c\|A_c\|_F},
        \qquad\text{maxima over the rows with }\lambda_c>0.

    A value of :math:`r` proves that weights that meet the margins have
    :math:`\|W\|_F\max_c\|A_c\|_F\ge b_{\max}/r`. It is ``inf`` when ``dual`` proves nothing: no
    positive :math:`b^\top\lambda`, or a negative entry outside the equalities.
    """
    rows = np.flatnonzero(dual)
    if len(rows) == 0 or (dual[~margins.equalities] < 0.0).any():
        return float("inf")
    part = margins.restricted(rows)
    lam = dual[rows] / np.abs(dual[rows]).max()
    top = float(part.rhs @ lam)
    if not top > 0.0:
        return float("inf")
    widest, longest = (
        np.abs(part.differences).max(initial=0.0),
        np.abs(part.queries[part.sequence]).max(initial=0.0),
    )
    if widest == 0.0 or longest == 0.0:
        return 0.0
    D, Z = part.differences / widest, part.queries / longest
    scaled = Margins(D, Z, part.offsets, part.rhs, part.token, part.selected)
    size = float((np.linalg.norm(D, axis=1) * np.linalg.norm(Z, axis=1)[part.sequence]).max())
    if size == 0.0:
        return 0.0
    return float(np.linalg.norm(scaled.adjoint(lam))) * float(np.abs(part.rhs).max()) / (top * size)


def _violation(margins: Margins, values: FloatArray) -> float:
    return max(0.0, float((margins.rhs - values).max(initial=0.0)))


def _rounding(margins: Margins, W: FloatArray, values: FloatArray) -> float:
    r"""Largest violation that rounding can hide.

    A margin has a rounding error of about :math:`\epsilon|\delta_c|^\top|W||z_{i(c)}|`, which hides
    nothing where the margin exceeds its right-hand side by more.
    """
    moved: FloatArray = np.abs(margins.queries) @ np.abs(W).T
    error = np.finfo(np.float64).eps * margins.along_sizes(moved)
    room = np.where(margins.equalities, 0.0, np.maximum(values - margins.rhs, 0.0))
    return max(0.0, float((error - room).max(initial=0.0)))
