"""The compiled steps of mirror descent: against autograd and against extended precision."""

from __future__ import annotations

import numpy as np
import pytest
from references import extended_descent, needs_wide

from attsvm.data import AttentionData
from attsvm.datasets import unit_sphere
from attsvm.dynamics import AtSteps, train
from attsvm.models import Attention
from attsvm.optim import MirrorDescent


@pytest.mark.parametrize("p", [1.1, 1.5, 1.75, 2.0, 2.6, 3.0])
@pytest.mark.parametrize(
    "options",
    [
        {"normalize": True},
        {"normalize": True, "eps": 1e-3},
        {},
    ],
)
@pytest.mark.parametrize("joint", [False, True])
def test_compiled_steps_are_those_of_autograd(
    p: float, options: dict, joint: bool, ragged_data: tuple[AttentionData, np.ndarray]
) -> None:
    data, v = ragged_data
    start = np.random.default_rng(2).standard_normal((3, 5, 4))
    found = []
    for backend in ("autograd", "compiled"):
        model = Attention.cross(data, v, 0.3, runs=3, init=start, train_head=joint)
        optimizer = MirrorDescent(model.parameters(), lr=0.02, p=p, **options)
        found.append(
            train(
                model,
                data,
                optimizer,
                20,
                AtSteps((1, 5)),
                backend=backend,
                schedule=lambda step: 1.0 / (1 + step),
            )
        )
    auto, compiled = found
    assert (auto.backend, compiled.backend) == ("autograd", "compiled")
    # Twenty steps of a few units in the last place; at p = 1.1 a weight has ten times the relative
    # error of its dual.
    for name in ("W", "head", "intercept", "loss", "log_gradient_norm", "softmax_probability"):
        np.testing.assert_allclose(
            getattr(compiled, name), getattr(auto, name), rtol=1e-10, atol=1e-12
        )
    assert np.array_equal(compiled.selected, auto.selected)


@needs_wide
@pytest.mark.parametrize("p", [1.5, 1.75, 3.0])
@pytest.mark.parametrize("size", [1.0, 2500.0])
def test_steps_are_exact_where_gradients_are_far_below_the_smallest_number(
    p: float, size: float
) -> None:
    data, v = unit_sphere(4, 5, 6, 3)
    start = size * np.random.default_rng(1).standard_normal((6, 6))
    model = Attention.cross(data, v, None, init=start)
    lr = 0.01 * size ** (p - 1)
    trajectory = train(
        model, data, MirrorDescent(model.parameters(), lr=lr, p=p, normalize=True), 5
    )
    if size > 1.0:
        assert trajectory.log_gradient_norm[0] < -750.0
    expected = extended_descent(data, v, start, [5], lr, p)[5]
    moved = np.abs(expected - start).max()
    # Logits of 2500 are rounded at 1e-13, and attention by as much.
    assert np.abs(trajectory.W[-1] - expected).max() < 1e-12 * moved * size
