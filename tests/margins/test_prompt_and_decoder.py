"""Prompt vectors, relaxed margins and decoders: loops, the literal toys mmts-4,
scikit-learn.
"""

from __future__ import annotations

import numpy as np
import pytest
from explicit import least_distance, ragged_data, same_rows, visible_choice
from hypothesis import given
from hypothesis import strategies as st
from sklearn.svm import SVC

from attsvm.data import AttentionData
from attsvm.errors import InputError
from attsvm.margins import (
    decoder_margins,
    prompt_margins,
    relax,
    relaxed_margins,
    selection_margins,
)
from attsvm.solvers import max_margin

E14 = AttentionData(
    np.array([[[0, 0], [1, 1]], [[0, 0], [1, -1]], [[0, 0], [0.5, 1]]]), np.array([1.0, -1.0, 1.0])
)
E15 = AttentionData(
    np.array([[[0, 0], [1, 1]], [[0, 0], [1, -1]], [[0, 0], [0.5, 1.5]]]),
    np.array([1.0, -1.0, 1.0]),
)
SECOND = np.ones(3, dtype=int)


@given(st.integers(0, 10_000), st.booleans())
def test_prompt_rows_by_loops(seed: int, mapped: bool) -> None:
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


@given(st.integers(0, 10_000))
def test_decoder_rows_by_loops(seed: int) -> None:
    rng = np.random.default_rng(seed)
    data = ragged_data(rng, 5, 4, 3, 2)
    tokens = visible_choice(rng, data.mask)
    margins = decoder_margins(data, tokens)
    same_rows(
        margins,
        [(data.labels[i] * data.tokens[i, tokens[i]])[:, None] for i in range(5)],
        [1.0] * 5,
    )
    np.testing.assert_array_equal(margins.sequence, np.arange(5))


def test_joint_training_where_every_input_supports() -> None:
    v = max_margin(decoder_margins(E14, SECOND))
    np.testing.assert_allclose(v.W[:, 0], [0, 1], atol=1e-12)
    assert v.support.tolist() == [0, 1, 2]
    p = max_margin(prompt_margins(E14, SECOND))
    np.testing.assert_allclose(p.W[:, 0], [4 / 3, 1 / 3], atol=1e-12)
    np.testing.assert_allclose(p.dual, [0, 7 / 9, 10 / 9], atol=1e-10)
    np.testing.assert_allclose(
        max_margin(relaxed_margins(E14, SECOND, v.support)).W, p.W, atol=1e-12
    )


def test_joint_training_where_one_input_does_not() -> None:
    v = max_margin(decoder_margins(E15, SECOND))
    np.testing.assert_allclose(v.W[:, 0], [0, 1], atol=1e-12)
    assert v.support.tolist() == [0, 1]
    np.testing.assert_allclose(
        max_margin(prompt_margins(E15, SECOND)).W[:, 0], [1.25, 0.25], atol=1e-12
    )
    np.testing.assert_allclose(
        max_margin(relaxed_margins(E15, SECOND, v.support)).W[:, 0], [1, 0], atol=1e-12
    )


def test_a_relaxed_matrix_programme() -> None:
    rng = np.random.default_rng(4)
    data = ragged_data(rng, 6, 4, 3, 5)
    margins = relax(selection_margins(data, visible_choice(rng, data.mask)), [0, 2])
    assert set(margins.sequence[margins.rhs == 1]) <= {0, 2}
    expected = least_distance(margins)
    assert expected is not None
    np.testing.assert_allclose(max_margin(margins).W, expected, atol=1e-8)


@pytest.mark.parametrize("seed", range(2))
def test_decoder_is_the_support_vector_machine_of_scikit_learn(seed: int) -> None:
    rng = np.random.default_rng(seed)
    data = ragged_data(rng, 8, 4, 10, 1)
    tokens = visible_choice(rng, data.mask)
    r = data.tokens[np.arange(8), tokens]
    ours = max_margin(decoder_margins(data, tokens))
    # SVC has an intercept: every point with its mirror image of the other label forces it to zero.
    theirs = SVC(kernel="linear", C=1e9, tol=1e-10).fit(
        np.vstack([r, -r]), np.concatenate([data.labels, -data.labels])
    )
    np.testing.assert_allclose(ours.W[:, 0], theirs.coef_[0], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(ours.W, least_distance(ours.margins), atol=1e-9)


def test_refusals() -> None:
    with pytest.raises(InputError, match=r"keys has shape \(3, 3\); it must be \(d_k, 2\)"):
        prompt_margins(E14, SECOND, np.eye(3))
    with pytest.raises(InputError, match="keys holds nan"):
        prompt_margins(E14, SECOND, np.full((2, 2), np.nan))
    with pytest.raises(InputError, match="support holds 3; sequences are numbered 0 to 2"):
        relaxed_margins(E14, SECOND, [0, 3])
    with pytest.raises(InputError, match=r"support has shape \(2,\)"):
        relaxed_margins(E14, SECOND, np.array([True, False]))
    with pytest.raises(InputError, match="support has dtype float64"):
        relaxed_margins(E14, SECOND, [0.5])
    with pytest.raises(InputError, match="sequence 2 has positions 0 to 1"):
        decoder_margins(E14, [0, 1, 2])
    with pytest.raises(InputError, match="leading axes"):
        decoder_margins(AttentionData(np.ones((2, 3, 2, 2)), np.ones((2, 3))), SECOND)


def test_decoders_that_do_not_exist() -> None:
    zero = max_margin(decoder_margins(E14, [1, 0, 1]))
    assert zero.status == "infeasible"
    assert "token 0 of sequence 1 is zero" in zero.message
    same = AttentionData(np.ones((2, 1, 3)), np.array([1.0, -1.0]))
    assert max_margin(decoder_margins(same, [0, 0])).farkas_residual() <= 1e-15


def test_nothing_supports() -> None:
    assert (relaxed_margins(E14, SECOND, []).rhs == 0).all()
