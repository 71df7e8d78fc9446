"""Gradient flow of attention under smooth heads."""

import numpy as np
import pytest
import torch

from attsvm import max_margin, multi_token_margins, train
from attsvm.attention import Attention
from attsvm.datasets import mlp_instance
from attsvm.training import AtSteps, direction_gap
from attsvm_papers.tfsvm.gradient_flow import ACTIVATIONS, Flow

TORCH = {"GELU": torch.nn.functional.gelu, "tanh": torch.tanh}


@pytest.fixture(scope="module", params=list(ACTIVATIONS))
def flow(request):
    data, V = mlp_instance(3, 5, 4, 2)
    start = np.random.default_rng(0).standard_normal((4, 4))
    return request.param, data, 4 * V, start, Flow(data, 4 * V, ACTIVATIONS[request.param], start)


def test_short_steps_of_descent_follow_the_flow(flow):
    name, data, V, start, one = flow
    head = torch.from_numpy(V)
    model = Attention.cross(data, lambda o: TORCH[name](o @ head).sum(dim=-1), init=start)
    descent = torch.optim.SGD(model.parameters(), lr=0.01)
    course = train(model, data, descent, 2000, AtSteps([1000, 2000]))
    W, s = one.run(np.log([10.0, 20.0]))
    # the flow starts at exp(-2) instead of 0, and steps are not infinitely short
    assert np.linalg.norm(W - course.W[-2:], axis=(1, 2)).max() < 0.02
    assert np.linalg.norm(W[1] - W[0]) > 0.1
    np.testing.assert_allclose(s, model.probabilities(data).detach(), atol=0.01)


def test_the_jacobian_is_that_of_the_velocity(flow):
    one = flow[-1]
    rng, eps = np.random.default_rng(1), 1e-6
    w = rng.standard_normal(one.basis.shape[1])
    for k, unit in enumerate(np.eye(len(w))):
        seen = (one.velocity(1.0, w + eps * unit) - one.velocity(1.0, w - eps * unit)) / (2 * eps)
        np.testing.assert_allclose(one.jacobian(1.0, w)[:, k], seen, atol=1e-8)


def test_late_weights_move_along_the_max_margin_part(flow):
    """What is left of the attention to other tokens is 1e-12, and what pulls is exact."""
    _, data, _, start, one = flow
    (late,), s = one.run([30.0])
    sets = s > 1e-6
    assert s[~sets].max() < 1e-9
    best = max_margin(multi_token_margins(data, sets))
    w = one.basis.T @ (late - start).ravel()
    moving = (one.basis @ one.velocity(30.0, w)).reshape(start.shape)
    assert direction_gap(moving, best.W) < 1e-3
    assert np.linalg.norm(moving) == pytest.approx(best.norm, rel=0.1)
