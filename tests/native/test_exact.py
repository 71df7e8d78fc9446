"""Sums with twice the digits, against fractions, and what they are handed."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from attsvm.margins import Margins
from attsvm.solvers.proofs import ROUNDING, sharp_adjoint, sharp_dot, sharp_values


def exact(x: float) -> Fraction:
    return Fraction(float(x))


def test_margins_and_adjoint_where_everything_cancels() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        D, Z = rng.standard_normal((5, 3)), rng.standard_normal((2, 4))
        offsets = np.array([0, 3, 5])
        W = rng.standard_normal((3, 4)) * 10.0 ** rng.uniform(0, 14, (3, 4))
        D[1] = -D[0]  # opposite rows: their adjoint is what is left
        token = np.zeros(5, dtype=np.int64)
        margins = Margins(D, Z, offsets, np.ones(5), token, np.zeros(2, dtype=np.int64))
        high, low = sharp_values(margins.differences, margins.queries, margins.offsets, W)
        owner = [0, 0, 0, 1, 1]
        for c in range(5):
            terms = [
                exact(D[c, a]) * exact(W[a, k]) * exact(Z[owner[c], k])
                for a in range(3)
                for k in range(4)
            ]
            error = abs(exact(high[c]) + exact(low[c]) - sum(terms))
            assert error <= Fraction(ROUNDING) * sum(abs(t) for t in terms)
        dual = np.array([1e15, 1e15 + 1.0, 1.0, 3.0, 0.0])
        parts = sharp_adjoint(D, Z, offsets, dual)
        for a in range(3):
            for k in range(4):
                terms = [exact(dual[c]) * exact(D[c, a]) * exact(Z[owner[c], k]) for c in range(5)]
                size = sum(abs(t) for t in terms)
                error = abs(exact(parts[0][a, k]) + exact(parts[1][a, k]) - sum(terms))
                assert error <= Fraction(ROUNDING) * size
                assert abs(exact(parts[2][a, k]) - size) <= Fraction(1e-14) * size


def test_dot() -> None:
    x, y = np.array([1e16, 1.0, -1e16]), np.array([1.0, 1e-3, 1.0])
    high, low = sharp_dot(x, y)
    assert exact(high) + exact(low) == exact(1e-3)


@pytest.mark.parametrize("offsets", [[0, 2, 9], [1, 3, 5], [0, 4, 3], [0, 5]])
def test_rows_that_do_not_fit_are_refused(offsets: list[int]) -> None:
    """An exception, never foreign memory."""
    D, Z = np.ones((5, 3)), np.ones((2, 4))
    with pytest.raises(TypeError):
        sharp_adjoint(D, Z, np.array(offsets), np.ones(5))
    with pytest.raises(TypeError):
        sharp_adjoint(D, Z, np.array([0, 2, 5]), np.ones(4))
