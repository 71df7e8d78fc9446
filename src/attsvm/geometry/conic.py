r"""Norms as conic programmes, for solvers of others:
:math:`\|W\|=\min_u\{c^\top u:\ M_k\operatorname{vec}(W)+N_ku\in K_k\}`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

Sparse = Any  # anything that scipy.sparse.csc_matrix takes


@dataclass(frozen=True, eq=False)
class Cone:
    """A condition ``of_weights @ vec(W) + of_extra @ u in K``, weights in row-major order.

    Attributes:
        kind: ``zero`` and ``nonnegative`` entry by entry; ``second order``: the first entry is at
            least the Euclidean length of the others; ``power``: triples with
            ``x^a y^(1-a) >= |z|``, ``x, y >= 0``; ``semidefinite``: the upper triangle of a
            symmetric matrix, column by column, entries off the diagonal times the root of two.
        of_weights: ``(rows, d_x d_z)``.
        of_extra: ``(rows, extra)``.
        exponent: ``a``.
    """

    kind: Literal["zero", "nonnegative", "second order", "power", "semidefinite"]
    of_weights: Sparse
    of_extra: Sparse
    exponent: float = 0.5


@dataclass(frozen=True, eq=False)
class Cones:
    """A norm as a conic programme: ``cost`` ``(extra,)`` of the further variables ``u``, and their
    conditions.
    """

    cost: np.ndarray[Any, Any]
    blocks: tuple[Cone, ...]


def of_entries(shape: tuple[int, int], p: float) -> Cones:
    """The entrywise norm: ``t`` and, for finite p, ``r``, ``|w_i| <= r_i^(1/p) t^(1-1/p)`` with
    ``sum r = t``.
    """
    from scipy.sparse import csc_matrix, eye_array, hstack, kron

    k = shape[0] * shape[1]
    one, identity, none = np.ones((k, 1)), eye_array(k, format="csc"), csc_matrix((1, k))
    if math.isinf(p):
        return Cones(np.ones(1), _absolute(identity, one))
    cost = np.append(1.0, np.zeros(k))
    whole = Cone("zero", none, np.append(1.0, -np.ones(k))[None])
    if p == 1.0:
        return Cones(cost, (whole, *_absolute(identity, hstack([0.0 * one, identity]))))
    first, second, third = (np.eye(3)[:, [j]] for j in range(3))
    extra = hstack([np.tile(second, (k, 1)), kron(identity, first)])
    return Cones(cost, (whole, Cone("power", kron(identity, third), extra, 1.0 / p)))


def _absolute(identity: Sparse, bound: Sparse) -> tuple[Cone, ...]:
    """``|w| <= bound @ u``."""
    return tuple(Cone("nonnegative", sign * identity, bound) for sign in (1.0, -1.0))


def of_singular_values(shape: tuple[int, int], p: float) -> Cones:
    """Nuclear: ``[[U, W], [W', V]] >= 0`` at cost ``(tr U + tr V) / 2``. Spectral: the same with
    ``t`` times the identity.
    """
    from scipy.sparse import csc_matrix

    rows, columns = shape
    size, k = rows + columns, rows * columns
    above, column = np.triu_indices(size)
    order = np.lexsort((above, column))
    above, column = above[order], column[order]
    triangle = len(above)
    crossing = (above < rows) & (column >= rows)
    free, at, diagonal = np.flatnonzero(~crossing), np.flatnonzero(crossing), above == column
    entry = above[at] * columns + (column[at] - rows)
    weights = csc_matrix((np.full(len(at), math.sqrt(2.0)), (at, entry)), shape=(triangle, k))
    if p == 1.0:
        factor = np.where(diagonal[free], 1.0, math.sqrt(2.0))
        rest = csc_matrix((factor, (free, np.arange(len(free)))), shape=(triangle, len(free)))
        return Cones(0.5 * diagonal[free], (Cone("semidefinite", weights, rest),))
    rest = csc_matrix(diagonal[:, None].astype(np.float64))
    return Cones(np.ones(1), (Cone("semidefinite", weights, rest),))


def of_rows(shape: tuple[int, int], p: float) -> Cones:
    """The sum (p = 1) or the largest (p = inf) of the lengths of the rows."""
    rows, columns = shape
    blocks = []
    for i in range(rows):
        weights = np.zeros((1 + columns, rows * columns))
        weights[1:, i * columns : (i + 1) * columns] = np.eye(columns)
        extra = np.zeros((1 + columns, rows if p == 1.0 else 1))
        extra[0, i if p == 1.0 else 0] = 1.0
        blocks.append(Cone("second order", weights, extra))
    return Cones(np.ones(rows if p == 1.0 else 1), tuple(blocks))
