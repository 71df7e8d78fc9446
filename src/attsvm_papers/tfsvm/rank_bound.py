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

from attsvm import Margins, max_margin
from attsvm.data import FloatArray

STEPS, CLOSE = 1000, 1e-10  # at most, and the relative fall of the value that ends them
FEASIBLE = 50  # steps within which every margin is positive, or the search is given up
LONGEST, SHORTEST = 2.0, 1e-9  # of the steps that are tried, each half of the one before


@dataclass(frozen=True)
class Factors:
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


def factors(margins: Margins, W: FloatArray, width: int) -> Factors:
    """Those of the nearest weights of this rank."""
    U, sizes, Vt = np.linalg.svd(W)
    root = np.sqrt(sizes[:width])
    return _scaled(margins, U[:, :width] * root, Vt[:width].T * root)


def stationary(programmes: Sequence[Margins], starts: Sequence[Factors]) -> list[Factors]:
    """A stationary point of every programme, from its own factors; of infinite value where none of
    the steps leads to weights that meet the margins.
    """
    found, going = list(starts), list(range(len(starts)))
    for step in range(STEPS):
        if step == FEASIBLE:
            going = [k for k in going if np.isfinite(found[k].value)]
        if not going:
            break
        solved = max_margin([_linearised(programmes[k], found[k]) for k in going])
        kept = []
        for k, solution in zip(going, solved, strict=True):
            before = found[k]
            if solution.has_weights:
                found[k] = _moved(programmes[k], before, solution.W.reshape(-1))
            if not before.value - found[k].value <= CLOSE * found[k].value:  # or not yet feasible
                kept.append(k)
        going = kept
    return found


def _linearised(margins: Margins, at: Factors) -> Margins:
    """The programme of Y, whose entries stand in one row."""
    delta, z = margins.differences, margins.queries[margins.sequence]
    left = delta[:, :, None] * (z @ at.Q)[:, None, :]
    right = z[:, :, None] * (delta @ at.K)[:, None, :]
    rows = np.concatenate([left.reshape(margins.m, -1), right.reshape(margins.m, -1)], axis=1)
    return replace(margins, differences=rows, queries=np.ones((margins.n, 1)))


def _moved(margins: Margins, at: Factors, Y: FloatArray) -> Factors:
    """The first of the steps that lowers the value, or that raises the smallest margin where that
    is not positive.
    """
    met = np.isfinite(at.value)
    X = np.concatenate([at.K.reshape(-1), at.Q.reshape(-1)])
    step = Y - 0.5 * X if met else Y
    slope = 2.0 * float(np.linalg.norm(step) / np.linalg.norm(X))
    length, least = LONGEST, _least(margins, at.K, at.Q)
    while length > SHORTEST:
        K, Q = np.split(X + length * step, [at.K.size])
        K, Q = K.reshape(at.K.shape), Q.reshape(at.Q.shape)
        new = _scaled(margins, K, Q, slope)
        if new.value < at.value if met else _least(margins, K, Q) > least:
            return new
        length /= 2.0
    return replace(at, slope=slope)


def _least(margins: Margins, K: FloatArray, Q: FloatArray) -> float:
    moved = np.sum((margins.differences @ K) * (margins.queries @ Q)[margins.sequence], axis=1)
    return float(np.min(moved / margins.rhs))


def _scaled(margins: Margins, K: FloatArray, Q: FloatArray, slope: float = np.inf) -> Factors:
    """The product balanced between the factors, its smallest margin one where it is positive."""
    (own, left), (other, right) = np.linalg.qr(K), np.linalg.qr(Q)
    U, sizes, Vt = np.linalg.svd(left @ right.T)
    K, Q = own @ U * np.sqrt(sizes), other @ Vt.T * np.sqrt(sizes)
    least = _least(margins, K, Q)
    if least <= 0:
        return Factors(K, Q, np.inf, slope)
    return Factors(K / np.sqrt(least), Q / np.sqrt(least), float(sizes.sum()) / least, slope)
