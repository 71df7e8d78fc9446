"""The derived cone of the local theorems: how far margins move in it, and which way descent goes;
local paths inside of it.
"""

import numpy as np
import pytest
import torch

from attsvm import max_margin, optimal_tokens, selection_margins, token_scores
from attsvm.datasets import unit_sphere
from attsvm_papers.mmts import local_optima
from attsvm_papers.tfsvm.local_cones import (
    ascent_at,
    half_angle,
    margin_surplus,
    random_weights_in_cone,
)


def test_ascent_is_minus_the_gradient_of_the_loss_along_a_matrix() -> None:
    data, head = unit_sphere(3, 4, 6, 2)
    solution = max_margin(selection_margins(data, optimal_tokens(data, head)))
    scores = token_scores(data, head)
    along, W = np.random.default_rng(1).standard_normal((2, 6, 6))
    tokens, queries, gamma = (torch.tensor(each) for each in (data.tokens, data.queries, scores))
    free = torch.tensor(W, requires_grad=True)
    s = torch.softmax((tokens @ (queries @ free.T)[..., None])[..., 0], dim=-1)
    torch.nn.functional.softplus(-(s * gamma).sum(dim=-1)).mean().backward()
    # The same from the terms of attention, far from saturation.
    s = s.detach().numpy()
    mean = (s * scores).sum(axis=-1, keepdims=True)
    there = np.einsum("ntd,de,ne->nt", data.tokens, along, data.queries)
    best = optimal_tokens(data, head)[:, None]
    ahead = np.take_along_axis(there, best, axis=-1) - there
    terms = s * (mean - scores) * ahead / (1.0 + np.exp(mean))
    assert np.isclose(terms.sum() / 3.0, -float((free.grad * torch.tensor(along)).sum()))
    assert np.isclose(
        ascent_at(solution, scores, W[None], along)[0], terms.sum() / np.abs(terms).sum()
    )


def test_margins_move_by_no_more_than_the_cone_allows() -> None:
    data, v = unit_sphere(3, 6, 5, 0)
    solution = max_margin(selection_margins(data, optimal_tokens(data, v)))
    margins = solution.margins
    far = np.delete(margins(solution.W), solution.support)
    assert margin_surplus(solution) == pytest.approx(far.min() - 1.0)
    for movement in (0.01, 0.1, margin_surplus(solution) / 3.0):
        moved = random_weights_in_cone(
            solution, half_angle(solution, movement), 1.0, 200, np.random.default_rng(1)
        )
        most = max(np.abs(margins(W) - margins(solution.W)).max() for W in moved)
        assert 0.1 * movement < most <= movement * (1 + 1e-12)


@pytest.mark.parametrize("bound", ["nuc", "lp:3"])
def test_local_paths_turn_to_local_directions(bound: str) -> None:
    paths = local_optima.paths_around_local_optima(bound, [0], sizes=(300.0, 3000.0))
    assert paths
    early, late = np.array([path["local_gap"] for path in paths]).T
    # gaps fall as 1 / R^2; the next order is 1 / R of that, about a percent
    np.testing.assert_allclose(late / early, 0.01, rtol=0.03)
