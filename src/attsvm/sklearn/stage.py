"""The weights of attention with a linear head, their values of sequences, and one training stage of
them that survives a kill: the same bits come out, however often it was interrupted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import softmax

from attsvm.base.store import RunFolder
from attsvm.datasets.attention_data import AttentionData, FloatArray, IntArray

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from attsvm.attention import Attention
    from attsvm.training import Record, Trajectory

Progress = Callable[[str, int, int], None]
"""Called with the name of the stage, the steps done and the steps in all."""


def logits(data: AttentionData, W: FloatArray) -> FloatArray:
    r"""Logits :math:`x_{it}^\top W z_i`, ``(n, T)``; ``-inf`` on masked tokens."""
    keys = data.queries @ W.T
    unmasked = np.matmul(data.tokens, keys[:, :, None])[..., 0]
    return np.where(data.mask, unmasked, -np.inf)


def selected_tokens(data: AttentionData, W: FloatArray) -> IntArray:
    """Positions ``(n,)`` of the visible tokens with the largest logit, the first one on ties."""
    return np.argmax(logits(data, W), axis=1)


def probabilities(data: AttentionData, W: FloatArray) -> FloatArray:
    """Attention weights ``(n, T)``, the softmax of the logits; zero on masked tokens."""
    return softmax(logits(data, W), axis=1)


@dataclass(frozen=True)
class Weights:
    """A trained attention layer with its linear head:
    ``f(X, z) = head @ (X.T @ softmax(X W z)) + intercept``.

    Attributes:
        W: ``(d_x, d_z)``.
        head: ``(d_x,)``.
        intercept: of the head.
    """

    W: FloatArray
    head: FloatArray
    intercept: float

    def rescaled(self, token_scale: float, query_scale: float) -> Weights:
        """Weights with the same logits and values where tokens and queries are so many times as
        long.
        """
        return Weights(
            self.W / (token_scale * query_scale), self.head / token_scale, self.intercept
        )

    def values(self, data: AttentionData) -> FloatArray:
        """The head's values ``(n,)`` of the attention output; their signs are the predicted
        labels.
        """
        shares = probabilities(data, self.W)
        return np.sum(shares * (data.tokens @ self.head), axis=1) + self.intercept

    def token_values(self, data: AttentionData, tokens: IntArray) -> FloatArray:
        """The head's values ``(n,)`` of one token per sequence."""
        return data.tokens[np.arange(data.n), tokens] @ self.head + self.intercept


@dataclass(frozen=True)
class StageOptions:
    """How the stages of a fit are recorded, kept and reported.

    Attributes:
        run_folder: keeps unfinished work; None to keep none.
        records: of each stage, log-spaced.
        checkpoint_seconds: time between two writes of unfinished work.
        progress: see :data:`Progress`.
    """

    run_folder: RunFolder | None = None
    records: int = 60
    checkpoint_seconds: float = 5.0
    progress: Progress | None = None


def run_stage(
    name: str,
    data: AttentionData,
    model: Attention,
    optimizer: Optimizer,
    steps: int,
    options: StageOptions,
    observe: Callable[[int, FloatArray, FloatArray, FloatArray], dict[str, Any]] | None = None,
    stop: Callable[[Record], bool] | None = None,
) -> Trajectory:
    """Train ``model`` with ``optimizer`` for ``steps`` steps, with records and checkpoints.

    A stage that is already done is read back, one that was interrupted goes on.
    """
    from attsvm.training import LogSpaced, TrainState, Trajectory, train  # begins with torch

    run_folder, progress = options.run_folder, options.progress
    saved, done = (None, False) if run_folder is None else run_folder.load_stage(name)
    if saved is not None and done:
        if progress is not None:
            progress(name, steps, steps)
        return Trajectory.from_arrays(saved)
    trajectory = train(
        model,
        data,
        optimizer,
        steps,
        record=LogSpaced(options.records),
        observe=observe,
        stop=stop,
        checkpoint=None
        if run_folder is None
        else lambda state: run_folder.save_stage(name, state.to_arrays(), done=False),
        checkpoint_seconds=options.checkpoint_seconds,
        resume=None if saved is None else TrainState.from_arrays(saved),
        progress=None if progress is None else lambda step, total, _: progress(name, step, total),
    )
    if run_folder is not None:
        run_folder.save_stage(name, trajectory.to_arrays(), done=True)
    return trajectory
