"""The compiled steps of mirror descent: against autograd, against extended precision, and to the
same bits when interrupted.
"""

from __future__ import annotations

import numpy as np
import pytest

from attsvm.data import AttentionData
from attsvm.datasets import unit_sphere
from attsvm.dynamics import AtSteps, LogSpaced, TrainState, train
from attsvm.dynamics.native_loop import unsupported
from attsvm.models import Attention
from attsvm.optim import MirrorDescent, SteepestDescent


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


def plain(
    data: AttentionData, v: np.ndarray, W: np.ndarray, p: float, lr: float, steps: int
) -> np.ndarray:
    """Normalised mirror descent in the numbers of ``np.longdouble``, whose exponents reach
    e^-11000, from differences to the winner.
    """
    real = np.longdouble
    x, z, head, W, p = (
        data.tokens.astype(real),
        data.queries.astype(real),
        v.astype(real),
        W.astype(real),
        real(p),
    )
    for _ in range(steps):
        G = np.zeros_like(W)
        for i in range(data.n):
            a = x[i] @ (W @ z[i])
            win = int(np.argmax(a))
            rivals = np.arange(len(a)) != win
            s = np.exp(a - a[win]) / np.exp(a - a[win]).sum()
            score = data.labels[i] * (x[i] @ head)
            lag = (score[win] - score)[rivals]
            mean = score[win] - s[rivals] @ lag
            pull = (s[rivals] * (s[rivals] @ lag - lag)) @ (x[i][rivals] - x[i][win])
            G -= np.outer(pull, z[i]) / (1 + np.exp(mean))
        q = p / (p - 1)
        size = np.abs(G) / np.abs(G).max()
        Y = np.sign(W) * np.abs(W) ** (p - 1) - lr * G / np.abs(G).max() / (size**q).sum() ** (
            1 / q
        )
        W = np.sign(Y) * np.abs(Y) ** (1 / (p - 1))
    return W


@pytest.mark.skipif(
    np.finfo(np.longdouble).minexp > -16000, reason="np.longdouble is no wider than float64 here"
)
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
    expected = plain(data, v, start, p, lr, 5)
    moved = np.abs(expected - start).max()
    # Logits of 2500 are rounded at 1e-13, and attention by as much.
    assert np.abs(trajectory.W[-1] - expected).max() < 1e-12 * moved * size


def test_at_two_it_is_steepest_descent() -> None:
    data, v = unit_sphere(5, 6, 4, [0, 1])
    W = []
    for kind, options in ((MirrorDescent, {"p": 2.0, "normalize": True}), (SteepestDescent, {})):
        model = Attention.cross(data, v, init=("uniform", 0))
        W.append(
            train(model, data, kind(model.parameters(), lr=0.1, **options), 200, LogSpaced(2)).W[-1]
        )
    np.testing.assert_allclose(W[0], W[1], rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("joint", [False, True])
def test_resumed_anywhere_it_ends_in_the_same_bits(joint: bool) -> None:
    data, v = unit_sphere(4, 5, 6, [0, 1, 2])
    states: list[TrainState] = []

    def trained(**options: object) -> tuple[np.ndarray, np.ndarray]:
        model = Attention.cross(data, v, init=("uniform", 0), train_head=joint)
        trajectory = train(
            model,
            data,
            MirrorDescent(model.parameters(), lr=0.1, p=1.3, normalize=True),
            40,
            LogSpaced(3),
            **options,
        )
        assert trajectory.backend == "compiled"
        return trajectory.W[-1], trajectory.head[-1]

    whole = trained()
    cut = trained(checkpoint=states.append, checkpoint_seconds=0.0)
    resumed = trained(resume=TrainState.from_arrays(states[17].to_arrays()))
    for a, b, c in zip(whole, cut, resumed, strict=True):
        assert np.array_equal(a, b)
        assert np.array_equal(a, c)


def test_a_run_without_gradient_stops_and_the_others_go_on() -> None:
    data, v = unit_sphere(3, 4, 5, [0, 1])
    tied = AttentionData(data.tokens.copy(), data.labels, data.queries)
    heads = v.copy()
    heads[0] = 0.0
    model = Attention.cross(tied, heads, None)
    trajectory = train(
        model, tied, MirrorDescent(model.parameters(), lr=0.1, p=3.0, normalize=True), 10
    )
    assert trajectory.stopped_at.tolist() == [0, -1]
    assert not trajectory.W[-1, 0].any()
    assert trajectory.log_gradient_norm[-1, 0] == -np.inf
    assert trajectory.W[-1, 1].any()


def test_what_the_loop_does_not_do_is_left_to_torch() -> None:
    data, v = unit_sphere(3, 4, 5, [0, 1])
    cases: list[tuple[AttentionData, np.ndarray, dict, dict, str]] = [
        (data, v, {}, {"momentum": 0.9}, "momentum"),
        (data, v, {}, {"potential": "schatten"}, "Schatten"),
        (data, v, {"parameterization": "KQ", "init": ("uniform", 0)}, {}, "on factors"),
    ]
    for instance, head, model_options, options, reason in cases:
        model = Attention.cross(instance, head, **model_options)
        optimizer = MirrorDescent(model.parameters(), lr=0.1, p=1.5, **options)
        assert reason in str(unsupported(model, optimizer, None))
    model = Attention.cross(data, v)
    optimizer = MirrorDescent(model.parameters(), lr=0.1, p=1.5, normalize=True)
    train(model, data, optimizer, 2, backend="autograd")
    assert "earlier steps" in str(unsupported(model, optimizer, None))
