"""Training of every parameterisation: compiled against autograd step by step, and the limits that
the papers state.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from attsvm.attention import Attention
from attsvm.base.errors import InputError
from attsvm.datasets import unit_sphere
from attsvm.datasets.attention_data import AttentionData
from attsvm.datasets.queries import sequence_pairs
from attsvm.margins import selection_margins, sequence_margins
from attsvm.norms import Nuclear
from attsvm.optim import MirrorDescent, SteepestDescent
from attsvm.solvers import max_margin, max_margin_batch
from attsvm.training import DirectionWithin, LogSpaced, train

DATA, V = unit_sphere(5, 6, 4, seed=[0, 1, 2])
KEYS = np.random.default_rng(0).standard_normal((3, 4))


def ngd(model: Attention, lr: float = 0.1, normalize: bool = True) -> SteepestDescent:
    return SteepestDescent(model.parameters(), lr=lr, normalize=normalize)


def factors(scale: float, **options: object) -> Attention:
    rng = np.random.default_rng(1)
    pair = tuple(scale * rng.standard_normal((3, 4, 2)) for _ in range(2))
    return Attention.cross(DATA, V, parameterization="KQ", inner=2, init=pair, **options)


MODELS: dict[str, Callable[..., Attention]] = {
    "W": lambda s, **o: Attention.cross(
        DATA, V, init=s * np.random.default_rng(1).standard_normal((3, 4, 4)), **o
    ),
    "W and head": lambda s, **o: Attention.cross(DATA, V, init=s * np.eye(4), train_head=True, **o),
    "p": lambda s, **o: Attention.prompt(
        DATA, V, keys=KEYS, init=s * np.random.default_rng(1).standard_normal((3, 3)), **o
    ),
    "p and head": lambda s, **o: Attention.prompt(
        DATA, V, init=s * np.ones((3, 4)), train_head=True, **o
    ),
    "KQ": lambda s, **o: factors(s, **o),
    "KQ stacked": lambda s, **o: factors(s, stacked=True, **o),
    "KQ stacked and penalised": lambda s, **o: factors(s, stacked=True, penalty=1e-3, **o),
    "KQ penalised by run": lambda s, **o: factors(s, penalty=[0.0, 2.2e-16, 1e-3], **o),
}


STEPS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "normalised": partial(SteepestDescent, lr=0.1),
    "plain": partial(SteepestDescent, lr=0.1, normalize=False),
    "mirror 1.1": partial(MirrorDescent, lr=0.02, p=1.1, normalize=True),
    "mirror 1.5": partial(MirrorDescent, lr=0.02, p=1.5),
    "mirror 1.75": partial(MirrorDescent, lr=0.02, p=1.75, normalize=True, eps=1e-3),
    "mirror 2": partial(MirrorDescent, lr=0.02, p=2.0, normalize=True),
    "mirror 3": partial(MirrorDescent, lr=0.02, p=3.0),
}
CASES = [
    (name, loss, step, size)
    for name in MODELS
    for step in STEPS
    for loss in ("logistic", "exponential", "linear")
    for size in (0.5, 30.0)
    if "mirror" not in step or ("KQ" not in name and loss == "logistic")
]


@pytest.mark.parametrize(("name", "loss", "step", "size"), CASES)
def test_compiled_step_equals_autograd(name: str, loss: str, step: str, size: float) -> None:
    # A step at a time from the same weights: long runs of saturated factors amplify the last bit.
    results = []
    for backend in ("compiled", "autograd"):
        model = MODELS[name](size, loss=loss)
        optimizer = STEPS[step](model.parameters())
        trajectory = train(model, DATA, optimizer, 1, backend=backend)
        results.append(
            (
                trajectory,
                {key: value.detach().numpy().copy() for key, value in model.named_parameters()},
            )
        )
    (compiled, ours), (auto, theirs) = results
    assert compiled.backend == "compiled"
    for key, value in ours.items():
        assert np.abs(value - theirs[key]).max() <= 1e-12 * max(np.abs(theirs[key]).max(), 1.0), key
    assert compiled.parameters.keys() == auto.parameters.keys()
    for field in ("loss", "W", "log_gradient_norm", "norm"):
        np.testing.assert_allclose(
            getattr(compiled, field), getattr(auto, field), rtol=1e-11, atol=1e-11
        )
    assert (compiled.selected == auto.selected).all()
    np.testing.assert_allclose(compiled.softmax_probability, auto.softmax_probability, rtol=1e-10)


def test_descent_under_a_fixed_prompt_is_descent_on_the_prompt() -> None:
    # T1 (Lemma 1 of Max-Margin Token Selection): W_k = p_k u^T / |u|^2 when W takes steps of eta /
    # |u|^2.
    u, p0 = np.array([0.5, -1.0, 2.0]), np.array([0.3, 0.1, -0.2, 0.4])
    square = u @ u
    asked = AttentionData(DATA.tokens, DATA.labels, np.broadcast_to(u, (3, 5, 3)), DATA.mask)
    moving = Attention.prompt(DATA, V, init=p0)
    fixed = Attention.cross(asked, V, None, init=np.outer(p0, u) / square)
    a = train(moving, DATA, torch.optim.SGD(moving.parameters(), lr=0.5), 200, LogSpaced(6))
    b = train(fixed, asked, torch.optim.SGD(fixed.parameters(), lr=0.5 / square), 200, LogSpaced(6))
    np.testing.assert_allclose(b.W, a.W * u / square, rtol=0, atol=1e-12)


def test_only_steps_of_the_stacked_pair_conserve_the_balance() -> None:
    imbalance = {}
    for stacked in (True, False):
        model = factors(0.5, stacked=stacked)
        before, after = ([part.detach().clone() for part in model.factors()] for _ in range(2))
        train(model, DATA, ngd(model, lr=1e-4), 2000, LogSpaced(1))
        after = [part.detach() for part in model.factors()]
        K0, Q0, K, Q = before + after
        imbalance[stacked] = float(((K.mT @ K - Q.mT @ Q) - (K0.mT @ K0 - Q0.mT @ Q0)).abs().max())
    assert imbalance[True] < 1e-4 < 1e-2 * imbalance[False]


def test_factors_of_few_sequences_in_many_dimensions_are_those_of_torch() -> None:
    data, v = unit_sphere(2, 3, 9, seed=0)
    ends = []
    for backend in ("compiled", "autograd"):
        model = Attention.cross(data, v, parameterization="KQ", init=("uniform", 0))
        ends.append(train(model, data, ngd(model), 20, LogSpaced(3), backend=backend))
    for name in ("K", "Q"):
        parts = [end.parameters[name] for end in ends]
        np.testing.assert_allclose(*parts, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("backend", ["compiled", "autograd"])
@pytest.mark.parametrize("name", ["W", "KQ", "p and head"])
def test_scaled_runs_and_schedules_are_runs_of_their_own_step(name: str, backend: str) -> None:
    def falling(step: int) -> float:
        return 1.0 / (1.0 + 0.1 * step)

    model = MODELS[name](0.5)
    together = train(
        model,
        DATA,
        ngd(model),
        40,
        LogSpaced(3),
        backend=backend,
        step_scale={key: [1.0, 0.25, 0.5] for key, _ in model.named_parameters()},
        schedule=falling,
    )
    for r, share in enumerate((1.0, 0.25, 0.5)):
        model = MODELS[name](0.5)
        alone = train(
            model,
            DATA,
            ngd(model, lr=0.1 * share),
            40,
            LogSpaced(3),
            backend=backend,
            schedule=falling,
        )
        if backend == "compiled":
            assert np.array_equal(together.W[:, r], alone.W[:, r])
        np.testing.assert_allclose(together.W[:, r], alone.W[:, r], rtol=1e-9, atol=1e-11)
        moved = np.linalg.norm(alone.W[1, r] - alone.W[0, r])
        assert name == "KQ" or moved == pytest.approx(0.1 * share, rel=1e-9)


def test_training_ends_once_the_direction_is_certified() -> None:
    data, v = unit_sphere(3, 4, 5, seed=[0, 1])
    model = Attention.cross(data, v)
    selected = train(model, data, ngd(model), 2000, LogSpaced(1)).selected[-1]
    solutions = max_margin_batch(
        [selection_margins(data.instance(r), tokens) for r, tokens in enumerate(selected)]
    )
    model = Attention.cross(data, v)
    rule = DirectionWithin(solutions, 1e-3)
    trajectory = train(model, data, ngd(model), 50_000, LogSpaced(60), stop=rule)
    assert trajectory.steps[-1] < 50_000
    certified = np.array([rule.certified(W) for W in trajectory.W])
    assert (certified[-1] <= 1e-3).all()
    assert (certified[:-1] > 1e-3).any(axis=1).all()
    assert (
        certified * (1 + 1e-12) >= trajectory.direction_gap(solutions)
    ).all()  # equal where the solution is exact
    one = DirectionWithin(solutions[1], 1e-3).certified(trajectory.W[-1, 1])
    assert one.shape == ()
    assert one == pytest.approx(certified[-1, 1], rel=1e-12)  # sums in another order
    with pytest.raises(InputError, match="hard-margin solutions of the Frobenius norm"):
        DirectionWithin(
            max_margin(selection_margins(data.instance(0), [0, 0, 0]), Nuclear()), 1e-3
        ).certified(trajectory.W[-1, 0])


def test_positions_train_to_the_solution_of_their_pairs() -> None:
    data, v = unit_sphere(2, 4, 8, seed=0)
    labels = np.sign(np.random.default_rng(0).standard_normal((2, 4)))
    for causal in (False, True):
        pairs = sequence_pairs(data, labels, causal)
        model = Attention.cross(pairs, v, intercept=None)
        trajectory = train(model, pairs, ngd(model), 2500, LogSpaced(1))
        selected = trajectory.selected[-1].reshape(2, 4)
        solution = max_margin(sequence_margins(data, selected, causal=causal))
        assert trajectory.direction_gap(solution)[-1] < 1.5e-3
