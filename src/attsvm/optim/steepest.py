"""Steepest descent in a norm: the optimiser that moves along the norm's own steepest direction."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, overload

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer, ParamsT

from attsvm.errors import InputError
from attsvm.geometry import Frobenius, Norm


class SteepestDescent(Optimizer):
    r"""Steepest descent, :math:`W \leftarrow W - \eta\, D` with :math:`D=\arg\max_{\|D\|\le 1}\langle\nabla L, D\rangle`.

    With the Frobenius norm this is normalised gradient descent, :math:`D=\nabla L/\|\nabla L\|_F`.
    Without normalisation the step is :math:`\eta\,\|\nabla L\|_*\,D`, which for the Frobenius norm is plain
    gradient descent, bit for bit ``torch.optim.SGD``.

    The last two axes of a parameter are one matrix and every axis in front counts independent runs, each normalised
    by itself; a vector or a scalar is one column. Normalised steps do not see a positive factor in the gradient, so no
    machine epsilon is added to the norm; a gradient that is exactly zero moves nothing.

    Args:
        params: parameters or parameter groups; ``lr``, ``norm`` and ``normalize`` may be set per group.
        lr: step length :math:`\eta > 0` (the length of every step, in the norm, when normalised).
        norm: the geometry.
        normalize: False for the unnormalised step.

    Raises:
        InputError: an ``lr`` that is not positive and finite, a ``norm`` that is not a :class:`~attsvm.geometry.Norm`;
            at :meth:`step`, a sparse or complex gradient.

    Source: normalised gradient descent as in Tarzanagh et al., *Transformers as Support Vector Machines*.
    """

    def __init__(self, params: ParamsT, lr: float, norm: Norm | None = None, normalize: bool = True) -> None:
        defaults = {"lr": lr, "norm": Frobenius() if norm is None else norm, "normalize": normalize}
        _check(defaults)
        super().__init__(params, defaults)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for group in self.param_groups:
            group.setdefault("norm", Frobenius())
            group.setdefault("normalize", True)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters with hyper-parameters of their own, checked like the constructor's."""
        _check({**self.defaults, **param_group})
        super().add_param_group(param_group)

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], float]) -> float: ...
    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """One step for every parameter that has a gradient; returns the closure's loss."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    _check_gradient(parameter)
                    parameter.add_(_direction(parameter.grad, group["norm"], group["normalize"]), alpha=-float(group["lr"]))
        return loss


def _direction(gradient: Tensor, norm: Norm, normalize: bool) -> Tensor:
    if gradient.numel() == 0 or (not normalize and norm == Frobenius()):
        return gradient
    matrix = gradient if gradient.ndim >= 2 else gradient.reshape(-1, 1)
    direction: Tensor = norm.steepest(matrix)
    if not normalize:
        direction = norm.dual_value(matrix)[..., None, None] * direction
    return direction.reshape(gradient.shape)


def _check(group: dict[str, Any]) -> None:
    lr = group["lr"]
    if not (isinstance(lr, (int, float, Tensor)) and math.isfinite(float(lr)) and float(lr) > 0):
        raise InputError(f"lr is {lr!r}; give a positive finite step length")
    if not isinstance(group["norm"], Norm):
        raise InputError(f"norm is {group['norm']!r}; give an attsvm.geometry.Norm such as Frobenius()")


def _check_gradient(parameter: Tensor) -> None:
    gradient = parameter.grad
    if gradient is not None and (gradient.layout is not torch.strided or gradient.is_complex()):
        kind = "complex" if gradient.is_complex() else "sparse"
        raise InputError(f"a parameter of shape {tuple(parameter.shape)} has a {kind} gradient; SteepestDescent needs dense real gradients")
