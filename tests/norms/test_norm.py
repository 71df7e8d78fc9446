"""What every norm promises: axioms, duality, Moreau, the same numbers on NumPy and torch, no scale
that breaks it.
"""

from __future__ import annotations

import pickle
from math import inf

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from attsvm.base.errors import InputError
from attsvm.norms import (
    Frobenius,
    Lp,
    MaxRow,
    Norm,
    Nuclear,
    PowerPotential,
    Rows,
    Schatten,
    Spectral,
)

EXPONENTS = [1, 1.0001, 1.1, 1.5, 1.75, 2, 3, 200, inf]
NORMS: list[Norm] = [
    Frobenius(),
    Nuclear(),
    Spectral(),
    *map(Lp, EXPONENTS),
    *map(Schatten, [1.0001, 1.3, 2, 4, 200]),
    Rows(),
    MaxRow(),
]
finite = st.floats(-1e3, 1e3).map(lambda x: 0.0 if abs(x) < 1e-100 else x)
matrices = arrays(
    np.float64, st.tuples(st.integers(1, 3), st.integers(1, 4), st.integers(1, 4)), elements=finite
)
every_norm = pytest.mark.parametrize("norm", NORMS, ids=repr)


def inner(A: np.ndarray, B: np.ndarray) -> np.ndarray:
    return np.sum(A * B, axis=(-2, -1))


def gaussian(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape)


@every_norm
@settings(max_examples=10)
@given(G=matrices, seed=st.integers(0, 1000))
def test_hoelder_with_equality_at_the_steepest_direction(
    norm: Norm, G: np.ndarray, seed: int
) -> None:
    W = gaussian(*G.shape, seed=seed)
    bound = norm.value(W) * norm.dual_value(G)
    assert (np.abs(inner(W, G)) <= bound * (1 + 1e-12) + 1e-12).all()
    D = norm.steepest(G)
    np.testing.assert_allclose(inner(D, G), norm.dual_value(G), rtol=1e-12)
    some = np.where(norm.dual_value(G) > 0, 1.0, 0.0)
    np.testing.assert_allclose(norm.value(D), some, rtol=1e-12)
    g = norm.subgradient(G)
    np.testing.assert_allclose(inner(g, G), norm.value(G), rtol=1e-12)
    np.testing.assert_allclose(norm.dual_value(g), some, rtol=1e-12)


@every_norm
def test_divergence_of_directions(norm: Norm) -> None:
    V, W = gaussian(2, 6, 4, 5)
    if norm.p in (1.0, inf):
        with pytest.raises(InputError, match="not strictly convex"):
            norm.direction_divergence(V, W)
        return
    divergence, found = norm.direction_divergence, norm.direction_divergence(V, W)
    unit = V / norm.value(V)[:, None, None]
    close = {"rtol": 1e-10, "atol": 1e-14}  # the atol: p = 1.0001 cancels
    np.testing.assert_allclose(found, 1 - inner(norm.subgradient(W), unit), **close)
    assert ((found >= 0) & (found <= 2)).all()
    np.testing.assert_allclose(divergence(1e-200 * V, 1e200 * W), found, **close)
    np.testing.assert_allclose(divergence(V, -3.0 * V), 2.0, rtol=1e-12)
    exact = isinstance(norm, (Lp, Frobenius))
    assert (divergence(V, 7.0 * V) < (1e-28 if exact else 1e-13)).all()
    assert np.isnan(divergence(V, 0.0 * W)).all()
    assert np.isnan(divergence(0.0 * V, W)).all()
    one = np.broadcast_to(V[0], W.shape)
    np.testing.assert_allclose(divergence(V[0], W), divergence(one, W), rtol=1e-12)
    tensors = divergence(torch.tensor(V), torch.tensor(W))
    np.testing.assert_allclose(tensors.numpy(), found, **close)
    if isinstance(norm, Lp):
        np.testing.assert_array_equal(PowerPotential(norm.p).direction_divergence(V, W), found)


