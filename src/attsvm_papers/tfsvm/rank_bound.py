r"""The max-margin programme of factors with few columns,

.. math:: \min_{K,Q\in\mathbb R^{d\times m}}\ \tfrac12(\|K\|_F^2+\|Q\|_F^2)
   \ \text{ subject to }\ \langle A_c,KQ^\top\rangle\ge b_c,

whose value is the least nuclear norm of weights of rank at most m. The nuclear solution bounds it
from below. Where its rank is larger than m the programme is not convex, and what is found is a
stationary point.

A step linearises the margins at ``X = (K, Q)``, whose rows are :math:`r_c=(A_cQ,A_c^\top K)`. With
the curvature bounded by twice the identity the next point is :math:`\tfrac12X+Y`, where Y is the
Frobenius solution of :math:`\langle r_c,Y\rangle\ge b_c`; at a stationary point :math:`Y=X/2`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from attsvm import Margins, max_margin_batch
from attsvm.datasets.attention_data import FloatArray

STEPS, CLOSE = 1000, 1e-10  # at most, and the relative fall of the value that ends them
FEASIBLE = 50  # steps within which every margin is positive, or the search is given up
LONGEST, SHORTEST = 2.0, 1e-9  # of the steps that are tried, each half of the one before


@dataclass(frozen=True)
class BalancedFactors:
    r"""Balanced factors, :math:`K^\top K=Q^\top Q`, whose smallest margin is one.

    Attributes:
        K: ``(d_x, m)``.
        Q: ``(d_z, m)``.
        value: :math:`\|KQ^\top\|_*`; infinite where some margin is not positive.
        slope: how far the last step went, relative to the factors: zero at a stationary point.
    """

    K: FloatArray
    Q: FloatArray
    value: float
    slope: float = np.inf

    @property
    def W(self) -> FloatArray:
        return self.K @ self.Q.T


def nearest_factors(margins: Margins, W: FloatArray, width: int) -> BalancedFactors:
    """Factors of the nearest weights of this rank."""
    U, sizes, Vt = np.linalg.svd(W)
    root = np.sqrt(sizes[:width])
    return _balanced(margins, U[:, :width] * root, Vt[:width].T * root)


def stationary_points(
    programmes: Sequence[Margins], starts: Sequence[BalancedFactors]
) -> list[BalancedFactors]:
    """A stationary point of every programme, from its own factors; of infinite value where none of
    the steps leads to weights that meet the margins.

    1. Programmes whose margins are not all positive after :data:`FEASIBLE` steps are given up.
    2. The margins of the others are linearised at their factors, and solved in one batch.
    3. Factors take the step to the solution that lowers their value.
    4. Programmes whose value hardly falls have ended.
    """
    points, running = list(starts), list(range(len(starts)))
    for step in range(STEPS):
        if step == FEASIBLE:  # 1. without positive margins there is nothing to lower
            running = [k for k in running if np.isfinite(points[k].value)]
        if not running:
            break
        # 2. one Frobenius programme each
        solutions = max_margin_batch([_linearise(programmes[k], points[k]) for k in running])
        still_running = []
        for k, solution in zip(running, solutions, strict=True):
            previous = points[k]
            if solution.has_weights:  # 3. the step may be shorter, or longer
                points[k] = _step_from(programmes[k], previous, solution.W.reshape(-1))
            # 4. the value of points that are not yet feasible is infinite: they go on
            if not previous.value - points[k].value <= CLOSE * points[k].value:
                still_running.append(k)
        running = still_running
    return points


def _linearise(margins: Margins, point: BalancedFactors) -> Margins:
    """The programme of Y, whose entries stand in one row."""
    delta, z = margins.differences, margins.queries[margins.sequence]
    left = delta[:, :, None] * (z @ point.Q)[:, None, :]
    right = z[:, :, None] * (delta @ point.K)[:, None, :]
    rows = np.concatenate([left.reshape(margins.m, -1), right.reshape(margins.m, -1)], axis=1)
    return replace(margins, differences=rows, queries=np.ones((margins.n, 1)))


def _step_from(margins: Margins, point: BalancedFactors, Y: FloatArray) -> BalancedFactors:
    """The factors after the first of the steps that lowers the value, or that raises the smallest
    margin where that is not positive.
    """
    is_feasible = np.isfinite(point.value)
    X = np.concatenate([point.K.reshape(-1), point.Q.reshape(-1)])
    step = Y - 0.5 * X if is_feasible else Y
    slope = 2.0 * float(np.linalg.norm(step) / np.linalg.norm(X))
    length, least = LONGEST, _smallest_margin(margins, point.K, point.Q)
    while length > SHORTEST:
        K, Q = np.split(X + length * step, [point.K.size])
        K, Q = K.reshape(point.K.shape), Q.reshape(point.Q.shape)
        new = _balanced(margins, K, Q, slope)
        if new.value < point.value if is_feasible else _smallest_margin(margins, K, Q) > least:
            return new
        length /= 2.0
    return replace(point, slope=slope)


def _smallest_margin(margins: Margins, K: FloatArray, Q: FloatArray) -> float:
    values = np.sum((margins.differences @ K) * (margins.queries @ Q)[margins.sequence], axis=1)
    return float(np.min(values / margins.rhs))


def _balanced(
    margins: Margins, K: FloatArray, Q: FloatArray, slope: float = np.inf
) -> BalancedFactors:
    """The product balanced between the factors, its smallest margin one where it is positive."""
    (left_basis, left), (right_basis, right) = np.linalg.qr(K), np.linalg.qr(Q)
    U, sizes, Vt = np.linalg.svd(left @ right.T)
    K, Q = left_basis @ U * np.sqrt(sizes), right_basis @ Vt.T * np.sqrt(sizes)
    least = _smallest_margin(margins, K, Q)
    if least <= 0:
        return BalancedFactors(K, Q, np.inf, slope)
    return BalancedFactors(
        K / np.sqrt(least), Q / np.sqrt(least), float(sizes.sum()) / least, slope
    )
