r"""Losses of a margin, with gradients that may be rescaled when they would underflow, and a small
quadratic penalty on weights whose loss gradient may be smaller than any floating-point number.

The gradient of :math:`L+\lambda\|\theta\|_F^2` is :math:`e^Mg+2\lambda\theta` when :math:`g` is the
loss gradient with the factor
:math:`e^M` taken out. The two are added at the scale of the larger, :math:`F=\max(M,\log\lambda)`:
:math:`e^{M-F}g+2e^{\log\lambda-F}\theta`, with :math:`F` as the new logarithm of what was taken
out. All parameters of a model share it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import logsigmoid, softplus

from attsvm.data import FloatArray, IntArray
from attsvm.errors import InputError


@dataclass
class LogScale:
    """Logarithms, one per run, of the positive factors that were taken out of gradients in the last
    backward pass.

    ``loss`` was taken out of everything behind the loss, ``attention`` on top of it out of
    everything behind the softmax: the true gradient of the head is ``exp(head)`` times the stored
    one, that of the attention weights ``exp(weights)`` times. ``penalty`` replaces the sum of the
    two where a penalty on the weights has a say in the factor, ``readout`` replaces ``loss`` for a
    linear head, whose gradient may be far smaller where all sequences select a zero token.
    """

    loss: Tensor | None = None
    attention: Tensor | None = None
    penalty: Tensor | None = None
    readout: Tensor | None = None

    @property
    def head(self) -> Tensor | None:
        """Logarithm of what was taken out of the gradient of the head."""
        return self.loss if self.readout is None else self.readout

    @property
    def data(self) -> Tensor:
        """Logarithm of what the loss and the softmax took out together.

        Raises:
            InputError: nothing went backward through the model yet.
        """
        if self.loss is None or self.attention is None:
            raise InputError(
                "the attention weights receive no gradient from the loss; train a model whose"
                " weights require gradients"
            )
        return self.loss + self.attention

    @property
    def weights(self) -> Tensor:
        """Logarithm of what was taken out of the gradients of the attention weights."""
        return self.data if self.penalty is None else self.penalty


class Loss(ABC):
    r"""A loss :math:`\ell` of a margin :math:`u_i=Y_if_i`. A call averages it over the last axis.

    The theory wants it strictly decreasing and smooth; nothing here depends on that.
    """

    code = -1
    """What compiled kernels call it; negative for losses that they do not know. A subclass is not
    known by the code of its parent.
    """

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.code = vars(cls).get("code", -1)

    @cached_property
    def codes(self) -> IntArray | None:
        """The codes of all runs, or one for all; None where the kernels do not know one."""
        return np.array([self.code], dtype=np.int64) if self.code >= 0 else None

    @abstractmethod
    def value(self, margins: Tensor) -> Tensor:
        r""":math:`\ell(u)`, entry by entry."""

    @abstractmethod
    def slope(self, margins: Tensor) -> tuple[Tensor | float, Tensor]:
        r"""Sign of :math:`\ell'(u)` and :math:`\log|\ell'(u)|`, entry by entry."""

    def __call__(
        self, margins: Tensor, scale: LogScale | None = None, weights: Tensor | None = None
    ) -> Tensor:
        r"""Mean loss :math:`\frac1n\sum_i\ell(u_i)` over the last axis.

        Args:
            margins: ``(..., n)``.
            scale: when given, the gradient of each run is divided by :math:`\max_i|\ell'(u_i)|` and
                the logarithm of that is stored in ``scale.loss``. Normalised optimisers do not
                notice, and slopes that would underflow survive.
            weights: ``(..., n)`` weights in the place of :math:`1/n`; margins of weight zero do not
                count.

        Returns:
            ``(...)``.
        """
        return _Mean.apply(margins, self, scale, weights)  # type: ignore[no-untyped-call]

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class Logistic(Loss):
    r""":math:`\ell(u)=\log(1+e^{-u})`."""

    code = 0

    def value(self, margins: Tensor) -> Tensor:
        r""":math:`\log(1+e^{-u})` without overflow."""
        return softplus(-margins, threshold=1000.0)

    def slope(self, margins: Tensor) -> tuple[float, Tensor]:
        r""":math:`\log|\ell'(u)|=\log\sigma(-u)`."""
        return -1.0, logsigmoid(-margins)


class Exponential(Loss):
    r""":math:`\ell(u)=e^{-u}`. The value may overflow, the rescaled gradient does not."""

    code = 1

    def value(self, margins: Tensor) -> Tensor:
        r""":math:`e^{-u}`."""
        return torch.exp(-margins)

    def slope(self, margins: Tensor) -> tuple[float, Tensor]:
        r""":math:`\log|\ell'(u)|=-u`."""
        return -1.0, -margins


class Linear(Loss):
    r""":math:`\ell(u)=-u`, the correlation loss."""

    code = 2

    def value(self, margins: Tensor) -> Tensor:
        r""":math:`-u`."""
        return -margins

    def slope(self, margins: Tensor) -> tuple[float, Tensor]:
        r""":math:`\log|\ell'(u)|=0`."""
        return -1.0, torch.zeros_like(margins)


class Custom(Loss):
    r"""A loss given by a differentiable function of margins, entry by entry; its slope comes from
    autograd.

    Exact while :math:`\ell'(u)` itself is a floating-point number; the logarithm of a slope that
    underflows is -inf.
    """

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        self.function = function

    def value(self, margins: Tensor) -> Tensor:
        """The function."""
        return self.function(margins)

    def slope(self, margins: Tensor) -> tuple[Tensor, Tensor]:
        """Sign and logarithm of the function's derivative."""
        with torch.enable_grad():
            u = margins.detach().requires_grad_()
            (slope,) = torch.autograd.grad(self.function(u).sum(), u)
        return torch.sign(slope), torch.log(torch.abs(slope))

    def __repr__(self) -> str:
        return f"Custom({getattr(self.function, '__name__', self.function)!r})"


