"""Descent on prompts of random instances, and two sequences that not every start gets right."""

from __future__ import annotations

import numpy as np

from attsvm import AttentionData, max_margin, prompt_margins, train
from attsvm.attention import Attention
from attsvm.optim import SteepestDescent
from attsvm.training import AtSteps
from attsvm_papers.mmts.random_prompts import directions, equal_scores


def test_a_sequence_that_starts_at_the_wrong_token_can_stay_there():
    # Best minus other token: (1, 0) and (-2, 1); the third coordinate is the score.
    tokens = np.array([[[1.0, 0, 1], [0, 0, 0]], [[-2.0, 1, 1], [0, 0, 0]]])
    data = AttentionData(tokens, np.ones(2), np.ones((2, 1)))
    flat = AttentionData(tokens[..., :2], np.ones(2), np.ones((2, 1)))
    solution = max_margin(prompt_margins(flat, [0, 0]))
    np.testing.assert_allclose(solution.W[:, 0], [1.0, 3.0], atol=1e-9)
    starts = np.array([[5.0, 0.0], [0.0, 0.0]])
    model = Attention.prompt(data, [0.0, 0, 1], keys=np.eye(2, 3), runs=2, init=starts)
    descent = SteepestDescent(model.parameters(), lr=0.1)
    course = train(model, data, descent, 20_000, AtSteps([2000]))
    assert course.selected[-1].tolist() == [[0, 1], [0, 0]]
    np.testing.assert_allclose(course.direction_gap(np.array([[1.0], [0.0]]))[-1, 0], 0, atol=1e-6)
    gaps = course.direction_gap(solution)
    assert gaps[-1, 0] > 0.6  # and stays: 1 - 1/sqrt(10)
    assert gaps[-1, 1] < 1e-4


def test_the_gradient_points_to_the_solution_where_other_scores_are_equal():
    found = equal_scores(4, 4, 12, [0, 1, 2], 50)
    assert (found["equal_cosine"] >= 1.0 - 1e-12).all()
    assert (found["equal_cosine_unequal"] < 1.0).any()


def test_descent_keeps_locally_optimal_directions_and_leaves_others():
    found = directions(2, 4, 4, [0, 1], 1000)
    assert set(found["seed"].tolist()) == {0, 1}
    assert 0 < found["locally"].sum() < len(found["locally"])
    assert found["after"][found["locally"]].max() < 0.01
    assert found["after"][~found["locally"]].min() > 0.01
