"""Axioms of a norm and its dual, on NumPy and torch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from attsvm.errors import InputError
from attsvm.geometry import Frobenius, Norm, norm_names, parse_norm

NORMS = [Frobenius()]
finite = st.floats(-1e3, 1e3).map(lambda x: 0.0 if abs(x) < 1e-100 else x)
matrices = arrays(np.float64, st.tuples(st.integers(1, 3), st.integers(1, 4), st.integers(1, 4)), elements=finite)


@pytest.fixture(params=NORMS, ids=lambda norm: norm.name)
def norm(request: pytest.FixtureRequest) -> Norm:
    return request.param


@pytest.mark.parametrize("norm", NORMS, ids=lambda norm: norm.name)
@given(G=matrices, seed=st.integers(0, 1000))
def test_hoelder_with_equality_at_the_steepest_direction(norm: Norm, G: np.ndarray, seed: int) -> None:
    W = np.random.default_rng(seed).standard_normal(G.shape)
    inner = np.sum(W * G, axis=(-2, -1))
    bound = norm.value(W) * norm.dual_value(G)
    assert (np.abs(inner) <= bound * (1 + 1e-12) + 1e-12).all()
    D = norm.steepest(G)
    np.testing.assert_allclose(np.sum(D * G, axis=(-2, -1)), norm.dual_value(G), rtol=1e-12)
    size = norm.value(D)
    np.testing.assert_allclose(size, np.where(norm.dual_value(G) > 0, 1.0, 0.0), rtol=1e-12)


@pytest.mark.parametrize("norm", NORMS, ids=lambda norm: norm.name)
@given(W=matrices, V=matrices, t=st.floats(-10, 10))
def test_homogeneous_and_subadditive(norm: Norm, W: np.ndarray, V: np.ndarray, t: float) -> None:
    for value in (norm.value, norm.dual_value):
        np.testing.assert_allclose(value(t * W), abs(t) * value(W), rtol=1e-12, atol=1e-200)
        if V.shape == W.shape:
            assert (value(W + V) <= (value(W) + value(V)) * (1 + 1e-12)).all()


def test_torch_gives_the_numbers_of_numpy(norm: Norm) -> None:
    G = np.random.default_rng(0).standard_normal((5, 4, 3))
    tensor = torch.from_numpy(G)
    for function in (norm.value, norm.dual_value, norm.steepest):
        result = function(tensor)
        assert isinstance(result, torch.Tensor)
        assert result.dtype == torch.float64
        np.testing.assert_allclose(result.numpy(), function(G), rtol=1e-14)


def test_torch_gradient_of_the_dual_norm_is_the_steepest_direction(norm: Norm) -> None:
    G = torch.from_numpy(np.random.default_rng(1).standard_normal((4, 3))).requires_grad_()
    (gradient,) = torch.autograd.grad(norm.dual_value(G), G)
    np.testing.assert_allclose(gradient.numpy(), norm.steepest(G.detach()).numpy(), atol=1e-12)


@pytest.mark.parametrize("scale", [1e200, 1e-200, 1e300, 5e-324])
def test_no_scale_overflows_or_vanishes(norm: Norm, scale: float) -> None:
    G = np.full((2, 2), scale)
    assert norm.value(G) == pytest.approx(2 * scale, rel=1e-15)
    np.testing.assert_allclose(norm.steepest(G), 0.5, rtol=1e-15)


def test_zero(norm: Norm) -> None:
    Z = np.zeros((3, 2, 4))
    assert (norm.value(Z) == 0).all()
    assert (norm.dual_value(Z) == 0).all()
    assert (norm.steepest(Z) == 0).all()


def test_frobenius_does_not_see_rotations() -> None:
    rng = np.random.default_rng(3)
    W = rng.standard_normal((5, 4))
    U, V = np.linalg.qr(rng.standard_normal((5, 5)))[0], np.linalg.qr(rng.standard_normal((4, 4)))[0]
    assert Frobenius().value(U @ W @ V) == pytest.approx(Frobenius().value(W), rel=1e-13)
    np.testing.assert_allclose(Frobenius().steepest(U @ W @ V), U @ Frobenius().steepest(W) @ V, atol=1e-14)
    assert Frobenius().value(W) == pytest.approx(np.linalg.norm(W), rel=1e-14)


def test_names_lead_back_to_the_norm() -> None:
    for name in norm_names():
        assert parse_norm(f" {name.upper()} ").name == name
    assert parse_norm("fro") == Frobenius()
    assert hash(parse_norm("fro")) == hash(Frobenius())
    with pytest.raises(InputError, match=r"unknown norm 'manhattan'; known norms: .*fro"):
        parse_norm("manhattan")
