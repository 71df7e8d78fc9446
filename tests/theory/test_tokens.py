"""Scores, optimal tokens, neighbours, local optimality; selected sets, and the mixtures that a
concave head prefers.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attsvm.base.errors import InputError
from attsvm.datasets.attention_data import AttentionData
from attsvm.margins import optimal_tokens, selection_margins, token_scores
from attsvm.solvers import locally_optimal, max_margin, neighbours
from attsvm.theory import selected_sets, sparsemax, sparsemax_selection


def test_scores_are_label_times_head_times_token_and_masked_tokens_never_win() -> None:
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((2, 3, 4, 5, 6)), np.sign(rng.standard_normal((2, 3, 4)))
    mask = rng.random((2, 3, 4, 5)) < 0.8
    mask[..., 1] = True
    data, heads = AttentionData(X, y, mask=mask), rng.standard_normal((2, 3, 6))
    for head in (heads, heads[0, 0]):
        scores, best = token_scores(data, head), optimal_tokens(data, head)
        lead = np.broadcast_to(head, heads.shape)
        expected = y[..., None] * np.einsum("abntd,abd->abnt", X, lead)
        np.testing.assert_allclose(scores[mask], expected[mask], atol=1e-14)
        assert np.isneginf(scores[~mask]).all()
        np.testing.assert_array_equal(best, np.where(mask, expected, -np.inf).argmax(axis=-1))


def test_a_tie_names_sequence_and_tokens() -> None:
    X = np.random.default_rng(2).standard_normal((3, 6, 7))
    X[1, 5] = X[1, 2]
    data, v = AttentionData(X, np.ones(3)), X[1, 2]
    with pytest.raises(InputError, match=r"tokens 2 and 5 of sequence 1 share the highest score"):
        optimal_tokens(data, v)
    assert optimal_tokens(data, v, ties="first")[1] == 2
    assert optimal_tokens(data.without_duplicates(), v)[1] == 2
    X[1, 3] = X[1, 2]
    with pytest.raises(InputError, match=r"tokens 2 and 3 of sequence 1 share the highest score"):
        optimal_tokens(AttentionData(X, np.ones(3)), v)
    batched = AttentionData(np.stack([X[:1], X[1:2]]), np.ones((2, 1)))
    with pytest.raises(InputError, match=r"sequence 0 of instance \[1\]"):
        optimal_tokens(batched, v)
    with pytest.raises(InputError, match="ties is 'last'"):
        optimal_tokens(data, v, ties="last")


@pytest.mark.parametrize(
    ("head", "message"),
    [
        (np.ones(2), r"head has shape \(2,\); it must be \(3,\)"),
        (np.array([1.0, np.nan, 0.0]), r"head holds nan at \[1\]"),
        *((np.zeros(3, kind), r"head has dtype .*; give real numbers") for kind in "cUSMmO"),
    ],
)
def test_refused_heads(head: np.ndarray, message: str) -> None:
    with pytest.raises(InputError, match=message):
        token_scores(AttentionData(np.ones((1, 2, 3)), np.ones(1)), head)


@pytest.mark.parametrize(
    ("scores", "selected", "expected"),
    [([1.0, 0.9, 0.0], 1, True), ([1.0, 0.9, 0.9], 1, False), ([1.0, 0.9, 0.9], 0, True)],
)
def test_local_optimality_of_the_planar_toys(scores, selected, expected) -> None:
    """mmts-1: three keys in the plane, of which the first two have the third for a neighbour."""
    X = np.array([[[-0.1, 1.0], [1.0, 0.0], [0.0, 0.0]]])
    solution = max_margin(
        selection_margins(AttentionData(X, np.ones(1), np.ones((1, 1))), [selected])
    )
    assert [n.tolist() for n in neighbours(solution)] == [[2]]
    assert locally_optimal(solution, [scores]).tolist() == [expected]


@pytest.mark.parametrize("others", [(0.5, 2.0), (2.0, 0.5), (2.0, 2.0), (0.5, 0.5)])
def test_a_locally_optimal_token_beats_all_its_neighbours(others) -> None:
    solution = max_margin(
        selection_margins(AttentionData(np.eye(3)[None], np.ones(1), np.ones((1, 1))), [0])
    )
    assert [n.tolist() for n in neighbours(solution)] == [[1, 2]]
    assert locally_optimal(solution, np.array([[1.0, *others]])).tolist() == [max(others) < 1]


def test_optimal_tokens_are_locally_optimal_and_single_tokens_have_no_neighbours() -> None:
    rng = np.random.default_rng(5)
    bags = [rng.standard_normal((k, 8)) for k in (1, 4, 6, 1, 5)]
    data, v = AttentionData.from_bags(bags, [1.0, -1, 1, 1, -1]), rng.standard_normal(8)
    solution = max_margin(selection_margins(data, optimal_tokens(data, v)))
    assert locally_optimal(solution, token_scores(data, v)).all()
    assert [len(near) > 0 for near in neighbours(solution)] == [False, True, True, False, True]
    with pytest.raises(InputError, match=r"scores has shape \(5, 5\)"):
        locally_optimal(solution, np.ones((5, 5)))


def test_neighbours_need_a_hard_margin_solution() -> None:
    margins = selection_margins(AttentionData([[[1.0], [1.0]]], [1.0]), [0])
    for solution, words in (
        (max_margin(margins), "infeasible"),
        (max_margin(margins, slack=1.0), "soft-margin"),
    ):
        with pytest.raises(InputError, match=words):
            neighbours(solution)


@given(st.lists(st.floats(-50, 50), min_size=1, max_size=7))
def test_sparsemax_is_the_projection_onto_the_simplex(values: list[float]) -> None:
    gamma = np.array(values)
    s = sparsemax(gamma)
    assert (s >= 0).all()
    assert s.sum() == pytest.approx(1.0, abs=1e-12)
    slack = gamma - s  # variational inequality: <gamma - s, e_t - s> <= 0 at every vertex
    assert slack.max() - slack @ s <= 1e-11
    hidden = np.append(gamma, -np.inf)
    np.testing.assert_array_equal(sparsemax(hidden), np.append(s, 0.0))


def test_the_mixture_is_the_best_attention_under_its_head() -> None:
    rng = np.random.default_rng(0)
    gamma, others = rng.standard_normal((3, 4)), rng.dirichlet(np.ones(4), (500, 3))
    for strength in (0.05, 1.0):
        found = sparsemax_selection(gamma, strength)
        s = found.probabilities
        best = (gamma * s).sum(axis=-1) - strength * (s * s).sum(axis=-1)
        rest = (gamma * others).sum(axis=-1) - strength * (others * others).sum(axis=-1)
        assert (rest <= best).all()
        np.testing.assert_array_equal(found.sets, s > 0)
    with pytest.raises(InputError, match="strength is 0"):
        sparsemax_selection(gamma, 0.0)


def test_selected_sets() -> None:
    s = np.array([[[0.6, 0.4, 1e-9]], [[0.999, 1e-3, 1e-5]], [[0.5, 0.3, 0.2]]])
    found = selected_sets(s)
    assert found.sets[:, 0].tolist() == [[True, True, False], [True, True, False], [True] * 3]
    assert found.clear.tolist() == [True, False, False]
    assert selected_sets([[0.7, 0.299999, 1e-6]]).clear.tolist() is True
    with pytest.raises(InputError, match="the thresholds"):
        selected_sets(s, selected=1e-7)
