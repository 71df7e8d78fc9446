r"""A small quadratic penalty on weights whose loss gradient may be smaller than any floating-point
number.

The gradient of :math:`L+\lambda\|\theta\|_F^2` is :math:`e^Mg+2\lambda\theta` when :math:`g` is the
loss gradient with the factor
:math:`e^M` taken out. The two are added at the scale of the larger, :math:`F=\max(M,\log\lambda)`:
:math:`e^{M-F}g+2e^{\log\lambda-F}\theta`, with :math:`F` as the new logarithm of what was taken
out. All parameters of a model share it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from attsvm.data import FloatArray
from attsvm.models.losses import LogScale


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
        base = total.masked_fill(
            torch.isneginf(total), 0.0
        )  # a run without a gradient and without a penalty
        shares = torch.exp(data - base)[..., None, None], torch.exp(own - base)[..., None, None]
        return shares[0] * grad + (2.0 * shares[1]) * parameter, None, None
