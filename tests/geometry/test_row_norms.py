"""The norms of rows: what they are for one row and for one column, what they do not see, and the
derivative of the proximal map.
"""

from __future__ import annotations

from math import inf

import numpy as np
import pytest

from attsvm.geometry import Frobenius, Lp, MaxRow, Norm, Rows

BOTH = pytest.mark.parametrize("norm", [Rows(), MaxRow()], ids=repr)


def gaussian(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape)


def test_values() -> None:
    W = np.array([[3.0, 4.0], [0.0, 0.0], [-5.0, 12.0]])
    assert Rows().value(W) == 18.0
    assert MaxRow().value(W) == 13.0
    np.testing.assert_array_equal(Rows().steepest(W)[:2], 0.0)
    np.testing.assert_allclose(np.linalg.norm(MaxRow().steepest(W), axis=1), [1.0, 0.0, 1.0])


@BOTH
def test_one_row_is_euclidean_and_one_column_a_vector(norm: Norm) -> None:
    row, column = gaussian(1, 5), gaussian(5, 1)
    vector = Lp(1.0 if norm == Rows() else inf)
    for one, other, W in ((norm, Frobenius(), row), (norm, vector, column)):
        np.testing.assert_allclose(one.value(W), other.value(W), rtol=1e-15)
        np.testing.assert_allclose(one.steepest(W), other.steepest(W), rtol=1e-14)
        np.testing.assert_allclose(one.prox(W, 0.7), other.prox(W, 0.7), rtol=1e-12, atol=1e-15)


@BOTH
def test_rotations_of_the_queries_and_orders_of_the_rows_change_nothing(norm: Norm) -> None:
    W, turn = gaussian(4, 3), np.linalg.qr(gaussian(3, 3))[0]
    assert norm.invariant == (False, True)
    assert norm.value(W @ turn) == pytest.approx(norm.value(W), rel=1e-14)
    assert norm.value(W[::-1]) == pytest.approx(norm.value(W), rel=1e-15)
    np.testing.assert_allclose(norm.prox(W @ turn, 0.5), norm.prox(W, 0.5) @ turn, atol=1e-14)


@BOTH
def test_no_token_moves_a_logit_farther_than_the_reach(norm: Norm) -> None:
    tokens, queries = gaussian(3, 5, 4), gaussian(3, 2)
    own = max(
        float(norm.dual_value(np.outer(x, z)))
        for rows, z in zip(tokens, queries, strict=True)
        for x in rows
    )
    assert Norm.logit_reach(norm, tokens, queries) == pytest.approx(own, rel=1e-14)
    assert own <= norm.logit_reach(tokens, queries) * (1 + 1e-14)
