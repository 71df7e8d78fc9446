"""Rows of every programme on sequences, by loops over their definition."""

from __future__ import annotations

import numpy as np
import pytest
from explicit import ragged_data, same, same_rows, visible_choice
from hypothesis import given
from hypothesis import strategies as st

from attsvm.datasets.attention_data import AttentionData
from attsvm.margins import (
    MarginsBatch,
    decoder_margins,
    multi_token_margins,
    prompt_margins,
    ratio_margins,
    relaxed_margins,
    selection_batch,
    selection_margins,
    sequence_margins,
)
from attsvm.solvers import max_margin

SEEDS = st.integers(0, 10_000)


@given(SEEDS)
def test_selections_by_loops(seed: int) -> None:
    rng = np.random.default_rng(seed)
    data = ragged_data(rng, 4, 5, 3, 2)
    tokens = visible_choice(rng, data.mask)
    rows, places = [], []
    for i in range(4):
        for t in range(5):
            if data.mask[i, t] and t != tokens[i]:
                difference = data.tokens[i, tokens[i]] - data.tokens[i, t]
                rows.append(np.outer(difference, data.queries[i]))
                places.append((i, t))
    margins = selection_margins(data, tokens)
    same_rows(margins, rows, [1.0] * len(rows))
    assert list(zip(margins.sequence, margins.token, strict=True)) == places
    assert margins.selected.tolist() == tokens.tolist()


@given(SEEDS, st.booleans())
def test_prompts_by_loops(seed: int, mapped: bool) -> None:
    rng = np.random.default_rng(seed)
    data = ragged_data(rng, 4, 5, 3, 2)
    tokens = visible_choice(rng, data.mask)
    K = rng.standard_normal((2, 3)) if mapped else np.eye(3)
    support = rng.random(4) < 0.5
    A, b = [], []
    for i in range(4):
        for t in range(5):
            if data.mask[i, t] and t != tokens[i]:
                A.append((K @ data.tokens[i, tokens[i]] - K @ data.tokens[i, t])[:, None])
                b.append(1.0 if support[i] else 0.0)
    keys = K if mapped else None
    same_rows(prompt_margins(data, tokens, keys), A, [1.0] * len(A))
    same_rows(relaxed_margins(data, tokens, support, keys), A, b)
    same_rows(relaxed_margins(data, tokens, np.flatnonzero(support), keys), A, b)


@given(SEEDS)
def test_decoders_by_loops(seed: int) -> None:
    rng = np.random.default_rng(seed)
    data = ragged_data(rng, 5, 4, 3, 2)
    tokens = visible_choice(rng, data.mask)
    rows = [(data.labels[i] * data.tokens[i, tokens[i]])[:, None] for i in range(5)]
    margins = decoder_margins(data, tokens)
    same_rows(margins, rows, [1.0] * 5)
    assert margins.sequence.tolist() == list(range(5))


@given(SEEDS)
def test_sets_by_loops(seed: int) -> None:
    rng = np.random.default_rng(seed)
    data = ragged_data(rng, 4, 5, 3, 4)
    tokens, s = visible_choice(rng, data.mask), rng.dirichlet(np.ones(5), 4) + 1e-3
    one = np.arange(5) == tokens[:, None]
    sets = data.mask & (rng.random(data.mask.shape) < 0.5) | one
    A, equal, ratios = [], [], []
    for i in range(4):
        anchor = int(np.flatnonzero(sets[i])[0])
        for t in range(5):
            if data.mask[i, t] and t != anchor:
                A.append(np.outer(data.tokens[i, anchor] - data.tokens[i, t], data.queries[i]))
                equal.append(bool(sets[i, t]))
                if sets[i, t]:
                    ratios.append(np.log(s[i, anchor]) - np.log(s[i, t]))
    margins = multi_token_margins(data, sets)
    same_rows(margins, A, [0.0 if tied else 1.0 for tied in equal], equal)
    inside = [row for row, tied in zip(A, equal, strict=True) if tied]
    same_rows(ratio_margins(data, sets, s), inside, ratios, [True] * len(ratios))
    same(multi_token_margins(data, one), selection_margins(data, tokens))
    same(margins.restricted(margins.equalities), margins.restricted(np.flatnonzero(equal)))


