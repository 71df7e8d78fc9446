r"""The model of ``attsvm fit --assumption collective``: a head on mean-pooled tokens, then
attention and head trained together, then attention alone, then the margin of its selections.

With :math:`W=0` softmax attention is the mean of the tokens, so a head that is trained on means
makes the untrained attention layer equal to the baseline. Whatever a fit gains beyond it is due to
attention.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression

from attsvm.attention import Attention
from attsvm.datasets.attention_data import (
    AttentionData,
    FloatArray,
    IntArray,
    given_away,
    mean_tokens,
)
from attsvm.norms import Norm, as_norm
from attsvm.optim import SteepestDescent
from attsvm.pipeline.settings import FitSettings
from attsvm.sklearn.explaining import Limits, certify, select_tokens
from attsvm.sklearn.preparation import root_mean_square, split_train_validation, step_work
from attsvm.sklearn.stage import StageOptions, Weights, argmax_tokens, run_stage
from attsvm.solvers import MarginSolution, Status
from attsvm.training import Trajectory

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from attsvm.training import Record


DecisionFunction = Callable[[AttentionData], FloatArray]
"""Values ``(n,)`` of sequences, whose signs are the predicted labels."""


@dataclass(frozen=True)
class PooledHead:
    """A linear head on mean-pooled tokens: ``coef @ mean + intercept``.

    Attributes:
        coef: ``(d_x,)``.
        intercept: scalar.
        C: the inverse penalty of scikit-learn's ``LogisticRegression`` that had the smallest
            validation loss.
        validation_loss: mean logistic loss on the validation part.
    """

    coef: FloatArray
    intercept: float
    C: float
    validation_loss: float

    def values(self, data: AttentionData) -> FloatArray:
        """Values ``(n,)`` whose signs are the predicted labels."""
        return mean_tokens(data) @ self.coef + self.intercept


def logistic_loss(labels: FloatArray, values: FloatArray) -> float:
    r"""Mean of :math:`\log(1+e^{-y f})`, without overflow."""
    return float(np.logaddexp(0.0, -labels * values).mean())


def mean_pooling(train: AttentionData, validation: AttentionData) -> PooledHead:
    """Logistic regression on mean tokens, its penalty chosen on the validation part.

    Inverse penalties C from 1e-3 to 1e3, relative to the mean squared norm of a mean token, are
    tried. Ties go to the strongest penalty.
    """
    means = mean_tokens(train)
    scale = float(np.mean(np.sum(means**2, axis=1))) or 1.0
    heads = []
    for relative in 10.0 ** np.arange(-3, 4):
        C = float(relative / scale)
        with warnings.catch_warnings():
            # On separable data a weak penalty has its optimum far away; the validation loss judges
            # where it stopped.
            warnings.simplefilter("ignore", ConvergenceWarning)
            regression = LogisticRegression(C=C, max_iter=1000).fit(means, train.labels)
        head = PooledHead(regression.coef_[0].copy(), float(regression.intercept_[0]), C, 0.0)
        loss = logistic_loss(validation.labels, head.values(validation))
        heads.append(replace(head, validation_loss=loss))
    return min(heads, key=lambda head: head.validation_loss)


@dataclass(frozen=True, eq=False)
class JointTraining:
    """The result of joint training.

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
    options: StageOptions,
) -> JointTraining:
    """Train until the validation loss stops falling, or for so many ``steps``.

    Args:
        train: sequences to learn from.
        validation: sequences whose loss chooses the step.
        steps: of the descent; None for 30 to 300, and fewer when the validation loss stops falling.
        lr: length of a step of the attention weights.
        head_lr: length of a step of the head.
        options: records, checkpoints, progress.
    """
    baseline = mean_pooling(train, validation)
    start = Weights(np.zeros((train.d_x, train.d_z)), baseline.coef, baseline.intercept)

    def observe(
        step: int, W: FloatArray, head: FloatArray, intercept: FloatArray
    ) -> dict[str, Any]:
        values = Weights(W, head, float(intercept)).values(validation)
        return {
            "validation_loss": np.float64(logistic_loss(validation.labels, values)),
            "validation_accuracy": np.float64(np.mean((values > 0) == (validation.labels > 0))),
        }

    trajectory = run_stage(
        "joint",
        train,
        *joint_descent(train, start, lr, head_lr),
        steps or joint_steps(train),
        options,
        observe,
        None if steps else EarlyStopping("validation_loss"),
    )
    best = int(np.argmin(trajectory.observed["validation_loss"]))
    weights = Weights(trajectory.W[best], trajectory.head[best], float(trajectory.intercept[best]))
    return JointTraining(weights, trajectory, int(trajectory.steps[best]), baseline)


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


