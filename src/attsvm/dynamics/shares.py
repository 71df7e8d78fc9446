r"""Step lengths by run, for any optimiser: after each step every run keeps a share of it.

An optimiser does not know which axis of a parameter counts runs, so it takes one step for all, and
:math:`W\leftarrow W+s_r\,\Delta W` makes it a step of length :math:`s_r\eta`. Mirror descent is
linear in the step on its dual iterate only: there it is
:math:`Y\leftarrow Y+s_r\,\Delta Y`, and the weights are the image of that.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from attsvm.data import FloatArray
from attsvm.errors import InputError
from attsvm.models import Attention
from attsvm.optim import MirrorDescent


class Shares:
    """The points that an optimiser moves from, and how far along its step every run goes.

    Args:
        model: whose parameters are moved.
        optimizer: of those parameters.
        step_scale: ``(runs,)`` shares by name of the parameter, 0 or more.

    Raises:
        InputError: mirror descent with decay of the weights themselves, which is no multiple of a
            step in the dual.
    """

    def __init__(
        self, model: Attention, optimizer: Optimizer, step_scale: Mapping[str, FloatArray]
    ) -> None:
        names = dict(model.named_parameters())
        self._optimizer = optimizer
        self._moved = [
            (names[name], _beside(names[name], share)) for name, share in step_scale.items()
        ]
        duals: dict[int, _Dual] = {}
        if isinstance(optimizer, MirrorDescent):
            for group in optimizer.param_groups:
                duals |= {id(each): _Dual(optimizer, each, group) for each in group["params"]}
        self._duals = [duals.get(id(parameter)) for parameter, _ in self._moved]
        self._before: list[Tensor] = []

    @torch.no_grad()
    def remember(self) -> None:
        """Called before a step."""
        pairs = zip(self._moved, self._duals, strict=True)
        self._before = [
            parameter.detach().clone() if dual is None else dual.point()
            for (parameter, _), dual in pairs
        ]

    @torch.no_grad()
    def shorten(self) -> None:
        """Called after the step: every run keeps its share."""
        for (parameter, share), dual, old in zip(
            self._moved, self._duals, self._before, strict=True
        ):
            if dual is None:
                parameter.copy_(torch.lerp(old, parameter, share))
            else:
                dual.move(torch.lerp(old, dual.point(), share.to(old.dtype)))


def _beside(parameter: Tensor, share: FloatArray) -> Tensor:
    """The shares as they multiply a parameter with leading runs."""
    return torch.as_tensor(share, dtype=parameter.dtype, device=parameter.device).reshape(
        -1, *[1] * (parameter.ndim - 1)
    )


class _Dual:
    """The dual iterate of one parameter of mirror descent, kept by the optimiser or taken from the
    weights.
    """

    def __init__(self, optimizer: MirrorDescent, parameter: Tensor, group: dict[str, Any]) -> None:
        if group["weight_decay"] and group["decay_mode"] == "primal" and group["p"] != 2:
            raise InputError(
                "step_scale scales steps of the dual, and decay_mode='primal' with p other than 2"
                " is no multiple of a step there; use decay_mode='dual' or 'l2'"
            )
        self._optimizer, self._weight, self._group = optimizer, parameter, group

    def point(self) -> Tensor:
        """A copy: the optimiser's own, but where somebody else has written the weights."""
        return self._optimizer.dual_of(self._group, self._weight)

    def move(self, point: Tensor) -> None:
        """Put the iterate, and the weights with it, at ``point``."""
        self._optimizer.move_to(self._group, self._weight, point)