class PerRun(Loss):
    """A loss for each run, along the first axis of the margins."""

    def __init__(self, losses: Sequence[Loss | Callable[[Tensor], Tensor]]) -> None:
        self.losses = [as_loss(loss) for loss in losses]
        groups: dict[int, tuple[Loss, list[int]]] = {}
        for r, loss in enumerate(self.losses):
            groups.setdefault(loss.code if loss.code >= 0 else 3 + id(loss), (loss, []))[1].append(
                r
            )
        self._groups = list(groups.values())

    @cached_property
    def codes(self) -> IntArray | None:
        """The code of each run; None where the kernels do not know one."""
        codes = np.array([loss.code for loss in self.losses], dtype=np.int64)
        return codes if codes.min() >= 0 and type(self) is PerRun else None

    def value(self, margins: Tensor) -> Tensor:
        """Each run in its own loss."""
        out = torch.empty_like(margins)
        for loss, rows in self._groups:
            out[rows] = loss.value(margins[rows])
        return out

    def slope(self, margins: Tensor) -> tuple[Tensor, Tensor]:
        """Each run in its own loss."""
        sign, log = torch.empty_like(margins), torch.empty_like(margins)
        for loss, rows in self._groups:
            part, log[rows] = loss.slope(margins[rows])
            sign[rows] = torch.as_tensor(part, dtype=margins.dtype, device=margins.device)
        return sign, log

    def __repr__(self) -> str:
        return f"PerRun({self.losses!r})"


def as_loss(
    loss: Loss | Callable[[Tensor], Tensor] | Sequence[Loss | Callable[[Tensor], Tensor]],
) -> Loss:
    """A :class:`Loss` as it is, a function as :class:`Custom`, a sequence as :class:`PerRun`.

    Raises:
        InputError: none of these.
    """
    if isinstance(loss, Loss):
        return loss
    if isinstance(loss, (list, tuple)):
        return PerRun(loss)
    if callable(loss):
        return Custom(loss)
    raise InputError(
        f"loss is {loss!r}; give Logistic(), Exponential(), Linear(), a function of margins, or one"
        " of these per run"
    )


class _Mean(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, margins: Tensor, loss: Loss, scale: LogScale | None, weights: Tensor | None
    ) -> Tensor:
        ctx.save_for_backward(margins, weights)
        ctx.loss, ctx.scale = loss, scale
        value = loss.value(margins)
        return (
            value.mean(dim=-1)
            if weights is None
            else (value.where(weights != 0, 0.0) * weights).sum(dim=-1)
        )

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        margins, weights = ctx.saved_tensors
        sign, log_slope = ctx.loss.slope(margins)
        if weights is not None:
            log_slope = log_slope.masked_fill(weights == 0, -torch.inf)
        if ctx.scale is not None:
            ctx.scale.loss = log_slope.amax(dim=-1)
            log_slope = (
                log_slope - ctx.scale.loss.clamp(min=torch.finfo(margins.dtype).min)[..., None]
            )
        share = (
            grad[..., None] / margins.shape[-1] if weights is None else grad[..., None] * weights
        )
        return torch.exp(log_slope) * (share * sign), None, None, None


def logistic_loss(margins: Tensor, scale: LogScale | None = None) -> Tensor:
    """:class:`Logistic` as a function."""
    return Logistic()(margins, scale)


def penalised(parameter: Tensor, strength: FloatArray, scale: LogScale | None) -> Tensor:
    r"""``parameter`` itself, whose gradient gains that of :math:`\lambda\|\theta\|_F^2`.

    Args:
        parameter: ``([runs,] rows, columns)``.
        strength: :math:`\lambda\ge0`, one number ``()`` or ``(runs,)``.
        scale: as in :meth:`attsvm.models.Attention.loss`; ``scale.penalty`` is set.
    """
    return _Penalised.apply(parameter, strength, scale)  # type: ignore[no-untyped-call]


class _Penalised(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, parameter: Tensor, strength: FloatArray, scale: LogScale | None
    ) -> Tensor:
        ctx.save_for_backward(parameter)
        ctx.strength, ctx.scale = strength, scale
        return parameter.view_as(parameter)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (parameter,) = ctx.saved_tensors
        strength = torch.as_tensor(ctx.strength, dtype=parameter.dtype, device=parameter.device)
        if ctx.scale is None:
            return grad + (2.0 * strength)[..., None, None] * parameter, None, None
        data, own = ctx.scale.data, torch.log(strength)
        total = torch.maximum(data, own)
        ctx.scale.penalty = total
        # a run without a gradient and without a penalty
        base = total.masked_fill(torch.isneginf(total), 0.0)
        shares = torch.exp(data - base)[..., None, None], torch.exp(own - base)[..., None, None]
        return shares[0] * grad + (2.0 * shares[1]) * parameter, None, None
