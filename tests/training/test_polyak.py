"""Polyak's step in the compiled loop: the autograd step while that has digits, and the exact one
after.
"""

from __future__ import annotations

from typing import Any

import mpmath as mp
import numpy as np
import pytest
import torch

from attsvm.attention import Attention, Exponential, Linear, Logistic, Loss
from attsvm.base.errors import InputError
from attsvm.datasets import unit_sphere
from attsvm.datasets.attention_data import AttentionData
from attsvm.margins import token_scores
from attsvm.native import library
from attsvm.optim import SteepestDescent
from attsvm.optim.polyak import PolyakDescent
from attsvm.training import AtSteps, LogSpaced, Trajectory, train

LOSSES = {0: Logistic(), 1: Exponential(), 2: Linear()}


def values(loss: Loss, u: Any) -> Any:
    return {
        "Logistic": lambda: np.logaddexp(0.0, -u),
        "Exponential": lambda: np.exp(-u),
        "Linear": lambda: -u,
    }[type(loss).__name__]()


def run(
    data: AttentionData,
    v: Any,
    loss: Loss,
    steps: int,
    backend: Any,
    floor: float = 0.0,
    **options: Any,
) -> Trajectory:
    """``floor`` is subtracted from the loss of the best tokens."""
    model = Attention.cross(data, v, loss=loss, init=options.pop("init", "zeros"))
    lowest = values(loss, token_scores(data, v).max(axis=-1)).mean(axis=-1) - floor
    settings: dict[str, Any] = {
        "loss_floor": torch.as_tensor(lowest),
        "normalize": options.pop("normalize", True),
    }
    return train(
        model,
        data,
        PolyakDescent(model.parameters(), **settings),
        steps,
        LogSpaced(6),
        backend=backend,
        **options,
    )


@pytest.mark.parametrize("code", LOSSES)
@pytest.mark.parametrize("floor", [0.0, 0.2])
@pytest.mark.parametrize("normalize", [True, False])
def test_compiled_steps_are_the_autograd_ones(code: int, floor: float, normalize: bool) -> None:
    data, v = unit_sphere(5, 4, 6, seed=[0, 1, 2])
    steps = 3 if floor else 8  # steps to a floor that does not exist grow without bound
    pair = [
        run(data, v, LOSSES[code], steps, backend, floor, normalize=normalize)
        for backend in ("compiled", "autograd")
    ]
    assert pair[0].backend == "compiled"
    # eight steps leave a loss 1e-3 above its floor at least, so the difference of the autograd path
    # keeps ten digits
    np.testing.assert_allclose(pair[0].W, pair[1].W, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("code", LOSSES)
def test_the_excess_of_a_loss_is_exact(code: int) -> None:
    rng = np.random.default_rng(3)
    with mp.workdps(60):
        for best, log_fall in zip(rng.uniform(-40, 40, 300), rng.uniform(-90, 5, 300), strict=True):
            fall = mp.e ** mp.mpf(log_fall)
            loss = {0: lambda u: mp.log1p(mp.e**-u), 1: lambda u: mp.e**-u, 2: lambda u: -u}[code]
            exact = mp.log(loss(mp.mpf(best) - fall) - loss(mp.mpf(best)))
            # relative rounding of the excess, plus that of exp(log_fall) with its argument up to 90
            assert abs(library.log_excess_of(best, log_fall, code) - float(exact)) < 1e-13 * max(
                1.0, abs(float(exact)), np.exp(log_fall)
            )


def test_floors_that_the_loss_is_below_or_never_reaches() -> None:
    data, v = unit_sphere(4, 4, 5, seed=0)
    assert not run(data, v, Logistic(), 3, "compiled", floor=-10.0).W.any()
    found = run(data, v, Logistic(), 200, "compiled", floor=1.0)
    assert found.stopped_at >= 0
    assert np.isfinite(found.W).all()


def test_steps_below_rounding_of_the_loss_go_on() -> None:
    data, v = unit_sphere(4, 4, 12, seed=[0, 1])
    trajectory = run(data, v, Logistic(), 2000, "compiled")
    step = np.linalg.norm(np.diff(trajectory.W, axis=0), axis=(-2, -1))
    assert (trajectory.softmax_probability[-1] == 1.0).all()
    assert (step[-1] > 10.0).all()
    assert np.isfinite(trajectory.W).all()


def falling(step: int) -> float:
    return float((step + 1.0) ** -0.5)


def test_schedules_by_name_are_those_of_groups() -> None:
    data, v = unit_sphere(5, 4, 6, seed=[0, 1])

    def trained(backend: Any) -> Trajectory:
        model = Attention.cross(data, v, train_head=True)
        groups = [{"params": [model.W]}, {"params": [model.head.readout], "lr": 0.02}]
        optimizer = SteepestDescent(groups, lr=0.1)
        return train(
            model,
            data,
            optimizer,
            60,
            AtSteps(()),
            schedule={"head.readout": falling},
            step_scale={"head.readout": [1.0, 0.5]},
            backend=backend,
        )

    compiled, autograd = trained("compiled"), trained("autograd")
    assert compiled.backend == "compiled"
    np.testing.assert_allclose(compiled.W, autograd.W, rtol=1e-11, atol=1e-11)
    np.testing.assert_allclose(compiled.head, autograd.head, rtol=1e-11, atol=1e-11)
    total = 0.02 * sum(falling(step) for step in range(60))
    reached = np.linalg.norm(compiled.head[-1] - compiled.head[0], axis=-1)
    assert (
        reached <= total * np.array([1.0, 0.5]) * (1 + 1e-12)
    ).all()  # steps of the unscaled 0.02 would go up to 1.2


def test_schedules_by_name_name_parameters_and_do_not_split_a_group() -> None:
    data, v = unit_sphere(4, 4, 5, seed=0)
    model = Attention.cross(data, v, train_head=True)
    optimizer = SteepestDescent(model.parameters(), lr=0.1)
    with pytest.raises(InputError, match="no parameter"):
        train(model, data, optimizer, 1, schedule={"Q": falling})
    with pytest.raises(InputError, match="group of its own"):
        train(model, data, optimizer, 1, schedule={"head.readout": falling}, backend="autograd")
