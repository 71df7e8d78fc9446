"""The interface of the compiled and the torch loop to :func:`~attsvm.training.train`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from attsvm.datasets.attention_data import FloatArray, IntArray


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Everything that is recorded of one step, with a leading run axis; see
    :class:`~attsvm.training.Trajectory`.
    """

    loss: FloatArray
    selected: IntArray
    softmax_probability: FloatArray
    log_gradient_norm: FloatArray
    W: FloatArray
    head: FloatArray
    intercept: FloatArray
    parameters: Mapping[str, FloatArray] = field(default_factory=dict)


class Engine(Protocol):
    """A loop of training steps.

    Splitting ``advance`` into several calls never changes a bit of the result.
    """

    name: str

    @property
    def stopped_at(self) -> IntArray:
        """``(runs,)``, the step at which the gradient was exactly zero, -1 where it never was."""

    def advance(self, step: int, count: int) -> None:
        """Take ``count`` steps, the first of which is number ``step``; a run with a zero gradient
        stays where it is from then on.
        """

    def evaluate(self) -> Evaluation:
        """Loss, selection and norms at the present weights."""

    def state(self) -> dict[str, Any]:
        """Arrays from which :meth:`restore` continues to the same bits, copied."""

    def restore(self, arrays: dict[str, Any]) -> None:
        """Continue from a :meth:`state`."""
