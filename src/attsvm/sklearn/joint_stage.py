"""Attention and head trained together, from mean pooling, by normalised gradient descent; the step
is chosen on sequences kept aside. ``attsvm fit`` begins with it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from attsvm.attention import Attention
from attsvm.datasets.attention_data import AttentionData, FloatArray
from attsvm.optim import SteepestDescent
from attsvm.sklearn import layers
from attsvm.sklearn.pooling import PooledHead, logistic_loss, mean_pooling
from attsvm.sklearn.preparation import step_work
from attsvm.sklearn.stage import Watch, Weights, run_stage
from attsvm.training import Trajectory

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from attsvm.training import Record

PATIENCE = 30
"""Steps."""


@dataclass(frozen=True, eq=False)
class Joint:
    """What joint training ends with.

    Attributes:
        weights: those of the smallest validation loss.
        trajectory: its records.
        best_step: the step of these weights.
        baseline: the mean-pooling head that it started from.
    """

    weights: Weights
    trajectory: Trajectory
    best_step: int
    baseline: PooledHead


def train_jointly(
    train: AttentionData,
    validation: AttentionData,
    steps: int | None,
    lr: float,
    head_lr: float,
    watch: Watch,
) -> Joint:
    """Train until the validation loss stops falling, or for so many ``steps``; ``lr`` is the length
    of a step of the attention weights, ``head_lr`` that of the head.
    """
    pooled = mean_pooling(train, validation)
    start = Weights(np.zeros((train.d_x, train.d_z)), pooled.coef, pooled.intercept)

    def observe(
        step: int, W: FloatArray, head: FloatArray, intercept: FloatArray
    ) -> dict[str, Any]:
        values = layers.soft_values(validation, W, head, float(intercept))
        return {
            "validation_loss": np.float64(logistic_loss(validation.labels, values)),
            "validation_accuracy": np.float64(np.mean((values > 0) == (validation.labels > 0))),
        }

    trajectory = run_stage(
        "joint",
        train,
        *joint_descent(train, start, lr, head_lr),
        steps or joint_steps(train),
        watch,
        observe,
        None if steps else no_longer_falling("validation_loss"),
    )
    best = int(np.argmin(trajectory.observed["validation_loss"]))
    weights = Weights(trajectory.W[best], trajectory.head[best], float(trajectory.intercept[best]))
    return Joint(weights, trajectory, int(trajectory.steps[best]), pooled)


def joint_steps(data: AttentionData) -> int:
    """Steps of joint training that take about five seconds of one core, between 30 and 300."""
    return int(np.clip(2.5e9 / step_work(data), 30, 300))


def joint_descent(
    data: AttentionData, start: Weights, lr: float, head_lr: float
) -> tuple[Attention, Optimizer]:
    """Normalised gradient descent on ``W`` and the head together, each with its own step length."""
    model = Attention.cross(
        data, head=start.head, intercept=start.intercept, init=start.W, train_head=True
    )
    groups = [{"params": [model.W], "lr": lr}, {"params": [model.head.readout], "lr": head_lr}]
    return model, SteepestDescent(groups, lr=lr, normalize=True)


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
