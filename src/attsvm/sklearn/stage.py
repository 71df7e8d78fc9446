"""One training stage that survives a kill: the same bits come out, however often it was
interrupted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from attsvm.base.store import Stages
from attsvm.datasets.attention_data import AttentionData, FloatArray

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from attsvm.attention import Attention
    from attsvm.training import Record, Trajectory

Progress = Callable[[str, int, int], None]
"""Called with the name of the stage, the steps done and the steps in all."""


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


@dataclass(frozen=True)
class Watch:
    """How the stages of a fit are recorded, kept and told of.

    Attributes:
        stages: where unfinished work is kept.
        records: of each stage, log-spaced.
        checkpoint_seconds: time between two writes of unfinished work.
        progress: see :data:`Progress`.
    """

    stages: Stages = field(default_factory=lambda: Stages(None, ""))
    records: int = 60
    checkpoint_seconds: float = 5.0
    progress: Progress | None = None


def run_stage(
    name: str,
    data: AttentionData,
    model: Attention,
    optimizer: Optimizer,
    steps: int,
    watch: Watch,
    observe: Callable[[int, FloatArray, FloatArray, FloatArray], dict[str, Any]] | None = None,
    stop: Callable[[Record], bool] | None = None,
) -> Trajectory:
    """Train ``model`` with ``optimizer`` for ``steps`` steps, with records and checkpoints.

    A stage that is already done is read back, one that was interrupted goes on.
    """
    from attsvm.training import LogSpaced, TrainState, Trajectory, train  # begins with torch

    stages, progress = watch.stages, watch.progress
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
        record=LogSpaced(watch.records),
        observe=observe,
        stop=stop,
        checkpoint=None
        if stages.folder is None
        else lambda state: stages.save(name, state.to_arrays(), done=False),
        checkpoint_seconds=watch.checkpoint_seconds,
        resume=None if kept is None else TrainState.from_arrays(kept),
        progress=None if progress is None else lambda step, total, _: progress(name, step, total),
    )
    stages.save(name, trajectory.to_arrays(), done=True)
    return trajectory
