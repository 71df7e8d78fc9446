"""The finite component: what meets the equalities with the least norm, or proves that nothing does,
and its part in trained weights.
"""

from __future__ import annotations

import numpy as np
import pytest
from explicit import matrices, ragged_data, visible_choice
from hypothesis import given
from hypothesis import strategies as st

from attsvm.datasets.attention_data import AttentionData
from attsvm.margins import finite_component, multi_token_margins, ratio_margins, recombine, split


@given(st.integers(0, 10_000))
def test_the_finite_component_is_the_pseudo_inverse(seed: int) -> None:
    rng = np.random.default_rng(seed)
    data = ragged_data(rng, 4, 5, 6, 4)
    one = np.arange(5) == visible_choice(rng, data.mask)[:, None]
    sets = data.mask & (rng.random(data.mask.shape) < 0.5) | one
    s = rng.dirichlet(np.ones(5), 4) + 1e-3
    margins, found = ratio_margins(data, sets, s), finite_component(data, sets, s)
    A = matrices(margins).reshape(margins.m, 24)
    expected = np.linalg.pinv(A, rcond=1e-12) @ margins.rhs if margins.m else np.zeros(24)
    assert found.consistent
    close = 1e-9 * max(1.0, np.abs(expected).max())
    np.testing.assert_allclose(found.W.reshape(-1), expected, atol=close)
    assert found.norm == pytest.approx(np.linalg.norm(expected), rel=1e-9)
    assert max(found.residual, found.distance) <= 1e-9
    nothing = finite_component(data, one, s)
    assert (nothing.W.any(), nothing.consistent, nothing.residual) == (False, True, 0.0)
    # of any weights, the part that the equalities see is the projection on their span
    W = rng.standard_normal(margins.shape)
    inside, outside = split(W, multi_token_margins(data, sets))
    np.testing.assert_allclose(inside + outside, W, atol=1e-14)
    projection = np.linalg.pinv(A, rcond=1e-12) @ A if margins.m else np.zeros((24, 24))
    np.testing.assert_allclose(inside.reshape(-1), projection @ W.reshape(-1), atol=1e-10)


def test_contradictory_ratios_come_with_a_witness() -> None:
    X = np.repeat(np.array([[[0.0, 0.0], [1.0, 2.0]]]), 2, axis=0)
    data = AttentionData(X, np.ones(2), np.ones((2, 1)))
    found = finite_component(data, np.ones((2, 2), bool), [[0.5, 0.5], [0.9, 0.1]])
    assert not found.consistent
    assert found.distance <= 1e-14
    assert found.margins.rhs @ found.dual > 0
    assert np.abs(found.margins.adjoint(found.dual)).max() <= 1e-14


def test_what_rounding_contradicts_has_no_witness() -> None:
    """Ratios that weights can meet, held to no tolerance at all."""
    without = 0
    for seed in range(8):
        rng = np.random.default_rng(seed)
        data = ragged_data(rng, 4, 5, 6, 4)
        one = np.arange(5) == visible_choice(rng, data.mask)[:, None]
        sets = data.mask & (rng.random(data.mask.shape) < 0.5) | one
        found = finite_component(data, sets, rng.dirichlet(np.ones(5), 4) + 1e-3, tol=0.0)
        assert found.distance > 0.1 or found.consistent
        without += found.distance == np.inf
    assert without  # nothing of the ratios is left to prove anything with


def test_recombination() -> None:
    rng = np.random.default_rng(0)
    fin, mm = np.zeros((2, 3)), np.zeros((2, 3))
    fin[0], mm[1] = rng.standard_normal(3), rng.standard_normal(3)
    W = fin + 7.0 * mm
    found = recombine(W, fin, mm)
    assert found.scale == pytest.approx(7.0, rel=1e-14)
    assert found.cosine == pytest.approx(1.0, abs=1e-15)
    np.testing.assert_allclose(found.W, W, atol=1e-13)
    assert recombine(W, fin, np.zeros((2, 3))).scale == 0.0
    assert np.isnan(recombine(np.zeros((2, 3)), fin, mm).cosine)
