r"""Penalised losses :math:`P(w)=L(w)+\frac\lambda2\|w\|^2`: their descent, and for convex ones a
certificate.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from attsvm.datasets.attention_data import FloatArray, IntArray

Loss = Callable[[FloatArray], tuple[float, FloatArray]]

TOLERANCE = 1e-6
"""Largest relative gap of a convex step that is called ``optimal``."""
_MEMORY = 10  # pairs of L-BFGS, its default
_ROUNDS = 8  # descents, each ten times as exact as the last, until certified; untuned


@dataclass(frozen=True)
class ConvexStep:
    r"""One convex programme on the way, and how well it was solved.

    Attributes:
        status: ``optimal`` promises a relative duality gap within :data:`TOLERANCE`; ``inaccurate``
            promises nothing beyond the numbers shown.
        objective: loss and penalty.
        gap: :math:`\|\nabla P\|^2/(2\lambda P)`. For losses of linear scores,
            :math:`\sum_ic_i\ell_i(X_iw)`, this is the duality gap of :math:`w` and of the
            multipliers :math:`\nabla\ell_i` relative to ``objective``; for any convex loss it
            bounds :math:`(P(w)-\min P)/P(w)`.
        violation: :math:`\|\nabla P\|/(\lambda\|w\|)`: how far ``w`` is from the combination of
            constraints that optimality asks for.
        iterations: of the descent.
    """

    status: Literal["optimal", "inaccurate"]
    objective: float
    gap: float
    violation: float
    iterations: int


def log_sum(values: FloatArray) -> FloatArray:
    """``(n,)``: the logarithm of the sum of the exponentials of each row."""
    top = values.max(axis=1)
    return top + np.log(np.exp(values - top[:, None]).sum(axis=1))


def cross_entropy(values: FloatArray, labels: IntArray) -> tuple[FloatArray, FloatArray]:
    """``(n,)`` losses of ``(n, classes)`` values, and their slopes ``(n, classes)``."""
    total, at = log_sum(values), (np.arange(len(values)), labels)
    slopes = np.exp(values - total[:, None])
    slopes[at] -= 1.0
    return total - values[at], slopes


def certified(loss: Loss, start: FloatArray, penalty: float) -> tuple[FloatArray, ConvexStep]:
    """The minimum of a convex loss with its penalty, with its certificate."""
    weights, count, precision = start, 0, 1e-6
    for _ in range(_ROUNDS):
        weights, more = _lbfgs(loss, weights, penalty, 1000, precision)
        count += more
        step = _certify(loss, weights, penalty, count)
        if step.status == "optimal":
            break
        precision /= 10.0
    return weights, step


def _certify(loss: Loss, weights: FloatArray, penalty: float, count: int) -> ConvexStep:
    value, gradient = loss(weights)
    size = float(np.linalg.norm(weights))
    objective = value + 0.5 * penalty * size**2
    residual = float(np.linalg.norm(gradient + penalty * weights))
    gap = residual**2 / (2.0 * penalty * objective) if objective > 0 else np.inf
    return ConvexStep(
        "optimal" if gap <= TOLERANCE else "inaccurate",
        objective,
        gap,
        residual / (penalty * size) if size > 0 else residual,
        count,
    )


def _lbfgs(
    loss: Loss, start: FloatArray, penalty: float, iterations: int, precision: float
) -> tuple[FloatArray, int]:
    from scipy.optimize import minimize

    shape = start.shape

    def objective(flat: FloatArray) -> tuple[float, FloatArray]:
        value, gradient = loss(flat.reshape(shape))
        return value + 0.5 * penalty * float(flat @ flat), gradient.ravel() + penalty * flat

    optimum = minimize(
        objective,
        start.ravel(),
        jac=True,
        method="L-BFGS-B",
        options={
            "maxiter": iterations,
            "maxcor": _MEMORY,
            "ftol": 1e-4 * precision,
            "gtol": precision * 1e-2,
        },
    )
    return optimum.x.reshape(shape), int(optimum.nit)
