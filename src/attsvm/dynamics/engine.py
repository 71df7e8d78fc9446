"""What a training kernel is to the loop that drives it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np

from attsvm.data import AttentionData, FloatArray, IntArray
from attsvm.errors import InputError

if TYPE_CHECKING:
    from torch.optim import Optimizer


@dataclass(frozen=True, eq=False)
class Setup:
    """What a compiled kernel starts from. Every array has a leading run axis, of length one for a
    model without runs.

    ``lr`` and ``head_lr`` hold the step length of every run, before the factors of ``schedule`` and
    ``head_schedule``; ``head_lr`` is None when the head is not trained. ``has_intercept`` says
    whether the intercept is trained with it. ``loss`` holds the code of every run's loss. With
    ``keys`` the weights see the mapped tokens, and with ``prompt`` every query counts as a one.
    ``floor`` is the infimum of every run's loss where steps are Polyak's, over ``polyak_factor``,
    and None where they are not.
    """

    W: FloatArray
    head: FloatArray
    intercept: FloatArray
    lr: FloatArray
    normalize: bool
    loss: IntArray
    head_lr: FloatArray | None = None
    head_normalize: bool = True
    has_intercept: bool = True
    schedule: Callable[[int], float] | None = None
    head_schedule: Callable[[int], float] | None = None
    floor: FloatArray | None = None
    polyak_factor: float = 2.0
    keys: FloatArray | None = None
    prompt: bool = False

    def check(
        self, data: AttentionData, keys: bool = False, **others: tuple[Any, tuple[int, ...]]
    ) -> None:
        """Raise unless all arrays have the shapes that this data asks for; kernels look at none.

        Args:
            data: what is trained on.
            keys: whether the kernel maps tokens to keys.
            others: further arrays by name, and their shapes behind the runs.

        Raises:
            InputError: an array of another shape, data of another number of instances.
        """
        runs = len(self.W)
        width = len(self.keys) if keys and self.keys is not None else data.d_x
        wanted = {
            "W": (self.W, (width, 1 if self.prompt else data.d_z)),
            "head": (self.head, (data.d_x,)),
            "intercept": (self.intercept, ()),
            "lr": (self.lr, ()),
            "loss": (self.loss, ()),
            "head_lr": (self.head_lr, ()),
            "floor": (self.floor, ()),
            **others,
        }
        for name, (array, shape) in wanted.items():
            if array is not None and np.shape(array) != (runs, *shape):
                raise InputError(
                    f"{name} has shape {np.shape(array)} for {runs} runs; this data asks for"
                    f" {(runs, *shape)}"
                )
        if data.batch_shape not in ((), (runs,)):
            raise InputError(
                f"the data has leading axes {data.batch_shape} for {runs} runs; give one instance,"
                " or one per run"
            )

    def factors(self, step: int, count: int) -> FloatArray:
        """Factors of the step length of the weights for ``count`` steps from ``step`` on."""
        return _values(self.schedule, step, count)

    def head_factors(self, step: int, count: int) -> FloatArray:
        """The same for the head."""
        return _values(self.head_schedule, step, count)


def _values(schedule: Callable[[int], float] | None, step: int, count: int) -> FloatArray:
    if schedule is None:
        return np.ones(count)
    return np.array([float(schedule(k)) for k in range(step, step + count)])


@dataclass(frozen=True, eq=False)
class Look:
    """Everything that is recorded of one step, with a leading run axis; see
    :class:`~attsvm.dynamics.Trajectory`.
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
    """A training kernel. Splitting ``advance`` into several calls never changes a bit of the
    result.
    """

    name: str

    @property
    def stopped_at(self) -> IntArray:
        """The step at which the gradient of each run was exactly zero, -1 where it never was."""

    def advance(self, step: int, count: int) -> None:
        """Take ``count`` steps, the first of which is number ``step``; a run with a zero gradient
        stays where it is from then on.
        """

    def look(self) -> Look:
        """Read the present state."""

    def state(self) -> dict[str, Any]:
        """Arrays from which :meth:`restore` continues to the same bits, copied."""

    def restore(self, arrays: dict[str, Any]) -> None:
        """Continue from a :meth:`state`."""


class Kept:
    """The state of a compiled engine: the arrays that it names in ``_kept``, with the attribute
    that holds each.
    """

    _kept: ClassVar[Mapping[str, str]]

    def state(self) -> dict[str, Any]:
        """What :meth:`restore` needs, copied."""
        return {name: getattr(self, where).copy() for name, where in self._kept.items()}

    def restore(self, arrays: Mapping[str, Any]) -> None:
        """Continue from a :meth:`state`.

        Raises:
            InputError: an array is missing, or has another shape.
        """
        found = {}
        for name, where in self._kept.items():
            present = getattr(self, where)
            shape = np.shape(arrays[name]) if name in arrays else None
            if shape != present.shape:
                raise InputError(
                    f"{name} of the checkpoint has shape {shape} and not {present.shape}; it"
                    " belongs to another run: delete it to start afresh"
                )
            # in the order in which kernels walk through it
            found[where] = np.array(arrays[name], dtype=present.dtype, order="C")
        vars(self).update(found)


def hooked(optimizer: Optimizer) -> bool:
    """Whether a step or a gradient passes through functions of the caller."""
    steps: Any = (optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks)
    return any(steps) or any(
        parameter._backward_hooks or parameter._post_accumulate_grad_hooks
        for group in optimizer.param_groups
        for parameter in group["params"]
    )
