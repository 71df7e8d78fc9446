"""The random instances of the paper, to the bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attsvm.datasets import unit_sphere
from attsvm.errors import InputError


def test_the_first_numbers_of_seed_0():
    data, v = unit_sphere(n=6, T=8, d=10, seed=0)
    # from 0
    assert np.argmax(data.labels[:, None] * (data.tokens @ v), axis=1).tolist() == [
        7,
        4,
        6,
        1,
        3,
        2,
    ]
    assert data.labels.tolist() == [-1, 1, -1, 1, -1, 1]
    assert v[:4] == pytest.approx([0.44103667, -0.08398003, -0.62357461, 0.16268635], abs=1e-7)
    assert data.tokens[0, 0, :3] == pytest.approx([-0.42026633, 0.02163907, -0.33745313], abs=1e-7)
    assert data.queries[0, :3] == pytest.approx([-0.21426916, -0.24727055, -0.24902529], abs=1e-7)


@given(st.integers(1, 5), st.integers(1, 5), st.integers(1, 12), st.integers(0, 2**40))
def test_the_bits_are_those_of_the_global_generator(n, T, d, seed):
    data, v = unit_sphere(n, T, d, seed)
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


def test_the_global_generator_is_left_alone():
    before = torch.random.get_rng_state()
    unit_sphere(3, 4, 5, seed=7)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_many_seeds_are_many_instances():
    data, heads = unit_sphere(3, 4, 5, seed=[5, 0, 9])
    assert data.tokens.shape == (3, 3, 4, 5)
    assert heads.shape == (3, 5)
    for k, seed in enumerate((5, 0, 9)):
        one, head = unit_sphere(3, 4, 5, seed=seed)
        assert np.array_equal(data.instance(k).tokens, one.tokens)
        assert np.array_equal(data.instance(k).queries, one.queries)
        assert np.array_equal(heads[k], head)


def test_self_attention_queries_are_first_tokens():
    crossed, _ = unit_sphere(3, 4, 5, seed=0)
    own, _ = unit_sphere(3, 4, 5, seed=range(2), self_attention=True)
    assert np.array_equal(own.queries, own.tokens[:, :, 0])
    assert np.array_equal(own.tokens[0], crossed.tokens)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((0, 1, 1, 0), "n is 0"),
        ((1, 0, 1, 0), "T is 0"),
        ((1, 1, 0, 0), "d is 0"),
        ((1, 1, 1, []), "seed is an empty list"),
        ((1, 1, 1, 2**70), "seed 1180591620717411303424 is not one that PyTorch takes"),
    ],
)
def test_arguments_that_are_refused(arguments, sentence):
    with pytest.raises(InputError, match=sentence):
        unit_sphere(*arguments)


def test_more_than_the_machine_holds_is_refused_before_it_is_drawn():
    with pytest.raises(
        InputError, match=r"GB of memory are needed for n=1000000, T=1000000, d=1000"
    ):
        unit_sphere(1_000_000, 1_000_000, 1000, 0)
