"""Queries made of the sequences themselves."""

from __future__ import annotations

import numpy as np
import pytest

from attsvm.data import AttentionData
from attsvm.datasets import unit_sphere
from attsvm.errors import InputError
from attsvm.margins import query_positions, selection_margins, sequence_margins
from attsvm.queries import bag_queries, self_attention, sequence_pairs


def test_self_attention_asks_with_a_token() -> None:
    data, _ = unit_sphere(3, 4, 5, seed=[0, 1])
    assert (self_attention(data).queries == data.tokens[..., 0, :]).all()
    assert (self_attention(data, 2).queries == data.tokens[..., 2, :]).all()
    with pytest.raises(InputError, match="position is 4"):
        self_attention(data, 4)


@pytest.mark.parametrize("causal", [False, True])
def test_margins_of_positions_are_those_of_their_pairs(causal: bool) -> None:
    data, _ = unit_sphere(3, 4, 5, seed=0)
    mask = np.ones((3, 4), dtype=bool)
    mask[1, 2] = False
    data = AttentionData(data.tokens, data.labels, data.queries, mask)
    labels = np.where(np.arange(12).reshape(3, 4) % 2, 1, -1)
    pairs = sequence_pairs(data, labels, causal)
    i, j = query_positions(data).T
    assert (pairs.labels == labels[i, j]).all()
    tokens = np.zeros((3, 4), dtype=int)
    one, other = sequence_margins(data, tokens, causal), selection_margins(pairs, tokens[i, j])
    W = np.random.default_rng(0).standard_normal((5, 5))
    assert (one(W) == other(W)).all()
    with pytest.raises(InputError, match="one label per position"):
        sequence_pairs(data, labels[:, :2])


@pytest.mark.parametrize("exponent", [-1020, -600, 600, 1020])
def test_mean_queries_do_not_depend_on_the_unit_of_the_tokens(exponent):
    tokens = np.random.default_rng(0).uniform(0.5, 1.0, size=(4, 3, 2))
    mask = np.array([[True, True, True], [True, False, False], [True, True, False], [True] * 3])
    expected = bag_queries(tokens, mask, "mean")
    scaled = bag_queries(np.ldexp(tokens, exponent), mask, "mean")
    assert np.array_equal(scaled, expected)