@dataclass
class EarlyStopping:
    """Ends a stage when an observed number has had its smallest value as many steps ago as it took
    to get there, and ``patience`` at least.

    Attributes:
        name: of the observed number.
        patience: steps; untuned.
        best_step: the step of the smallest value so far.
        smallest: that value.
    """

    name: str
    patience: int = 30
    best_step: int = 0
    smallest: float = np.inf

    def __call__(self, record: Record) -> bool:
        """Whether the stage ends at this record; records come in their order."""
        value = float(record.observed[self.name])
        if value < self.smallest:
            self.best_step, self.smallest = record.step, value
        return record.step - self.best_step >= max(self.best_step, self.patience)


@dataclass(frozen=True, eq=False)
class AttentionModel:
    """Trained attention with the margin of its selections, in the units of the data.

    Attributes:
        norm: the geometry of selection and margin.
        unit: root-mean-square norm of the tokens times that of the queries.
        weights, joint_trajectory, best_step, baseline: see :class:`JointTraining`.
        selection_weights, trajectory, lr: weights, records and step of the selection stage.
        solution: the max-margin solution of the training sequences.
        hard_status: the status of the hard margin; ``solution`` is soft where it is infeasible.
    """

    norm: Norm
    unit: float
    weights: Weights
    joint_trajectory: Trajectory
    best_step: int
    baseline: PooledHead
    selection_weights: Weights
    trajectory: Trajectory
    lr: float
    solution: MarginSolution
    hard_status: Status


def limits_of(settings: FitSettings) -> Limits:
    """Limits of selection and margin."""
    return Limits(
        settings.selection_steps,
        settings.lr,
        settings.slack,
        settings.tol,
        settings.solve_seconds,
    )


def split_validation(data: AttentionData, settings: FitSettings) -> tuple[IntArray, IntArray]:
    """Positions of the sequences that are trained on, and of those that choose the step."""
    return split_train_validation(
        data.labels, settings.validation_size, settings.seed, "validation_size"
    )


def train_attention(
    data: AttentionData,
    settings: FitSettings,
    options: StageOptions,
    predictor_fitted: Callable[[DecisionFunction], None] | None = None,
) -> AttentionModel:
    """Train on labelled sequences as the settings say.

    1. Bring tokens and queries to a root-mean-square norm of one.
    2. Train attention and head together.
    3. Train attention alone, until each sequence selects one token.
    4. Solve for the selected tokens, in the units of the data.

    Args:
        data: the sequences.
        settings: what the user chose.
        options: records, checkpoints, progress.
        predictor_fitted: called between the second and the third step with the values that predict
            labels.
    """
    norm, limits = as_norm(settings.norm), limits_of(settings)
    train_rows, validation_rows = split_validation(data, settings)
    # 1: both scales, and the scaled data
    token_scale = root_mean_square(data.tokens[data.mask])
    query_scale = root_mean_square(data.queries)
    scaled = AttentionData(
        given_away(data.tokens / token_scale), data.labels, data.queries / query_scale, data.mask
    )
    train, validation = scaled.take(train_rows), scaled.take(validation_rows)
    # 2: joint training
    joint = train_jointly(
        train, validation, settings.joint_steps, settings.joint_lr, settings.head_lr, options
    )
    predictor = joint.weights.rescaled(token_scale, query_scale)
    if predictor_fitted is not None:
        predictor_fitted(predictor.values)
    # 3: selection
    weights, trajectory, lr = select_tokens(train, joint.weights, norm, limits, options)
    selection_weights = weights.rescaled(token_scale, query_scale)
    # 4: margin
    train = data.take(train_rows)
    tokens = argmax_tokens(train, selection_weights.W)
    solution, hard_status = certify(train, tokens, norm, limits, options.progress)
    return AttentionModel(
        norm=norm,
        unit=token_scale * query_scale,
        weights=predictor,
        joint_trajectory=joint.trajectory,
        best_step=joint.best_step,
        baseline=replace(
            joint.baseline,
            coef=joint.baseline.coef / token_scale,
            C=joint.baseline.C / token_scale**2,
        ),
        selection_weights=selection_weights,
        trajectory=trajectory,
        lr=lr,
        solution=solution,
        hard_status=hard_status,
    )
