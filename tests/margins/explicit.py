"""Programmes written out by loops, one d x d matrix per constraint, and an independent QP for
them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.optimize import nnls

from attsvm.data import AttentionData
from attsvm.margins import Margins


def ragged_data(
    rng: np.random.Generator, n: int, longest: int, d_x: int, d_z: int | None
) -> AttentionData:
    """Gaussian tokens with holes in the mask, not only at the end."""
    X = rng.standard_normal((n, longest, d_x))
    mask = rng.random((n, longest)) < 0.7
    mask[np.arange(n), rng.integers(longest, size=n)] = True
    Y = np.where(rng.random(n) < 0.5, 1.0, -1.0)
    return AttentionData(X, Y, None if d_z is None else rng.standard_normal((n, d_z)), mask)


def visible_choice(rng: np.random.Generator, mask: np.ndarray) -> np.ndarray:
    return np.array([rng.choice(np.flatnonzero(row)) for row in mask])


def matrices(margins: Margins) -> np.ndarray:
    """``(m, d_x, d_z)`` by the definition of a row, one at a time."""
    out = np.zeros((margins.m, *margins.shape))
    for i in range(margins.n):
        for c in range(margins.offsets[i], margins.offsets[i + 1]):
            out[c] = np.outer(margins.differences[c], margins.queries[i])
    return out


def same(one: Margins, other: Margins) -> None:
    """The same programme, to the last bit."""
    for name in ("differences", "queries", "offsets", "rhs", "token", "selected", "equalities"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name)
    assert (one.equality is None) == (other.equality is None)


def same_rows(
    margins: Margins, A: list[Any], b: list[float], equal: list[bool] | None = None
) -> None:
    """The programme holds exactly these rows, in this order."""
    expected = np.array(A).reshape(-1, *margins.shape)
    assert margins.m == len(expected)
    np.testing.assert_allclose(matrices(margins), expected, atol=1e-12)
    np.testing.assert_array_equal(margins.rhs, np.array(b))
    np.testing.assert_array_equal(
        margins.equalities, np.zeros(len(b), bool) if equal is None else np.array(equal)
    )
    assert margins.token.shape == (margins.m,)
    assert margins.selected.shape == (margins.n,)


def least_distance(margins: Margins) -> np.ndarray | None:
    """The Frobenius solution by one NNLS call (Lawson and Hanson), equalities as two inequalities;
    ``None`` when infeasible.
    """
    if not margins.rhs.any():
        return np.zeros(margins.shape)  # and nnls crashes without columns
    A, equal = matrices(margins).reshape(margins.m, -1), margins.equalities
    B, b = np.vstack([A, -A[equal]]), np.concatenate([margins.rhs, -margins.rhs[equal]])
    E = np.vstack([B.T, b])
    f = np.zeros(len(E))
    f[-1] = 1.0
    u, _ = nnls(E, f, maxiter=100 * E.shape[1])
    r = E @ u - f
    return (
        None if np.linalg.norm(r) < 1e-9 else np.asarray((-r[:-1] / r[-1]).reshape(margins.shape))
    )
