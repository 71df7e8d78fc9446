"""A run that is cut anywhere and resumed ends with the same bits."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attsvm.data import AttentionData
from attsvm.datasets import unit_sphere
from attsvm.dynamics import LogSpaced, Record, TrainState, Trajectory, train
from attsvm.errors import InputError
from attsvm.models import Attention
from attsvm.optim import SteepestDescent

STEPS = 60
DATA, V = unit_sphere(5, 6, 4, seed=[0, 1])
KINDS = ["weights", "joint", "autograd", "adam"]


def start(kind: str, **options: object) -> Trajectory:
    model = Attention.cross(DATA, V, train_head=kind in ("joint", "adam"), init=("uniform", 0))
    optimizer = (
        torch.optim.Adam(model.parameters(), lr=0.05)
        if kind == "adam"
        else SteepestDescent(model.parameters(), lr=0.1)
    )
    backend = "autograd" if kind == "autograd" else "auto"
    return train(
        model,
        DATA,
        optimizer,
        STEPS,
        LogSpaced(9),
        backend=backend,
        observe=lambda step, W, *_: {"trace": float(W.sum())},
        **options,
    )


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
    for state in states[:: 3 if kind == "weights" else 9]:
        arrays = {name: np.array(value) for name, value in state.to_arrays().items()}
        same(whole, start(kind, resume=TrainState.from_arrays(arrays)))


@settings(max_examples=15)
@given(cuts=st.lists(st.integers(1, STEPS - 1), min_size=2, max_size=3, unique=True).map(sorted))
def test_cut_several_times(cuts: list[int]) -> None:
    whole, state = start("weights"), None

    class KilledError(Exception):
        pass

    for cut in cuts:

        def kill(now: TrainState, cut: int = cut) -> None:
            nonlocal state
            state = TrainState.from_arrays(now.to_arrays())
            if now.step == cut:
                raise KilledError

        with pytest.raises(KilledError):
            start("weights", resume=state, checkpoint=kill, checkpoint_seconds=0.0)
    same(whole, start("weights", resume=state))


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
    with pytest.raises(InputError, match="the checkpoint belongs to another run"):
        start("joint", resume=states[3])
    model = Attention.cross(DATA, V)
    with pytest.raises(InputError, match="belongs to another run"):
        train(
            model,
            DATA,
            SteepestDescent(model.parameters(), lr=0.2),
            STEPS,
            LogSpaced(9),
            resume=states[3],
        )
    other = AttentionData(DATA.tokens, -DATA.labels, DATA.queries)
    with pytest.raises(InputError, match="belongs to another run"):
        train(
            model,
            other,
            SteepestDescent(model.parameters(), lr=0.1),
            STEPS,
            LogSpaced(9),
            resume=states[3],
        )
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