@every_norm
@settings(max_examples=10)
@given(W=matrices, radius=st.floats(1e-3, 1e3))
def test_projection_meets_its_variational_inequality(
    norm: Norm, W: np.ndarray, radius: float
) -> None:
    P = norm.project(W, radius)
    assert (norm.value(P) <= radius * (1 + 4e-15)).all()
    # max over the ball of <W - P, V - P> is radius ||W - P||_* - <W - P, P>, and the projection
    # makes it zero
    slack = radius * norm.dual_value(W - P) - inner(W - P, P)
    assert (np.abs(slack) <= 1e-13 * norm.dual_value(W) * radius).all()
    inside = norm.value(W) <= radius * (1 - 1e-14)
    np.testing.assert_array_equal(P[inside], W[inside])


@every_norm
@settings(max_examples=10)
@given(W=matrices, t=st.floats(1e-3, 1e3))
def test_the_residual_of_a_prox_is_a_subgradient(norm: Norm, W: np.ndarray, t: float) -> None:
    scale = 1 + np.abs(W).max()
    V = norm.prox(W, t)
    g = (W - V) / t
    assert (norm.dual_value(g) <= 1 + 1e-14 * scale * (1 + 1 / t)).all()
    np.testing.assert_allclose(inner(g, V), norm.value(V), atol=1e-11 * scale * max(1.0, scale / t))


@every_norm
def test_numpy_and_torch_agree_and_batches_equal_singles(norm: Norm) -> None:
    G, radius = gaussian(5, 4, 6)[..., ::-2], np.linspace(0.1, 3.0, 5)
    G.flags.writeable = False
    for name in ("value", "dual_value", "steepest", "subgradient", "project", "prox"):
        function = getattr(norm, name)
        arguments = (radius,) if name in ("project", "prox") else ()
        batch = function(G, *arguments)
        tensor = function(torch.tensor(G.copy()), *map(torch.from_numpy, arguments))
        assert tensor.dtype == torch.float64
        np.testing.assert_allclose(tensor.numpy(), batch, rtol=1e-13, atol=1e-14)
        single = function(G.astype(np.float32), *arguments)
        assert single.dtype == np.float32
        np.testing.assert_allclose(single, batch, rtol=1e-3, atol=1e-3)
        for i in range(5):
            single = function(G[i], *(a[i] for a in arguments))
            np.testing.assert_allclose(single, batch[i], rtol=1e-13, atol=1e-14)


@every_norm
def test_torch_gradient_of_the_dual_norm_is_the_steepest_direction(norm: Norm) -> None:
    G = torch.from_numpy(gaussian(4, 3, seed=1)).requires_grad_()
    (gradient,) = torch.autograd.grad(norm.dual_value(G), G)
    np.testing.assert_allclose(gradient.numpy(), norm.steepest(G.detach()).numpy(), atol=1e-12)


@every_norm
@pytest.mark.parametrize("scale", [1e-300, 1e-150, 1e150, 1e300])
def test_no_scale_overflows_or_vanishes(norm: Norm, scale: float) -> None:
    G = gaussian(3, 4, seed=2)
    np.testing.assert_allclose(norm.value(G * scale) / scale, norm.value(G), rtol=1e-14)
    np.testing.assert_allclose(norm.steepest(G * scale), norm.steepest(G), rtol=1e-10, atol=1e-14)
    np.testing.assert_allclose(
        norm.subgradient(G * scale), norm.subgradient(G), rtol=1e-10, atol=1e-14
    )
    if 1e-150 <= scale <= 1e150:
        radius = 0.3 * float(norm.value(G))
        found = norm.project(G * scale, radius * scale) / scale
        np.testing.assert_allclose(found, norm.project(G, radius), rtol=1e-9, atol=1e-14)


