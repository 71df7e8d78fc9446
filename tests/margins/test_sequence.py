"""Every position a query: loops over (i, j, t), equality with flattened pairs, causal masks."""

from __future__ import annotations

import numpy as np
import pytest
from explicit import least_distance, ragged_data, same_rows
from hypothesis import given
from hypothesis import strategies as st

from attsvm.data import AttentionData
from attsvm.errors import InputError
from attsvm.margins import query_positions, selection_margins, sequence_margins
from attsvm.solvers import max_margin


def choices(rng: np.random.Generator, data: AttentionData, causal: bool) -> np.ndarray:
    tokens = np.full((data.n, data.T), -7)
    for i, j in np.argwhere(data.mask):
        seen = np.flatnonzero(data.mask[i, : j + 1] if causal else data.mask[i])
        tokens[i, j] = rng.choice(seen)
    return tokens


@given(st.integers(0, 10_000), st.booleans())
def test_rows_by_loops(seed: int, causal: bool) -> None:
    rng = np.random.default_rng(seed)
    data = ragged_data(rng, 3, 4, 2, 5)
    tokens = choices(rng, data, causal)
    A, pairs = [], []
    for i in range(3):
        for j in range(4):
            if not data.mask[i, j]:
                continue
            pairs.append([i, j])
            for t in range(j + 1 if causal else 4):
                if data.mask[i, t] and t != tokens[i, j]:
                    A.append(
                        np.outer(
                            data.tokens[i, tokens[i, j]] - data.tokens[i, t], data.tokens[i, j]
                        )
                    )
    margins = sequence_margins(data, tokens, causal)
    same_rows(margins, A, [1.0] * len(A))
    assert query_positions(data).tolist() == pairs
    assert margins.selected.tolist() == [tokens[i, j] for i, j in pairs]


@given(st.integers(0, 10_000), st.booleans())
def test_it_is_the_selection_programme_of_the_pairs(seed: int, causal: bool) -> None:
    rng = np.random.default_rng(seed)
    data = ragged_data(rng, 3, 4, 2, None)
    tokens = choices(rng, data, causal)
    i, j = query_positions(data).T
    mask = data.mask[i] & (np.arange(4) <= j[:, None]) if causal else data.mask[i]
    pairs = AttentionData(data.tokens[i], np.ones(len(i)), data.tokens[i, j], mask)
    ours, theirs = sequence_margins(data, tokens, causal), selection_margins(pairs, tokens[i, j])
    for name in ("differences", "queries", "offsets", "rhs", "token", "selected"):
        np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name))


def test_a_causal_programme_solved() -> None:
    rng = np.random.default_rng(1)
    data = AttentionData(rng.standard_normal((2, 4, 8)), np.ones(2))
    margins = sequence_margins(data, choices(rng, data, True), causal=True)
    assert margins.m == 2 * (0 + 1 + 2 + 3)
    expected = least_distance(margins)
    assert expected is not None
    np.testing.assert_allclose(max_margin(margins).W, expected, atol=1e-8)


def test_refusals() -> None:
    mask = np.array([[True, True, False], [True, True, True]])
    data = AttentionData(np.arange(18.0).reshape(2, 3, 3), np.ones(2), mask=mask)
    good = np.array([[0, 1, 99], [0, 0, 0]])
    assert sequence_margins(data, good).m == 1 + 1 + 2 * 3
    with pytest.raises(InputError, match=r"tokens has shape \(2,\)"):
        sequence_margins(data, [0, 1])
    with pytest.raises(InputError, match=r"tokens\[1, 2\] is 3, outside the positions 0 to 2"):
        sequence_margins(data, [[0, 1, 9], [0, 0, 3]])
    with pytest.raises(InputError, match=r"tokens\[0, 1\] is 2, which the mask hides"):
        sequence_margins(data, [[0, 2, 0], [0, 0, 0]])
    with pytest.raises(InputError, match=r"tokens\[0, 0\] is 1, which a causal query does not see"):
        sequence_margins(data, [[1, 1, 0], [0, 0, 0]], causal=True)
    with pytest.raises(InputError, match="leading axes"):
        sequence_margins(AttentionData(np.ones((2, 2, 3, 2)), np.ones((2, 2))), good)
