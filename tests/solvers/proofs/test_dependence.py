"""Exact ranks of floating-point rows, against fractions."""

from __future__ import annotations

import numpy as np
import sympy
from attsvm.solvers.proofs.dependence import rank, spanned


def exact_rank(rows: np.ndarray) -> int:
    return int(
        sympy.Matrix(
            [[sympy.Rational(*float(x).as_integer_ratio()) for x in row] for row in rows]
        ).rank()
    )


def test_ranks_are_those_of_fractions() -> None:
    rng = np.random.default_rng(0)
    for k in range(30):
        D = rng.standard_normal((5, 3)) * 10.0 ** rng.uniform(-20, 20, (5, 1))
        Z = rng.standard_normal((2, 2))
        if k % 3 == 0:
            D[3] = 2.0 * D[0] - 4.0 * D[1]  # rounds: independent in exact arithmetic, or not
        if k % 3 == 1:
            D[2] = -D[0]
        owner = rng.integers(2, size=5)
        rows = (D[:, :, None] * np.ones((1, 1, 2))).reshape(5, 6)
        written = np.array(
            [
                [
                    sympy.Rational(*float(d).as_integer_ratio())
                    * sympy.Rational(*float(z).as_integer_ratio())
                    for d in D[c]
                    for z in Z[owner[c]]
                ]
                for c in range(5)
            ]
        )
        assert written.shape == rows.shape
        assert rank(D, Z, owner) == sympy.Matrix(written).rank()


def test_a_last_digit_makes_rows_independent() -> None:
    one = np.ones((1, 1))
    rows = np.array([[1.0, 0.1], [-3.0, -0.3]])  # 0.3 is not three times 0.1
    assert exact_rank(rows) == 2
    assert rank(rows, one, np.zeros(2, dtype=np.int64)) == 2
    rows[1, 1] = -3.0 * 0.125
    rows[0, 1] = 0.125
    assert rank(rows, one, np.zeros(2, dtype=np.int64)) == 1


def test_columns_that_span_all_others() -> None:
    one, owner = np.ones((1, 1)), np.zeros(4, dtype=np.int64)
    base = np.random.default_rng(1).standard_normal((4, 2))
    rows = np.column_stack([base, base[:, 0] * 4.0, -base[:, 1]])
    assert spanned(rows, one, owner, np.array([0, 1]))
    assert spanned(rows, one, owner, np.array([1, 2]))
    assert not spanned(rows, one, owner, np.array([0]))
    assert not spanned(rows, one, owner, np.array([0, 2]))  # depend on each other
    rows[2, 3] = np.nextafter(rows[2, 3], 1.0)
    assert not spanned(rows, one, owner, np.array([0, 1]))