@given(SEEDS, st.booleans())
def test_positions_by_loops_and_as_pairs(seed: int, causal: bool) -> None:
    rng = np.random.default_rng(seed)
    data = ragged_data(rng, 3, 4, 2, 5)
    tokens, A, pairs, seen = np.full((3, 4), -7), [], [], []
    for i, j in np.argwhere(data.mask).tolist():
        visible = [t for t in range(j + 1 if causal else 4) if data.mask[i, t]]
        tokens[i, j] = best = rng.choice(visible)
        difference = data.tokens[i, best] - data.tokens[i]
        A += [np.outer(difference[t], data.tokens[i, j]) for t in visible if t != best]
        pairs.append([i, j])
        seen.append(np.isin(np.arange(4), visible))
    margins = sequence_margins(data, tokens, causal)
    same_rows(margins, A, [1.0] * len(A))
    assert margins.origin.tolist() == pairs
    i, j = np.transpose(pairs)
    one_by_one = AttentionData(data.tokens[i], np.ones(len(i)), data.tokens[i, j], np.array(seen))
    same(margins, selection_margins(one_by_one, tokens[i, j]))


@pytest.mark.parametrize("leading", [(), (2, 3)])
def test_selections_of_every_instance(leading: tuple[int, ...]) -> None:
    rng, count = np.random.default_rng(1), int(np.prod(leading, dtype=int))
    data = [ragged_data(rng, 4, 6, 3, 2) for _ in range(count)]
    tokens = [visible_choice(rng, each.mask) for each in data]
    parts = [
        np.stack([getattr(each, name) for each in data]).reshape(
            *leading, *getattr(data[0], name).shape
        )
        for name in ("tokens", "labels", "queries", "mask")
    ]
    batch = selection_batch(AttentionData(*parts), np.stack(tokens).reshape(*leading, 4))
    assert len(batch) == count
    for one, each, selected in zip(batch, data, tokens, strict=True):
        same(one, selection_margins(each, selected))


def test_stacked_programmes_come_back_one_by_one() -> None:
    rng, programmes = np.random.default_rng(0), []
    for n, longest in ((1, 1), (5, 7), (2, 3), (3, 9)):  # the first asks for nothing
        data = ragged_data(rng, n, longest, 4, 3)
        programmes.append(selection_margins(data, visible_choice(rng, data.mask)))
    batch = MarginsBatch.stack(programmes)
    assert (programmes[0].m, len(batch), batch.shape) == (0, 4, (4, 3))
    np.testing.assert_array_equal(np.diff(batch.rows), [each.m for each in programmes])
    for one, other in zip(batch, programmes, strict=True):
        same(one, other)
    same(batch[-1], programmes[3])
    same(batch[1:3][1], programmes[2])
    with pytest.raises(IndexError):
        batch[4]


def joint(last: float) -> AttentionData:
    tokens = np.array([[[0, 0], [1, 1]], [[0, 0], [1, -1]], [[0, 0], [0.5, last]]])
    return AttentionData(tokens, np.array([1.0, -1.0, 1.0]))


@pytest.mark.parametrize(
    ("last", "support", "prompt", "relaxed"),
    [
        (1.0, [0, 1, 2], [4 / 3, 1 / 3], [4 / 3, 1 / 3]),
        (1.5, [0, 1], [1.25, 0.25], [1.0, 0.0]),
    ],
)
def test_joint_training_of_the_paper(last, support, prompt, relaxed) -> None:
    data, second = joint(last), np.ones(3, dtype=int)
    v = max_margin(decoder_margins(data, second))
    np.testing.assert_allclose(v.W[:, 0], [0, 1], atol=1e-12)
    assert v.support.tolist() == support
    p = max_margin(prompt_margins(data, second))
    np.testing.assert_allclose(p.W[:, 0], prompt, atol=1e-12)
    found = max_margin(relaxed_margins(data, second, v.support)).W[:, 0]
    np.testing.assert_allclose(found, relaxed, atol=1e-12)


def test_decoders_that_do_not_exist() -> None:
    zero = max_margin(decoder_margins(joint(1.0), [1, 0, 1]))
    assert zero.status == "infeasible"
    assert "token 0 of sequence 1 is zero" in zero.message
    alike = AttentionData(np.ones((2, 1, 3)), np.array([1.0, -1.0]))
    assert max_margin(decoder_margins(alike, [0, 0])).farkas_residual() <= 1e-15
