"""Losses of a margin, with gradients that may be rescaled when they would underflow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import logsigmoid, softplus


@dataclass
class LogScale:
    """Logarithms, one per run, of the positive factors that were taken out of gradients in the last backward pass.

    ``loss`` was taken out of everything behind the loss, ``attention`` on top of it out of everything behind the softmax:
    the true gradient of ``W`` is ``exp(loss + attention)`` times the stored one, that of the head ``exp(loss)`` times.
    """

    loss: Tensor | None = None
    attention: Tensor | None = None


class _Logistic(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, margins: Tensor, scale: LogScale | None) -> Tensor:
        ctx.save_for_backward(margins)
        ctx.scale = scale
        return softplus(-margins, threshold=1000.0).mean(dim=-1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (margins,) = ctx.saved_tensors
        log_slope = logsigmoid(-margins)
        if ctx.scale is not None:
            ctx.scale.loss = log_slope.amax(dim=-1)
            log_slope = log_slope - ctx.scale.loss[..., None]
        return -torch.exp(log_slope) * (grad[..., None] / margins.shape[-1]), None


def logistic_loss(margins: Tensor, scale: LogScale | None = None) -> Tensor:
    r"""Mean logistic loss :math:`\frac1n\sum_i\log(1+e^{-u_i})` over the last axis.

    Args:
        margins: ``(..., n)``, :math:`u_i=Y_if_i`.
        scale: when given, the gradient of each run is divided by :math:`\max_i|\ell'(u_i)|` and the logarithm of that is stored in
            ``scale.loss``. Normalised optimisers do not notice, and margins beyond 745 do not underflow.

    Returns:
        ``(...)``.
    """
    loss: Tensor = _Logistic.apply(margins, scale)  # type: ignore[no-untyped-call]
    return loss
