"""Losses of a margin, or of values and targets, with gradients that may be rescaled when they would
underflow.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import cross_entropy, logsigmoid, softplus

from attsvm.base.errors import InputError
from attsvm.base.printable import kind

TargetLoss = Callable[[Tensor, Tensor], Tensor]
"""A loss of values and targets; see :meth:`attsvm.attention.Attention.cross`."""


@dataclass
class LogScale:
    """Logarithms, one per run, of the positive factors that were taken out of gradients in the last
    backward pass.

    ``loss`` was taken out of everything behind the loss, ``attention`` on top of it out of
    everything behind the softmax: the true gradient of the head is ``exp(head)`` times the stored
    one, that of the attention weights ``exp(weights)`` times. ``penalty`` replaces the sum of the
    two once :meth:`attsvm.attention.Attention.add_penalty` has been called, ``readout`` replaces
    ``loss`` for a linear head, whose gradient may be far smaller where all sequences select a zero
    token.

    >>> import torch
    >>> from attsvm.attention import Logistic, LogScale
    >>> scale, margins = LogScale(), torch.full((1,), 1000.0, requires_grad=True)
    >>> Logistic()(margins, scale).backward()  # the slope itself, e^-1000, is no number
    >>> margins.grad.item(), scale.head.item()
    (-1.0, -1000.0)
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

    >>> import torch
    >>> from attsvm.attention import Linear, Loss
    >>> isinstance(Linear(), Loss), Linear().slope(torch.zeros(2))
    (True, (-1.0, tensor([0., 0.])))
    """

    code = -1
    """What compiled kernels call it; negative for losses that they do not know. A subclass is not
    known by the code of its parent.
    """

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.code = vars(cls).get("code", -1)

    @abstractmethod
    def value(self, margins: Tensor) -> Tensor:
        r""":math:`\ell(u)`, entry by entry."""

    @abstractmethod
    def slope(self, margins: Tensor) -> tuple[Tensor | float, Tensor]:
        r"""Sign of :math:`\ell'(u)` and :math:`\log|\ell'(u)|`, entry by entry."""

    def __call__(self, margins: Tensor, scale: LogScale | None = None) -> Tensor:
        r"""Mean loss :math:`\frac1n\sum_i\ell(u_i)` over the last axis.

        Args:
            margins: ``(..., n)``.
            scale: when given, the gradient of each run is divided by :math:`\max_i|\ell'(u_i)|` and
                the logarithm of that is stored in ``scale.loss``. Normalised optimisers do not
                notice, and slopes that would underflow survive.

        Returns:
            ``(...)``.
        """
        return _MeanLoss.apply(margins, self, scale)  # type: ignore[no-untyped-call]

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class Logistic(Loss):
    r""":math:`\ell(u)=\log(1+e^{-u})`.

    >>> import torch
    >>> from attsvm.attention import Logistic
    >>> round(Logistic()(torch.zeros(3)).item(), 4)
    0.6931
    """

    code = 0

    def value(self, margins: Tensor) -> Tensor:
        r""":math:`\log(1+e^{-u})` without overflow."""
        return softplus(-margins, threshold=1000.0)

    def slope(self, margins: Tensor) -> tuple[float, Tensor]:
        r""":math:`\log|\ell'(u)|=\log\sigma(-u)`."""
        return -1.0, logsigmoid(-margins)


class Exponential(Loss):
    r""":math:`\ell(u)=e^{-u}`. The value may overflow, the rescaled gradient does not.

    >>> import torch
    >>> from attsvm.attention import Exponential
    >>> Exponential()(torch.zeros(3)).item()
    1.0
    """

    code = 1

    def value(self, margins: Tensor) -> Tensor:
        r""":math:`e^{-u}`."""
        return torch.exp(-margins)

    def slope(self, margins: Tensor) -> tuple[float, Tensor]:
        r""":math:`\log|\ell'(u)|=-u`."""
        return -1.0, -margins


class Linear(Loss):
    r""":math:`\ell(u)=-u`, the correlation loss.

    >>> import torch
    >>> from attsvm.attention import Linear
    >>> Linear()(torch.tensor([1.0, 3.0])).item()
    -2.0
    """

    code = 2

    def value(self, margins: Tensor) -> Tensor:
        r""":math:`-u`."""
        return -margins

    def slope(self, margins: Tensor) -> tuple[float, Tensor]:
        r""":math:`\log|\ell'(u)|=0`."""
        return -1.0, torch.zeros_like(margins)


class FunctionLoss(Loss):
    r"""A loss given by a differentiable function of margins, entry by entry; its slope comes from
    autograd.

    Exact while :math:`\ell'(u)` itself is a floating-point number; the logarithm of a slope that
    underflows is -inf.

    >>> import torch
    >>> from attsvm.attention import FunctionLoss
    >>> hinge = FunctionLoss(lambda margins: torch.relu(1 - margins))
    >>> hinge(torch.tensor([0.0, 3.0])).item()
    0.5
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
        return f"FunctionLoss({getattr(self.function, '__name__', self.function)!r})"


LOSSES: dict[str, type[Loss]] = {
    "logistic": Logistic,
    "exponential": Exponential,
    "linear": Linear,
}


