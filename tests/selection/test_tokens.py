"""Scores, optimal tokens, neighbours, local optimality."""

from __future__ import annotations

import numpy as np
import pytest

from attsvm.data import AttentionData
from attsvm.errors import InputError
from attsvm.margins import selection_margins
from attsvm.selection import locally_optimal, neighbours, optimal_tokens, token_scores
from attsvm.solvers import max_margin


def test_scores_are_label_times_head_times_token_and_masked_tokens_never_win() -> None:
    rng = np.random.default_rng(0)
    X, y, v = (
        rng.standard_normal((4, 5, 3)),
        np.array([1.0, -1.0, 1.0, -1.0]),
        rng.standard_normal(3),
    )
    mask = np.ones((4, 5), dtype=bool)
    mask[2, 1:] = False
    scores = token_scores(AttentionData(X, y, mask=mask), v)
    np.testing.assert_allclose(scores[mask], (y[:, None] * (X @ v))[mask], atol=1e-14)
    assert np.isneginf(scores[~mask]).all()
    assert optimal_tokens(AttentionData(X, y, mask=mask), v)[2] == 0


def test_leading_axes_are_instances() -> None:
    rng = np.random.default_rng(1)
    data = AttentionData(
        rng.standard_normal((2, 3, 4, 5, 6)), np.sign(rng.standard_normal((2, 3, 4)))
    )
    heads = rng.standard_normal((2, 3, 6))
    scores, best = token_scores(data, heads), optimal_tokens(data, heads)
    assert scores.shape == (2, 3, 4, 5)
    assert best.shape == (2, 3, 4)
    for k in np.ndindex(2, 3):
        np.testing.assert_array_equal(scores[k], token_scores(data.instance(*k), heads[k]))
        np.testing.assert_array_equal(best[k], optimal_tokens(data.instance(*k), heads[k]))
    np.testing.assert_array_equal(token_scores(data, heads[0, 0])[0, 0], scores[0, 0])


def test_a_tie_names_sequence_and_tokens() -> None:
    X = np.random.default_rng(2).standard_normal((3, 6, 7))
    X[1, 5] = X[1, 2]
    v = X[1, 2].copy()
    data = AttentionData(X, np.ones(3))
    with pytest.raises(InputError, match=r"tokens 2 and 5 of sequence 1 share the highest score"):
        optimal_tokens(data, v)
    assert optimal_tokens(data, v, ties="first")[1] == 2
    assert optimal_tokens(data.without_duplicates(), v)[1] == 2
    batched = AttentionData(np.stack([X[:1], X[1:2]]), np.ones((2, 1)))
    with pytest.raises(InputError, match=r"sequence 0 of instance \[1\]"):
        optimal_tokens(batched, v)


@pytest.mark.parametrize(
    ("head", "message"),
    [
        (np.ones(2), r"head has shape \(2,\); it must be \(3,\)"),
        (np.array([1.0, np.nan, 0.0]), r"head holds nan at \[1\]"),
    ],
)
def test_refused_heads(head: np.ndarray, message: str) -> None:
    with pytest.raises(InputError, match=message):
        token_scores(AttentionData(np.ones((1, 2, 3)), np.ones(1)), head)


def test_unknown_tie_rule() -> None:
    with pytest.raises(InputError, match="ties is 'last'"):
        optimal_tokens(AttentionData(np.ones((1, 2, 3)), np.ones(1)), np.ones(3), ties="last")


def toy(scores: list[float], selected: int) -> tuple[AttentionData, np.ndarray, int]:
    """mmts-1: three keys in the plane."""
    X = np.array([[[-0.1, 1.0], [1.0, 0.0], [0.0, 0.0]]])
    return AttentionData(X, np.ones(1), np.ones((1, 1))), np.array([scores]), selected


@pytest.mark.parametrize(
    ("scores", "selected", "expected"),
    [([1.0, 0.9, 0.0], 1, True), ([1.0, 0.9, 0.9], 1, False), ([1.0, 0.9, 0.9], 0, True)],
    ids=[
        "mmts-1: token 2 beats its only neighbour",
        "mmts-1: token 2 ties with its neighbour",
        "the best token",
    ],
)
def test_local_optimality_of_the_planar_toys(
    scores: list[float], selected: int, expected: bool
) -> None:
    data, gamma, token = toy(scores, selected)
    solution = max_margin(selection_margins(data, np.array([token])))
    assert [n.tolist() for n in neighbours(solution)] == [[2]]
    assert locally_optimal(solution, gamma).tolist() == [expected]


@pytest.mark.parametrize(
    ("others", "expected"),
    [((0.5, 2.0), False), ((2.0, 0.5), False), ((2.0, 2.0), False), ((0.5, 0.5), True)],
)
def test_a_locally_optimal_token_beats_all_its_neighbours(
    others: tuple[float, float], expected: bool
) -> None:
    data = AttentionData(np.eye(3)[None], np.ones(1), np.ones((1, 1)))
    solution = max_margin(selection_margins(data, np.array([0])))
    assert [n.tolist() for n in neighbours(solution)] == [[1, 2]]
    assert locally_optimal(solution, np.array([[1.0, *others]])).tolist() == [expected]


def test_optimal_tokens_are_locally_optimal_and_single_tokens_have_no_neighbours() -> None:
    rng = np.random.default_rng(5)
    data = AttentionData.from_bags(
        [rng.standard_normal((k, 8)) for k in (1, 4, 6, 1, 5)], np.array([1.0, -1, 1, 1, -1])
    )
    v = rng.standard_normal(8)
    solution = max_margin(selection_margins(data, optimal_tokens(data, v)))
    assert solution.status == "optimal"
    assert locally_optimal(solution, token_scores(data, v)).all()
    near = neighbours(solution)
    assert len(near[0]) == len(near[3]) == 0
    assert all(len(near[i]) > 0 for i in (1, 2, 4))
    with pytest.raises(InputError, match=r"scores has shape \(5, 2\)"):
        locally_optimal(solution, np.ones((5, 2)))


def test_neighbours_need_a_hard_margin_solution() -> None:
    X = np.array([[[1.0], [1.0]]])
    margins = selection_margins(AttentionData(X, np.ones(1)), np.array([0]))
    with pytest.raises(InputError, match="infeasible"):
        neighbours(max_margin(margins))
    with pytest.raises(InputError, match="soft-margin"):
        neighbours(max_margin(margins, slack=1.0))


@pytest.mark.parametrize(
    "head",
    [
        np.array([1.0 + 1e-3j, 0.0]),
        np.array(["1", "0"]),
        np.array([b"1", b"0"]),
        np.zeros(2, "M8[s]"),
        np.zeros(2, "m8[s]"),
        np.array([1, None]),
    ],
)
def test_a_head_that_is_not_made_of_real_numbers_is_refused(head):
    data = AttentionData(np.eye(2)[None], [1.0])
    with pytest.raises(InputError, match=r"head has dtype .*; give real numbers"):
        token_scores(data, head)
