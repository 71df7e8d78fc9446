"""What a training kernel is to the loop that drives it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from attsvm.data import AttentionData, FloatArray, IntArray


@dataclass(frozen=True, eq=False)
class Setup:
    """What a compiled kernel starts from. Every array has a leading run axis, of length one for a model without runs.

    ``head_lr`` is None when the head is not trained; ``has_intercept`` says whether the intercept is trained with it.
    """

    W: FloatArray
    head: FloatArray
    intercept: FloatArray
    lr: float
    normalize: bool
    head_lr: float | None = None
    head_normalize: bool = True
    has_intercept: bool = True


@dataclass(frozen=True, eq=False)
class Look:
    """Everything that is recorded of one step, with a leading run axis; see :class:`~attsvm.dynamics.Trajectory`."""

    loss: FloatArray
    selected: IntArray
    softmax_probability: FloatArray
    log_gradient_norm: FloatArray
    W: FloatArray
    head: FloatArray
    intercept: FloatArray


class Engine(Protocol):
    """A training kernel. Splitting ``advance`` into several calls never changes a bit of the result."""

    name: str
    stopped_at: IntArray

    def advance(self, step: int, count: int) -> None:
        """Take ``count`` steps, the first of which is number ``step``; a run with a zero gradient stays where it is from then on."""

    def look(self) -> Look:
        """Read the present state."""

    def state(self) -> dict[str, Any]:
        """Arrays from which :meth:`restore` continues to the same bits, copied."""

    def restore(self, arrays: dict[str, Any]) -> None:
        """Continue from a :meth:`state`."""


def centred_tokens(data: AttentionData) -> FloatArray:
    """Tokens minus the mean of the visible tokens of their sequence; hidden tokens stay zero."""
    mean = data.tokens.sum(axis=-2, keepdims=True) / data.lengths[..., None, None]
    return np.where(data.mask[..., None], data.tokens - mean, 0.0)
