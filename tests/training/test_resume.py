"""A run that is cut anywhere and resumed ends with the same bits."""

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
from attsvm.optim import MirrorDescent, SteepestDescent
from attsvm.training import LogSpaced, Record, TrainState, Trajectory, train

STEPS = 60
DATA, V = unit_sphere(5, 6, 4, seed=[0, 1])
SHARES = [1.0, 0.3]
PAIR = {"parameterization": "KQ", "inner": 2}
FALLING: dict[str, Any] = {"schedule": lambda step: 0.99**step, "step_scale": SHARES}


def layer(**options: Any) -> Attention:
    return Attention.cross(DATA, V, **{"init": ("uniform", 0), **options})


def steepest(model: Attention, **options: Any) -> SteepestDescent:
    return SteepestDescent(model.parameters(), lr=0.1, **options)


def mirror(model: Attention) -> MirrorDescent:
    return MirrorDescent(model.parameters(), lr=0.05, p=1.3, normalize=True)


def adam(model: Attention) -> torch.optim.Adam:
    return torch.optim.Adam(model.parameters(), lr=0.05)


Kind = tuple[Callable[[], Attention], Callable[[Attention], torch.optim.Optimizer], dict[str, Any]]
KINDS: dict[str, Kind] = {
    "weights": (layer, steepest, {}),
    "joint": (partial(layer, train_head=True), steepest, {}),
    "factors": (partial(layer, **PAIR), steepest, FALLING),
    "penalised factors": (partial(layer, **PAIR, stacked=True, penalty=1e-3), steepest, FALLING),
    "prompt": (lambda: Attention.prompt(DATA, V, init=np.ones((2, 4))), steepest, FALLING),
    "mirror": (partial(layer, train_head=True), mirror, {}),
    "mirror by run": (layer, mirror, {"step_scale": SHARES}),
    "autograd": (layer, steepest, {"backend": "autograd"}),
    "autograd, mirror by run": (layer, mirror, {"backend": "autograd", "step_scale": SHARES}),
    "autograd, spectral momentum": (layer, partial(steepest, norm="spec", momentum=0.9), {}),
    "autograd, adam": (partial(layer, train_head=True), adam, {}),
}


def start(kind: str, **options: object) -> Trajectory:
    make, optimizer, own = KINDS[kind]
    model = make()
    found = train(
        model,
        DATA,
        optimizer(model),
        STEPS,
        LogSpaced(9),
        observe=lambda step, W, *_: {"trace": float(W.sum())},
        **(own | options),
    )
    assert found.backend == ("autograd" if "autograd" in kind else "compiled")
    return found


def same(a: Trajectory, b: Trajectory) -> None:
    left, right = a.to_arrays(), b.to_arrays()
    assert left.keys() == right.keys()
    for name in left.keys() - {"seconds"}:
        assert np.array_equal(left[name], right[name]), name


@pytest.mark.parametrize("kind", KINDS)
def test_resumed_at_every_step_ends_in_the_same_bits(kind: str) -> None:
    states: list[TrainState] = []
    whole = start(kind)
    same(whole, start(kind, checkpoint=states.append, checkpoint_seconds=0.0))
    assert [state.step for state in states] == list(range(1, STEPS + 1))
    for state in states[:: 3 if kind == "weights" else 13]:
        arrays = {name: np.array(value) for name, value in state.to_arrays().items()}
        same(whole, start(kind, resume=TrainState.from_arrays(arrays)))


def test_a_stopping_rule_that_remembers_is_rebuilt() -> None:
    def patient() -> object:
        losses: list[float] = []

        def stop(record: Record) -> bool:
            losses.append(float(record.loss.mean()))
            return len(losses) >= 7

        return stop

    whole = start("weights", stop=patient())
    assert len(whole.steps) == 7
    states: list[TrainState] = []
    start("weights", stop=patient(), checkpoint=states.append, checkpoint_seconds=0.0)
    for state in states[::3]:
        same(whole, start("weights", stop=patient(), resume=state))


def test_checkpoints_are_no_more_frequent_than_asked() -> None:
    states: list[TrainState] = []
    start("weights", checkpoint=states.append, checkpoint_seconds=1000.0)
    assert states == []


def test_a_state_of_another_run_is_refused() -> None:
    states: list[TrainState] = []
    start("weights", checkpoint=states.append, checkpoint_seconds=0.0)
    refused = partial(pytest.raises, InputError, match="the checkpoint belongs to another run")
    for kind, options in (
        ("joint", {}),
        ("weights", {"step_scale": SHARES}),
        ("weights", {"schedule": lambda step: 0.9**step}),
    ):
        with refused():
            start(kind, resume=states[3], **options)
    other = AttentionData(DATA.tokens, -DATA.labels, DATA.queries)
    for lr, data in ((0.2, DATA), (0.1, other)):
        model = layer()
        optimizer = SteepestDescent(model.parameters(), lr=lr)
        with refused():
            train(model, data, optimizer, STEPS, LogSpaced(9), resume=states[3])
    with pytest.raises(InputError, match="the checkpoint has no fingerprint"):
        TrainState.from_arrays({"step": 1, "seconds": 0.0})


def test_an_optimizer_that_cannot_be_saved_says_so() -> None:
    class Hoarder(torch.optim.SGD):
        def step(self, closure: None = None) -> None:
            super().step(closure)
            self.state[self.param_groups[0]["params"][0]]["history"] = ["a"]

    model = Attention.cross(DATA, V)
    with pytest.raises(InputError, match="Hoarder keeps 'history' as list"):
        train(
            model,
            DATA,
            Hoarder(model.parameters(), lr=0.1),
            2,
            checkpoint=lambda state: None,
            checkpoint_seconds=0.0,
        )
