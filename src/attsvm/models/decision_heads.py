r"""Heads: what turns the outputs of the attention layer into decision values.

A head is any differentiable callable, most often a module, from outputs ``(..., N, d_x)`` to values
``(..., N)`` that treats every output by itself. Leading axes are runs: parameters and buffers of a
head may carry the run axis in front.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class LinearHead(nn.Module):
    r"""The linear head :math:`h(o)=v^\top o+b`.

    ``v`` and ``b`` are one column ``readout`` of shape ``(..., d_x + 1, 1)`` (``(..., d_x, 1)``
    without an intercept), so that a normalised optimiser measures them with one norm. A parameter
    when trained, else a buffer.

    Args:
        weight: ``(..., d_x)``.
        intercept: ``(...)``, or None for a head that has none.
        trainable: whether ``readout`` is a parameter.
    """

    readout: Tensor

    def __init__(
        self, weight: Tensor, intercept: Tensor | None = None, trainable: bool = False
    ) -> None:
        super().__init__()
        self.has_intercept = intercept is not None
        parts = (
            weight
            if intercept is None
            else torch.cat([weight, intercept.expand(weight.shape[:-1])[..., None]], dim=-1)
        )
        column = parts[..., None].clone()
        if trainable:
            self.readout = nn.Parameter(column)
        else:
            self.register_buffer("readout", column)

    @property
    def trainable(self) -> bool:
        """Whether the head is a parameter."""
        return isinstance(self.readout, nn.Parameter) and self.readout.requires_grad

    @property
    def weight(self) -> Tensor:
        """``(..., d_x)``: the vector ``v``."""
        return self.readout[..., :-1, 0] if self.has_intercept else self.readout[..., 0]

    @property
    def intercept(self) -> Tensor:
        """``(...)``: the intercept ``b``, zeros when the head has none."""
        return (
            self.readout[..., -1, 0]
            if self.has_intercept
            else torch.zeros_like(self.readout[..., 0, 0])
        )

    def forward(self, outputs: Tensor) -> Tensor:
        """Decision values ``(..., N)`` of attention outputs ``(..., N, d_x)``."""
        if not self.has_intercept:
            return (outputs @ self.readout)[..., 0]
        return (outputs @ self.readout[..., :-1, :] + self.readout[..., -1:, :])[..., 0]


class LambdaHead(nn.Module):
    r"""The concave head :math:`h(o)=v^\top o-\lambda\|o\|^2`, which prefers mixtures of tokens to a
    single one.

    With orthonormal tokens, label +1 and scores :math:`\gamma_t=v^\top x_t` the best attention is
    :math:`\mathrm{sparsemax}(\gamma/2\lambda)`, see :func:`attsvm.selection.sparsemax_selection`.

    Args:
        weight: :math:`v`, ``(..., d_x)``.
        strength: :math:`\lambda\ge0`, a number or ``(...)``.

    Source: the mode of that name in the code of Tarzanagh et al., *Transformers as Support Vector
    Machines* (2023).
    """

    weight: Tensor
    strength: Tensor

    def __init__(self, weight: Tensor, strength: Tensor | float) -> None:
        super().__init__()
        self.register_buffer("weight", weight.clone())
        self.register_buffer(
            "strength", torch.as_tensor(strength, dtype=weight.dtype, device=weight.device).clone()
        )

    def forward(self, outputs: Tensor) -> Tensor:
        """Decision values ``(..., N)`` of attention outputs ``(..., N, d_x)``."""
        return (outputs @ self.weight[..., None])[..., 0] - self.strength[..., None] * (
            outputs * outputs
        ).sum(dim=-1)


class MLPHead(nn.Module):
    r"""The two-layer head :math:`h(o)=\mathbf 1^\top\mathrm{ReLU}(V^\top o)` with fixed first layer
    and unit second layer.

    Args:
        weight: :math:`V`, ``(..., d_x, hidden)``.

    Source: the nonlinear experiments of Tarzanagh et al., *Transformers as Support Vector Machines*
    (2023).
    """

    weight: Tensor

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.register_buffer("weight", weight.clone())

    def forward(self, outputs: Tensor) -> Tensor:
        """Decision values ``(..., N)`` of attention outputs ``(..., N, d_x)``."""
        return torch.relu(outputs @ self.weight).sum(dim=-1)