@every_norm
def test_zero_and_smallest(norm: Norm) -> None:
    Z = np.zeros((3, 2, 4))
    for name in ("value", "dual_value", "steepest", "subgradient", "project"):
        assert (getattr(norm, name)(Z) == 0).all()
    assert (norm.prox(Z, 1.0) == 0).all()
    assert (norm.project(Z + 1, 0.0) == 0).all()
    np.testing.assert_array_equal(norm.prox(Z + 1, 0.0), Z + 1)
    smallest = np.full((1, 1), 5e-324)
    assert norm.value(smallest) == 5e-324
    np.testing.assert_allclose(norm.steepest(smallest), 1.0, rtol=1e-15)


@every_norm
@pytest.mark.parametrize("number", [-1.0, float("nan"), [1.0, -1e-9]])
def test_negative_radius_and_weight_are_refused(norm: Norm, number: object) -> None:
    W = gaussian(2, 3, 4)
    for function in (norm.project, norm.prox):
        with pytest.raises(
            InputError,
            match=r"^the radius of a ball and the weight of a proximal map must be numbers >= 0",
        ):
            function(W, number)


@every_norm
def test_integers_and_short_floats_are_read(norm: Norm) -> None:
    G = np.array([[3, -4], [0, 1]])
    np.testing.assert_allclose(norm.value(G), norm.value(G.astype(float)), rtol=1e-15)
    np.testing.assert_allclose(norm.project(G, 0.5), norm.project(G.astype(float), 0.5), atol=1e-15)
    H = torch.tensor(G, dtype=torch.bfloat16)
    assert norm.steepest(H).dtype == torch.bfloat16
    np.testing.assert_allclose(norm.steepest(H).float().numpy(), norm.steepest(G), atol=0.02)


@every_norm
def test_no_token_moves_a_logit_farther_than_the_reach(norm: Norm) -> None:
    tokens, queries = gaussian(3, 5, 4), gaussian(3, 2)
    pairs = [np.outer(x, z) for rows, z in zip(tokens, queries, strict=True) for x in rows]
    own = float(norm.dual_value(np.array(pairs)).max())
    assert Norm.logit_reach(norm, tokens, queries) == pytest.approx(own, rel=1e-14, abs=0)
    assert own <= norm.logit_reach(tokens, queries) * (1 + 1e-14)
    alone = norm.logit_reach(tokens[:1, :1], queries[:1])
    assert alone == pytest.approx(float(norm.dual_value(pairs[0])), rel=1e-14, abs=0)


@every_norm
def test_rotations_of_an_invariant_side_change_no_value(norm: Norm) -> None:
    W, Q, R = gaussian(4, 4), *(np.linalg.qr(gaussian(4, 4, seed=k))[0] for k in (1, 2))
    same = tuple(np.isclose(norm.value(each), norm.value(W)) for each in (Q @ W, W @ R))
    assert same == ((True, True) if norm == Lp(2) else norm.invariant)


def test_equal_means_the_same_function_of_a_matrix() -> None:
    alike = {Lp(2), Schatten(2), Frobenius()}, {Nuclear(), Schatten(1)}, {Spectral(), Schatten(inf)}
    assert [len(each) for each in alike] == [1, 1, 1]
    for norm in NORMS:
        again = pickle.loads(pickle.dumps(norm)).dual.dual
        assert again == norm
        assert again.p == norm.p
    assert len(set().union(*alike, {Lp(1), Lp(inf), Lp(1.5), Schatten(1.5)})) == 7
    G = gaussian(7, 4, 5)
    for two in (Lp(2), Schatten(2)):
        np.testing.assert_allclose(two.value(G), Frobenius().value(G), rtol=1e-15)
        np.testing.assert_allclose(two.steepest(G), Frobenius().steepest(G), rtol=1e-15)
        np.testing.assert_allclose(two.prox(G, 0.7), Frobenius().prox(G, 0.7), rtol=1e-14)