def as_loss(loss: Loss | str | Callable[[Tensor], Tensor], shape: tuple[int, ...]) -> Loss:
    """A loss of margins by its name, as it is, or of a function.

    Args:
        loss: see :meth:`attsvm.attention.Attention.cross`.
        shape: of the margins, for one call that shows what a function returns.

    Raises:
        InputError: none of these, or a function that torch cannot differentiate.
    """
    if isinstance(loss, Loss):
        return loss
    if isinstance(loss, str) and loss in LOSSES:
        return LOSSES[loss]()
    if isinstance(loss, str) and loss in TARGET_LOSSES:
        raise InputError(f"loss={loss!r} compares values with targets; pass targets= with it")
    if not callable(loss) or isinstance(loss, type):
        raise InputError(
            f"loss is {loss!r}; give {', '.join(map(repr, LOSSES))}, or a function of margins"
            " written in torch"
        )
    name = getattr(loss, "__name__", repr(loss))
    margins = torch.zeros(shape, dtype=torch.float64, requires_grad=True)
    try:
        losses: Any = loss(margins)
    except (RuntimeError, TypeError) as error:
        raise InputError(
            f"the loss {name} fails on margins of shape {shape}: {error}; write it with functions"
            " of torch, such as torch.nn.functional.softplus"
        ) from error
    if not isinstance(losses, Tensor) or not losses.requires_grad or losses.shape != shape:
        described = tuple(losses.shape) if isinstance(losses, Tensor) else kind(losses)
        raise InputError(
            f"the loss {name} of margins of shape {shape} gives {described}; write it with"
            " functions of torch, entry by entry"
        )
    return FunctionLoss(loss)


def _squared(values: Tensor, targets: Tensor) -> Tensor:
    """Half the square of every difference."""
    return 0.5 * (values - targets) ** 2


def _cross_entropy(values: Tensor, targets: Tensor) -> Tensor:
    """Minus the log-probability of the class ``targets (..., n)`` under ``values (..., n, C)``."""
    rows = values.reshape(-1, values.shape[-1]), targets.reshape(-1)
    return cross_entropy(*rows, reduction="none").reshape(values.shape[:-1])


TARGET_LOSSES: dict[str, TargetLoss] = {"squared": _squared, "cross_entropy": _cross_entropy}


def as_target_loss(loss: str | TargetLoss) -> TargetLoss:
    """A loss of values and targets, by its name or as it is.

    Raises:
        InputError: none of these.
    """
    if isinstance(loss, str) and loss in TARGET_LOSSES:
        return TARGET_LOSSES[loss]
    if isinstance(loss, (str, Loss)) or not callable(loss):
        raise InputError(
            f"loss is {loss!r} beside targets; give {', '.join(map(repr, TARGET_LOSSES))}, or a"
            " function of values and targets written in torch"
        )
    return loss


def target_loss(
    loss: TargetLoss, values: Tensor, targets: Tensor, axes: int, scale: LogScale | None
) -> Tensor:
    """The mean loss of each run, ``(...)``.

    Args:
        loss: of values and targets.
        values: ``(..., n)`` or ``(..., n, C)``.
        targets: ``(..., n)`` or ``(..., n, C)``.
        axes: of runs, 0 or 1.
        scale: when given, the gradient of each run is divided by its largest entry, and the
            logarithm of that is stored in ``scale.loss``.

    Raises:
        InputError: a loss that fails, or gives no number or row of numbers per sequence.
    """
    rows = values.shape[: axes + 1]
    try:
        rescaled: Any = _Rescaled.apply
        losses: Any = loss(rescaled(values, axes, scale), targets)
    except (RuntimeError, TypeError, IndexError) as error:
        if isinstance(error, torch.OutOfMemoryError):
            raise
        raise InputError(
            f"the loss fails on values of shape {tuple(values.shape)} and targets of shape"
            f" {tuple(targets.shape)}: {error}"
        ) from error
    if not isinstance(losses, Tensor) or losses.shape[: axes + 1] != rows:
        described = f"shape {tuple(losses.shape)}" if isinstance(losses, Tensor) else kind(losses)
        raise InputError(
            f"the loss of values of shape {tuple(values.shape)} gives {described}; write it in"
            " torch, with one number per sequence (reduction='none')"
        )
    if losses.ndim > axes + 1:  # a row of numbers per sequence counts as their sum
        losses = losses.flatten(axes + 1).sum(dim=-1)
    return losses.mean(dim=-1)


class _Rescaled(torch.autograd.Function):
    """Values as they are, whose gradient is divided by its largest entry in each run."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, axes: int, scale: LogScale | None) -> Tensor:
        ctx.axes, ctx.scale = axes, scale
        return values.view_as(values)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        if ctx.scale is None:
            return grad, None, None
        largest = grad.abs().flatten(ctx.axes).amax(dim=-1)
        ctx.scale.loss = torch.log(largest)
        size = largest.where(largest > 0, 1.0).reshape(
            *largest.shape, *[1] * (grad.ndim - ctx.axes)
        )
        return grad / size, None, None


class _MeanLoss(torch.autograd.Function):
    """The mean over the last axis, whose gradient is scaled in logarithms."""

    @staticmethod
    def forward(ctx: Any, margins: Tensor, loss: Loss, scale: LogScale | None) -> Tensor:
        ctx.save_for_backward(margins)
        ctx.loss, ctx.scale = loss, scale
        return loss.value(margins).mean(dim=-1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (margins,) = ctx.saved_tensors
        sign, log_slope = ctx.loss.slope(margins)
        if ctx.scale is not None:
            ctx.scale.loss = log_slope.amax(dim=-1)
            log_slope = (
                log_slope - ctx.scale.loss.clamp(min=torch.finfo(margins.dtype).min)[..., None]
            )
        share = grad[..., None] / margins.shape[-1]
        return torch.exp(log_slope) * (share * sign), None, None
