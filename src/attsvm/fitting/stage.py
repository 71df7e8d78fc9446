"""One training stage that survives a kill: the same bits come out, however often it was interrupted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from attsvm.data import AttentionData, FloatArray
from attsvm.dynamics import LogSpaced, TrainState, Trajectory, train
from attsvm.models import Attention
from attsvm.optim import SteepestDescent
from attsvm.runs import Stages

Progress = Callable[[str, int, int], None]
"""Called with the name of the stage, the steps done and the steps in all."""


@dataclass(frozen=True)
class Weights:
    """A trained attention layer with its linear head: ``f(X, z) = head @ (X.T @ softmax(X W z)) + intercept``."""

    W: FloatArray
    head: FloatArray
    intercept: float

    def rescaled(self, tokens: float, queries: float) -> Weights:
        """The weights for tokens and queries that are divided by these numbers less (logits and values stay the same)."""
        return Weights(self.W / (tokens * queries), self.head / tokens, self.intercept)


def run_stage(
    name: str,
    data: AttentionData,
    start: Weights,
    *,
    steps: int,
    lr: float,
    head_lr: float | None,
    records: int,
    stages: Stages,
    checkpoint_seconds: float,
    progress: Progress | None = None,
    observe: Callable[[int, FloatArray, FloatArray, FloatArray], dict[str, Any]] | None = None,
) -> Trajectory:
    """Normalised gradient descent on ``W``, and on the head when ``head_lr`` is given, with records and checkpoints.

    A stage that is already done in ``stages`` is read back, one that was interrupted goes on.
    """
    kept, done = stages.load(name)
    if kept is not None and done:
        return Trajectory.from_arrays(kept)
    model = Attention.cross(data, head=start.head, intercept=start.intercept, init=start.W, train_head=head_lr is not None)
    groups: list[dict[str, Any]] = [{"params": [model.W], "lr": lr}]
    if head_lr is not None:
        groups.append({"params": [model.head.readout], "lr": head_lr})
    trajectory = train(
        model,
        data,
        SteepestDescent(groups, lr=lr, normalize=True),
        steps,
        record=LogSpaced(records),
        observe=observe,
        checkpoint=lambda state: stages.save(name, state.to_arrays(), done=False),
        checkpoint_seconds=checkpoint_seconds,
        resume=None if kept is None else TrainState.from_arrays(kept),
        progress=None if progress is None else lambda step, total, _: progress(name, step, total),
    )
    stages.save(name, trajectory.to_arrays(), done=True)
    return trajectory
