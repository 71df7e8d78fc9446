"""Every scheduler of torch with every optimiser: rates are those that it gives plain SGD,
and what it writes is what the step reads.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import Optimizer, lr_scheduler

from attsvm.attention import Attention
from attsvm.base.errors import InputError
from attsvm.datasets.attention_data import AttentionData
from attsvm.optim import CombinedOptimizer, MirrorDescent, SteepestDescent
from attsvm.optim.polyak import PolyakDescent
from attsvm.training import AtSteps, TrainState, train

STEPS = 6


def sequential(optimizer: Optimizer) -> Any:
    schedulers = [lr_scheduler.ConstantLR(optimizer), lr_scheduler.ExponentialLR(optimizer, 0.5)]
    return lr_scheduler.SequentialLR(optimizer, schedulers, [2])


def chained(optimizer: Optimizer) -> Any:
    schedulers = [
        lr_scheduler.MultiStepLR(optimizer, [2]),
        lr_scheduler.ExponentialLR(optimizer, 0.5),
    ]
    return lr_scheduler.ChainedScheduler(schedulers, optimizer)


SCHEDULERS: dict[str, Callable[[Optimizer], Any]] = {
    "ChainedScheduler": chained,
    "ConstantLR": lambda o: lr_scheduler.ConstantLR(o, total_iters=2),
    "CosineAnnealingLR": lambda o: lr_scheduler.CosineAnnealingLR(o, 4),
    "CosineAnnealingWarmRestarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 2),
    "CyclicLR": lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.1, step_size_up=2),
    "ExponentialLR": lambda o: lr_scheduler.ExponentialLR(o, 0.5),
    "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, lambda step: 0.9**step),
    "LinearLR": lambda o: lr_scheduler.LinearLR(o, 0.5, total_iters=3),
    "MultiStepLR": lambda o: lr_scheduler.MultiStepLR(o, [1, 3]),
    "MultiplicativeLR": lambda o: lr_scheduler.MultiplicativeLR(o, lambda step: 0.9),
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, 0.2, total_steps=STEPS),
    "PolynomialLR": lambda o: lr_scheduler.PolynomialLR(o, 3),
    "ReduceLROnPlateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=0),
    "SequentialLR": sequential,
    "StepLR": lambda o: lr_scheduler.StepLR(o, 2),
}
CYCLES = ("CyclicLR", "OneCycleLR")  # of momentum too


def test_torch_has_these_schedulers_and_no_others() -> None:
    names = {
        name
        for name, kind in inspect.getmembers(lr_scheduler, inspect.isclass)
        if issubclass(kind, lr_scheduler.LRScheduler) and not name.startswith("_")
    }
    assert names - {"LRScheduler"} == set(SCHEDULERS)


def steepest(**settings: Any) -> Callable[..., Optimizer]:
    return lambda a, b: SteepestDescent([a, b], **{"lr": 0.1, **settings})


def mirror(**settings: Any) -> Callable[..., Optimizer]:
    return lambda a, b: MirrorDescent([a, b], **{"lr": 0.1, **settings})


def combined(first: Any, second: Any, **settings: Any) -> Callable[..., Optimizer]:
    return lambda a, b: CombinedOptimizer([first([a], lr=0.1, **settings), second([b], lr=0.1)])


OPTIMIZERS: dict[str, Callable[..., Optimizer]] = {
    "gradient": steepest(normalize=False),
    "signum": steepest(norm="linf", momentum=0.9, dampening=0.9),
    "muon": steepest(norm="spectral", momentum=0.95, nesterov=True, weight_decay=0.1),
    "mirror 3, momentum": mirror(p=3.0, momentum=0.9, weight_decay=0.1),
    "mirror 1.1, normalised": mirror(p=1.1, normalize=True),
    "schatten": mirror(p=1.5, potential="schatten"),
    "mirror and AdamW": combined(MirrorDescent, torch.optim.AdamW, p=1.5),
    "AdamW and steepest": combined(torch.optim.AdamW, SteepestDescent),
}


def parameters() -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    return [
        nn.Parameter(torch.randn(shape, generator=generator, dtype=torch.float64))
        for shape in ((4, 3), (3, 2))
    ]


def go(optimizer: Optimizer, pair: list[nn.Parameter], step: int) -> None:
    generator = torch.Generator().manual_seed(1 + step)
    for parameter in pair:
        parameter.grad = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    optimizer.step()


def step_of(scheduler: Any) -> None:
    takes_metric = isinstance(scheduler, lr_scheduler.ReduceLROnPlateau)
    scheduler.step(1.0) if takes_metric else scheduler.step()


@pytest.mark.parametrize("kind", SCHEDULERS)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_rates_are_those_of_sgd_and_are_read(name: str, kind: str) -> None:
    pair, twins, plain = parameters(), parameters(), parameters()
    optimizer, by_hand = OPTIMIZERS[name](*pair), OPTIMIZERS[name](*twins)
    sgd = torch.optim.SGD(plain, lr=0.1, momentum=0.9)
    scheduler, theirs = SCHEDULERS[kind](optimizer), SCHEDULERS[kind](sgd)
    rates = set()
    for step in range(STEPS):
        rate, momentum = sgd.param_groups[0]["lr"], sgd.param_groups[0]["momentum"]
        rates.add(rate)
        assert [group["lr"] for group in optimizer.param_groups] == pytest.approx(
            [rate] * len(optimizer.param_groups)
        )
        for group in by_hand.param_groups:
            group["lr"] = rate
            if kind in CYCLES and "betas" in group:
                group["betas"] = (momentum, group["betas"][1])
            elif kind in CYCLES:
                group["momentum"] = momentum
        go(optimizer, pair, step)
        go(by_hand, twins, step)
        go(sgd, plain, step)
        if step < STEPS - 1:
            step_of(scheduler)
            step_of(theirs)
    assert len(rates) > 1
    for mine, expected in zip(pair, twins, strict=True):
        torch.testing.assert_close(mine.detach(), expected.detach(), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("kind", CYCLES)
def test_without_a_momentum_to_cycle_the_argument_is_named(kind: str) -> None:
    pair = parameters()
    lacking = combined(SteepestDescent, torch.optim.Adagrad)(*pair)
    with pytest.raises(ValueError, match="cycle_momentum"):
        SCHEDULERS[kind](lacking)
    polyak = PolyakDescent(pair)
    SCHEDULERS[kind](polyak)
    for parameter in pair:
        parameter.grad = torch.ones_like(parameter)
    before = pair[0].detach().clone()
    with pytest.raises(InputError, match="cycle_momentum=False"):
        polyak.step(lambda: torch.tensor(1.0))
    assert torch.equal(pair[0], before)


def bundled() -> AttentionData:
    rng = np.random.default_rng(0)
    signs = np.array([1.0, -1.0, 1.0, -1.0])
    return AttentionData(rng.standard_normal((4, 3, 2)), signs, rng.standard_normal((4, 2)))


@pytest.mark.parametrize("name", ["steepest", "combined"])
@pytest.mark.parametrize("kind", SCHEDULERS)
def test_a_training_with_a_scheduler_resumes_where_it_was_cut(kind: str, name: str) -> None:
    data = bundled()
    make: dict[str, Callable[[Any], Optimizer]] = {
        "steepest": lambda weights: SteepestDescent(weights, lr=0.1),
        "combined": lambda weights: CombinedOptimizer(
            [MirrorDescent(weights[:1], lr=0.1, p=1.5), torch.optim.AdamW(weights[1:], lr=0.1)]
        ),
    }

    def start(**options: Any) -> np.ndarray:
        model = Attention.cross(data, [1.0, 0.5], init=("uniform", 0), train_head=True)
        optimizer = make[name](list(model.parameters()))
        options |= {"schedule": SCHEDULERS[kind](optimizer), "record": AtSteps([0, STEPS - 1])}
        return train(model, data, optimizer, STEPS - 1, **options).W[-1]

    states: list[TrainState] = []
    uncut = start(checkpoint=states.append, checkpoint_seconds=0.0)
    assert len(states) >= 3
    for state in states[::2]:
        resumed = start(resume=TrainState.from_arrays(state.to_arrays()))
        np.testing.assert_allclose(resumed, uncut, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("backend", ["compiled", "autograd"])
@pytest.mark.parametrize("schedule", [None, lambda step: 0.0])
@pytest.mark.parametrize(
    "make",
    [
        lambda weights, lr: SteepestDescent(weights, lr=lr),
        lambda weights, lr: MirrorDescent(weights, lr=lr, p=1.5),
        lambda weights, lr: MirrorDescent(weights, lr=lr, p=3.0, normalize=True),
    ],
)
def test_a_training_at_lr_zero_stands_still(make: Any, schedule: Any, backend: str) -> None:
    data = bundled()
    model = Attention.cross(data, [1.0, 0.5], init=("uniform", 0))
    before = model.W.detach().clone()
    optimizer = make(model.parameters(), 0.1 if schedule else 0.0)
    train(model, data, optimizer, 3, AtSteps(()), schedule=schedule, backend=backend)
    assert torch.equal(model.W, before)
