r"""From a nearly optimal point of the linear programmes :math:`p=1,\infty` to the exact one.

Which rows have positive multipliers, and which entries of the weights are free to move, is known
long before the values are. With
:math:`K` the rows on the free entries (for :math:`p=\infty` one more column: all entries at their
bound, moving together), the solution solves :math:`K w=b` and its multipliers
:math:`K^\top\lambda=s`, where :math:`s` is the sign of each weight (:math:`p=1`), or zero for free
entries and one for the last column (:math:`p=\infty`): the basis step of the simplex method. Both
are solved for the least change, so a guess with too many rows or entries at a degenerate vertex
does no harm; one that is not square elsewhere is not yet the basis.
"""

from __future__ import annotations

import numpy as np

from attsvm.data import FloatArray
from attsvm.solvers.programme.programme import Programme

_LARGEST = 1 << 24  # entries of the system
_AT_BOUND = 1e-12
_DEPENDENT = 1e-11
_SQUARE, _FEW = 0.02, 4  # share of rows, and number of rows, by which a basis may be off


def vertex(
    p: Programme, W: FloatArray, dual: FloatArray, exponent: float
) -> tuple[FloatArray, FloatArray] | None:
    """Weights and multipliers that solve both systems, near ``W`` and ``dual``, whose pull has dual
    norm one.

    ``None`` when the systems are too large or too far from square to be a basis.
    """
    from scipy.linalg import lstsq

    rows = np.flatnonzero(dual)
    size = np.abs(W)
    bound = float(size.max())
    free = size > 0.0 if exponent == 1.0 else size < (1.0 - _AT_BOUND) * bound
    a, e = np.nonzero(free)
    if (
        not 0 < len(rows) * (len(a) + 1) <= _LARGEST
        or abs(len(rows) - len(a)) > _SQUARE * len(rows) + _FEW
    ):
        return None
    D, Z = p.D[rows], p.Z[p.sequence[rows]]
    K = D[:, a] * Z[:, e]
    if exponent == 1.0:
        wanted = np.sign(W[a, e])
    else:
        together = p.values(np.where(free, 0.0, np.sign(W)))[rows]
        K = np.column_stack([K, together])
        wanted = np.append(np.zeros(len(a)), 1.0)
    change = lstsq(K, (p.b - p.values(W))[rows], cond=_DEPENDENT, lapack_driver="gelsy")[0]
    moved, pulled = W.copy(), dual.copy()
    moved[a, e] += change[: len(a)]
    if exponent != 1.0:
        moved[~free] += change[-1] * np.sign(W[~free])
    pulled[rows] += lstsq(K.T, wanted - K.T @ dual[rows], cond=_DEPENDENT, lapack_driver="gelsy")[0]
    return moved, np.maximum(pulled, 0.0)
