"""One training stage that survives a kill: the same bits come out, however often it was
interrupted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from attsvm.data import AttentionData, FloatArray
from attsvm.dynamics import LogSpaced, TrainState, Trajectory, train
from attsvm.models import Attention
from attsvm.store import Stages

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from attsvm.dynamics import Record

Progress = Callable[[str, int, int], None]
"""Called with the name of the stage, the steps done and the steps in all."""

PATIENCE = 30
"""Steps."""


@dataclass(frozen=True)
class Weights:
    """A trained attention layer with its linear head:
    ``f(X, z) = head @ (X.T @ softmax(X W z)) + intercept``.
    """

    W: FloatArray
    head: FloatArray
    intercept: float

    def rescaled(self, tokens: float, queries: float) -> Weights:
        """The weights for tokens and queries that are divided by these numbers less (logits and
        values stay the same).
        """
        return Weights(self.W / (tokens * queries), self.head / tokens, self.intercept)


def no_longer_falling(name: str) -> Callable[[Record], bool]:
    """Ends a stage when the observed number ``name`` has had its smallest value so far as many
    steps ago as it took to get there, and :data:`PATIENCE` at least.
    """
    best, least = 0, np.inf

    def stop(record: Record) -> bool:
        nonlocal best, least
        value = float(record.observed[name])
        if value < least:
            best, least = record.step, value
        return record.step - best >= max(best, PATIENCE)

    return stop


def run_stage(
    name: str,
    data: AttentionData,
    model: Attention,
    optimizer: Optimizer,
    *,
    steps: int,
    records: int,
    stages: Stages,
    checkpoint_seconds: float,
    progress: Progress | None = None,
    observe: Callable[[int, FloatArray, FloatArray, FloatArray], dict[str, Any]] | None = None,
    stop: Callable[[Record], bool] | None = None,
) -> Trajectory:
    """Train ``model`` with ``optimizer`` for ``steps`` steps, with records and checkpoints.

    A stage that is already done in ``stages`` is read back, one that was interrupted goes on.
    """
    kept, done = stages.load(name)
    if kept is not None and done:
        if progress is not None:
            progress(name, steps, steps)
        return Trajectory.from_arrays(kept)
    trajectory = train(
        model,
        data,
        optimizer,
        steps,
        record=LogSpaced(records),
        observe=observe,
        stop=stop,
        checkpoint=None
        if stages.folder is None
        else lambda state: stages.save(name, state.to_arrays(), done=False),
        checkpoint_seconds=checkpoint_seconds,
        resume=None if kept is None else TrainState.from_arrays(kept),
        progress=None if progress is None else lambda step, total, _: progress(name, step, total),
    )
    stages.save(name, trajectory.to_arrays(), done=True)
    return trajectory
