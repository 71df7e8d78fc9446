"""Drawn instances: the published draws to the bit, one instance per seed, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attsvm.base.errors import InputError
from attsvm.datasets import gauss, mlp_instance, orth, orthonormal, unit_sphere
from attsvm.margins import optimal_tokens


@given(st.integers(1, 5), st.integers(1, 5), st.integers(1, 12), st.integers(0, 2**40))
def test_the_bits_are_those_of_the_global_generator(n, T, d, seed):
    before = torch.random.get_rng_state()
    data, v = unit_sphere(n, T, d, seed)
    assert torch.equal(torch.random.get_rng_state(), before)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        head = torch.randn(d)
        head = head / torch.linalg.norm(head)
        signs = torch.sign(torch.randn(n))
        X = torch.randn(n, T, d)
        X = X / torch.linalg.norm(X, dim=2, keepdim=True)
        Z = torch.randn(n, d)
        Z = Z / torch.linalg.norm(Z, dim=1, keepdim=True)
    for ours, theirs in ((v, head), (data.tokens, X), (data.queries, Z), (data.labels, signs)):
        assert np.array_equal(ours, theirs.double().numpy())
        assert np.array_equal(ours, ours.astype(np.float32))


def test_draws_for_nonlinear_heads_come_in_the_published_order():
    generator = torch.Generator().manual_seed(3)
    V, X, Y, Z = (
        torch.randn(*shape, generator=generator) for shape in ((4, 4), (3, 5, 4), (3,), (3, 4))
    )
    data, first = mlp_instance(3, 5, 4, seed=3)
    np.testing.assert_allclose(first, (V / torch.linalg.norm(V)).double(), rtol=1e-15)
    for ours, theirs in ((data.tokens, X), (data.queries, Z)):
        unit = (theirs / theirs.norm(dim=-1, keepdim=True)).double()
        np.testing.assert_allclose(ours, unit, rtol=3e-7)
    assert (data.labels == np.where(Y.numpy() > 0, 1, -1)).all()


DRAWN = {
    "unit_sphere": lambda seed: unit_sphere(3, 4, 5, seed),
    "mlp_instance": lambda seed: mlp_instance(3, 4, 5, seed),
    "orthonormal": lambda seed: orthonormal(3, 4, seed),
    "orth": lambda seed: orth(seed=seed),
    "gauss": lambda seed: gauss(seed=seed),
}


@pytest.mark.parametrize("name", DRAWN)
def test_many_seeds_are_many_instances(name):
    data, heads = DRAWN[name]([5, 0, 9])
    assert data.batch_shape == (3,)
    for k, seed in enumerate((5, 0, 9)):
        one, head = DRAWN[name](seed)
        for field in ("tokens", "queries", "labels"):
            assert np.array_equal(getattr(data.instance(k), field), getattr(one, field))
        assert np.array_equal(heads[k], head)


def test_self_attention_queries_are_first_tokens():
    crossed, _ = unit_sphere(3, 4, 5, seed=0)
    own, _ = unit_sphere(3, 4, 5, seed=range(2), self_attention=True)
    assert np.array_equal(own.queries, own.tokens[:, :, 0])
    assert np.array_equal(own.tokens[0], crossed.tokens)


def test_orthonormal_tokens():
    data, v = orthonormal(3, 4, seed=[0, 1])
    gram = data.tokens @ data.tokens.swapaxes(-1, -2)
    np.testing.assert_allclose(gram, np.broadcast_to(np.eye(4), gram.shape), atol=1e-14)
    assert (data.labels == 1).all()
    np.testing.assert_allclose(np.linalg.norm(v, axis=-1), 1, rtol=1e-6)


@pytest.mark.parametrize("make", [orth, gauss])
def test_separable_instances_ask_with_the_token_behind_the_best(make):
    data, head = make(seed=3)
    best = optimal_tokens(data, head)
    np.testing.assert_array_equal(data.queries, data.tokens[range(6), (best + 1) % 5])
    gamma = data.labels[:, None] * (data.tokens @ head)
    # six deviations 0.3 sqrt(2 / 48)
    np.testing.assert_allclose(gamma[range(6), best], 1.0, atol=0.4)


def test_orthonormal_tokens_leave_all_other_scores_zero():
    data, head = orth(n=4, T=3, d=13, seed=1)
    flat = data.tokens.reshape(12, 13)
    np.testing.assert_allclose(flat @ flat.T, np.eye(12), atol=1e-14)
    gamma = np.sort(data.labels[:, None] * (data.tokens @ head), axis=1)
    np.testing.assert_allclose(gamma, np.tile([0.0, 0.0, 1.0], (4, 1)), atol=1e-14)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: unit_sphere(0, 1, 1, 0), "n is 0"),
        (lambda: unit_sphere(1, 0, 1, 0), "T is 0"),
        (lambda: unit_sphere(1, 1, 0, 0), "d is 0"),
        (lambda: unit_sphere(1, 1, 1, []), "seed is an empty list"),
        (lambda: unit_sphere(1, 1, 1, 2**70), "seed 118059.* is not one that PyTorch takes"),
        (
            lambda: unit_sphere(1_000_000, 1_000_000, 1000, 0),
            "GB of memory are needed for n=1000000, T=1000000, d=1000",
        ),
        (lambda: mlp_instance(3, 0, 4, seed=0), "every size must be at least 1"),
        (lambda: orthonormal(3, 4, seed=[]), "seed is an empty list"),
        (lambda: orth(d=10), "need at least 30"),
        (lambda: gauss(d=1), "d is 1"),
        (lambda: gauss(T=1), "T is 1; every size must be at least 1, and T at least 2"),
        (lambda: gauss(seed=[]), "seed is an empty list"),
    ],
)
def test_arguments_that_are_refused(call, sentence):
    with pytest.raises(InputError, match=sentence):
        call()
