"""Queries made of the sequences themselves."""

from __future__ import annotations

import numpy as np
import pytest

from attsvm.base.errors import InputError
from attsvm.datasets import unit_sphere
from attsvm.datasets.attention_data import AttentionData
from attsvm.datasets.queries import head_pairs, self_attention, sequence_pairs, table_queries
from attsvm.margins import selection_margins, sequence_margins


def test_self_attention_asks_with_a_token() -> None:
    data, _ = unit_sphere(3, 4, 5, seed=[0, 1])
    assert (self_attention(data).queries == data.tokens[..., 0, :]).all()
    assert (self_attention(data, 2).queries == data.tokens[..., 2, :]).all()
    with pytest.raises(InputError, match="position is 4"):
        self_attention(data, 4)


@pytest.mark.parametrize("causal", [False, True])
def test_margins_of_positions_are_those_of_their_pairs(causal: bool) -> None:
    mask = np.ones((3, 4), dtype=bool)
    mask[1, 2] = False
    data = AttentionData(unit_sphere(3, 4, 5, seed=0)[0].tokens, np.ones(3), mask=mask)
    labels = np.where(np.arange(12).reshape(3, 4) % 2, 1, -1)
    pairs = sequence_pairs(data, labels, causal)
    i, j = np.argwhere(data.mask).T
    assert (pairs.labels == labels[i, j]).all()
    tokens = np.zeros((3, 4), dtype=int)
    one, other = sequence_margins(data, tokens, causal), selection_margins(pairs, tokens[i, j])
    W = np.random.default_rng(0).standard_normal((5, 5))
    assert (one(W) == other(W)).all()
    with pytest.raises(InputError, match="one label per position"):
        sequence_pairs(data, labels[:, :2])


def test_a_mask_of_positions_says_what_each_sees() -> None:
    data = unit_sphere(2, 4, 5, seed=0)[0]
    near = np.abs(np.subtract.outer(np.arange(4), np.arange(4))) <= 1
    for mask in (near, np.array([near, near])):
        pairs = sequence_pairs(data, np.ones((2, 4)), causal=True, mask=mask)
        assert (pairs.mask == np.tile(near & np.tri(4, dtype=bool), (2, 1))).all()
    for wrong, words in (
        (near[:3], r"mask has shape \(3, 4\) and dtype bool"),
        (near.astype(int), "dtype int64"),
        (near & (np.arange(4) != 2)[:, None], "position 2 of sequence 0 sees no token"),
    ):
        with pytest.raises(InputError, match=words):
            sequence_pairs(data, np.ones((2, 4)), mask=wrong)


@pytest.mark.parametrize("exponent", [-1020, -600, 600, 1020])
def test_mean_queries_do_not_depend_on_the_unit_of_the_tokens(exponent):
    tokens, offsets = np.random.default_rng(0).uniform(0.5, 1.0, size=(9, 2)), [0, 3, 4, 6, 9]
    expected = table_queries(tokens, offsets, "mean")
    mean = np.array([bag.mean(axis=0) for bag in np.split(tokens, offsets[1:-1])])
    unit = np.c_[np.ones(4), mean / np.linalg.norm(mean, axis=1, keepdims=True)] / np.sqrt(2)
    np.testing.assert_allclose(expected, unit, rtol=1e-15)
    assert np.array_equal(table_queries(tokens, offsets, "first"), tokens[offsets[:-1]])
    assert np.array_equal(table_queries(tokens, offsets, "constant"), np.ones((4, 1)))
    with pytest.raises(InputError, match="query is 'last'; choose"):
        table_queries(tokens, offsets, "last")
    scaled = table_queries(np.ldexp(tokens, exponent), offsets, "mean")
    assert np.array_equal(scaled, expected)


def test_pairs_of_heads_ask_in_blocks_of_their_own():
    data, _ = unit_sphere(3, 4, 5, seed=[0, 1])
    pairs = head_pairs(data, 2)
    assert pairs.batch_shape == (2,)
    assert (pairs.n, pairs.d_z) == (6, 10)
    for h in range(2):
        own = pairs.queries[:, h::2]
        assert (own[..., 5 * h : 5 * h + 5] == data.queries).all()
        assert np.count_nonzero(own) == np.count_nonzero(data.queries)
        assert (pairs.tokens[:, h::2] == data.tokens).all()
        assert (pairs.labels[:, h::2] == data.labels).all()
    with pytest.raises(InputError, match="heads is 0"):
        head_pairs(data, 0)


def test_margins_of_a_layer_are_those_of_its_heads():
    data, _ = unit_sphere(3, 4, 5, seed=0)
    tokens = np.array([[0, 3], [1, 1], [2, 0]])
    W = np.random.default_rng(0).standard_normal((5, 10))
    joint = selection_margins(head_pairs(data, 2), tokens.ravel())
    found = joint(W)
    for h in range(2):
        alone = selection_margins(data, tokens[:, h])(W[:, 5 * h : 5 * h + 5])
        np.testing.assert_allclose(found[joint.sequence % 2 == h], alone, rtol=1e-12)
