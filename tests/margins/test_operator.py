"""The constraint operator against tensors written out in full."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attsvm.data import AttentionData
from attsvm.errors import InputError
from attsvm.margins import Margins, selection_margins


def instance(seed: int, uniform: bool = False) -> tuple[Margins, np.random.Generator]:
    rng = np.random.default_rng(seed)
    n, d_x, d_z = (int(k) for k in rng.integers(1, 6, 3))
    lengths = np.full(n, 4) if uniform else rng.integers(1, 7, n)
    bags = [rng.standard_normal((int(k), d_x)) for k in lengths]
    data = AttentionData.from_bags(bags, np.ones(n), rng.standard_normal((n, d_z)))
    return selection_margins(data, np.array([int(rng.integers(k)) for k in lengths])), rng


def written_out(margins: Margins) -> np.ndarray:
    return np.einsum("ca,ce->cae", margins.differences, margins.queries[margins.sequence])


@given(st.integers(0, 10_000), st.booleans())
def test_operator_equals_the_written_out_tensors(seed: int, uniform: bool) -> None:
    margins, rng = instance(seed, uniform)
    A = written_out(margins)
    W = rng.standard_normal(margins.shape)
    lam = rng.standard_normal(margins.m)
    np.testing.assert_allclose(margins(W), np.einsum("cae,ae->c", A, W), atol=1e-12)
    np.testing.assert_allclose(margins.adjoint(lam), np.einsum("c,cae->ae", lam, A), atol=1e-12)
    np.testing.assert_allclose(margins.gram(), np.einsum("cae,kae->ck", A, A), atol=1e-11)


@given(st.integers(0, 10_000))
def test_restriction_is_a_choice_of_rows(seed: int) -> None:
    margins, rng = instance(seed)
    W = rng.standard_normal(margins.shape)
    chosen = rng.random(margins.m) < 0.5
    part = margins.restricted(chosen)
    np.testing.assert_allclose(part(W), margins(W)[chosen], atol=1e-13)
    np.testing.assert_array_equal(part.sequence, margins.sequence[chosen])
    np.testing.assert_array_equal(part.token, margins.token[chosen])
    np.testing.assert_array_equal(
        margins.restricted(np.flatnonzero(chosen)).differences, part.differences
    )
    np.testing.assert_allclose(part.gram(), margins.gram(np.flatnonzero(chosen)), atol=1e-13)


def test_each_row_is_selected_minus_rival() -> None:
    X = np.arange(24.0).reshape(2, 3, 4) ** 2
    mask = np.array([[True, True, False], [True, True, True]])
    queries = np.array([[1.0, 2.0], [3.0, 4.0]])
    margins = selection_margins(AttentionData(X, np.ones(2), queries, mask), np.array([1, 0]))
    assert margins.m == 3
    np.testing.assert_array_equal(margins.queries, queries)
    assert margins.token.tolist() == [0, 1, 2]
    assert margins.sequence.tolist() == [0, 1, 1]
    np.testing.assert_array_equal(margins.differences[0], X[0, 1] - X[0, 0])
    np.testing.assert_array_equal(margins.differences[2], X[1, 0] - X[1, 2])
    assert (margins.rhs == 1).all()


def test_many_ragged_rows_cross_the_chunk_boundary() -> None:
    rng = np.random.default_rng(0)
    counts = rng.integers(0, 40, 3000)
    offsets = np.concatenate([[0], np.cumsum(counts)])
    m = int(offsets[-1])
    assert m > 1 << 15
    D, Z = rng.standard_normal((m, 2)), rng.standard_normal((3000, 3))
    margins = Margins(
        D, Z, offsets, np.ones(m), np.zeros(m, dtype=np.int64), np.zeros(3000, dtype=np.int64)
    )
    W = rng.standard_normal((2, 3))
    np.testing.assert_allclose(
        margins(W), np.sum((D @ W) * Z[margins.sequence], axis=1), atol=1e-12
    )


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (np.array([0, 1, 0]), r"tokens has shape \(3,\)"),
        (np.array([0.0, 1.0]), "dtype float64"),
        (np.array([0, 3]), r"tokens\[1\] is 3; sequence 1 has positions 0 to 2"),
        (np.array([-1, 0]), r"tokens\[0\] is -1"),
        (np.array([2, 0]), "mask of sequence 0 hides"),
    ],
)
def test_refused_selections(tokens: np.ndarray, message: str) -> None:
    mask = np.array([[True, True, False], [True, True, True]])
    data = AttentionData(np.ones((2, 3, 2)), np.ones(2), mask=mask)
    with pytest.raises(InputError, match=message):
        selection_margins(data, tokens)


def test_leading_axes_are_refused() -> None:
    with pytest.raises(InputError, match="leading axes"):
        selection_margins(
            AttentionData(np.ones((5, 2, 3, 2)), np.ones((5, 2))), np.zeros(2, dtype=np.int64)
        )
