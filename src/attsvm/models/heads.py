"""Heads: what turns the output of the attention layer into a decision value."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class LinearHead(nn.Module):
    r"""The linear head :math:`h(o)=v^\top o+b`.

    ``v`` and ``b`` are one column ``readout`` of shape ``(..., d_x + 1, 1)`` (``(..., d_x, 1)`` without an intercept), so that
    a normalised optimiser measures them with one norm. A parameter when trained, else a buffer.

    Args:
        weight: ``(..., d_x)``.
        intercept: ``(...)``, or None for a head that has none.
        trainable: whether ``readout`` is a parameter.
    """

    readout: Tensor

    def __init__(self, weight: Tensor, intercept: Tensor | None = None, trainable: bool = False) -> None:
        super().__init__()
        self.has_intercept = intercept is not None
        parts = weight if intercept is None else torch.cat([weight, intercept.expand(weight.shape[:-1])[..., None]], dim=-1)
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
        return self.readout[..., -1, 0] if self.has_intercept else torch.zeros_like(self.readout[..., 0, 0])

    def forward(self, outputs: Tensor) -> Tensor:
        """Decision values ``(..., n)`` of attention outputs ``(..., n, d_x)``."""
        return (outputs @ self.weight[..., None])[..., 0] + self.intercept[..., None]
