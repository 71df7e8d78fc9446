r"""Softmax attention as a selection: everything is measured from the winning token.

With :math:`\alpha=\arg\max_t a_t` and :math:`s=\mathrm{softmax}(a)`, the loss gradient with respect
to the logits is

.. math:: G_t = s_t\,(\Delta_t-\textstyle\sum_\tau s_\tau\Delta_\tau)\quad(t\ne\alpha),\qquad
    G_\alpha=-\sum_{t\ne\alpha}G_t,

where :math:`\Delta_t=(x_t-x_\alpha)^\top\partial L/\partial o`. All terms of the textbook form
:math:`s_\alpha(\gamma_\alpha-\bar\gamma)` that nearly cancel once :math:`s_\alpha\to1` have
cancelled on paper, so no digit is lost at any saturation. Every term carries an :math:`s_t`, so the
largest can be taken out as a factor before it underflows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from attsvm.attention.losses import LogScale


@dataclass(frozen=True)
class Selection:
    """Logits read relative to the winner. Hidden tokens have log-probability -inf.

    Attributes:
        winner: ``(..., n)``, position of the largest visible logit, the first one on ties.
        relative: ``(..., n, T)``, logits minus the winner's; at most 0.
        log_probability: ``(..., n, T)``, log-softmax.

    >>> import torch
    >>> from attsvm.attention import select
    >>> found = select(torch.tensor([[0.0, 0.0, 5.0]]), torch.tensor([[True, True, False]]))
    >>> found.winner, found.relative
    (tensor([0]), tensor([[0., 0., -inf]]))
    """

    winner: Tensor
    relative: Tensor
    log_probability: Tensor

    @property
    def probability(self) -> Tensor:
        """``(..., n, T)``: softmax, exactly 0 for hidden tokens."""
        return torch.exp(self.log_probability)


def select(logits: Tensor, mask: Tensor) -> Selection:
    """The winner of each sequence and log-softmax relative to it.

    Args:
        logits: ``(..., n, T)``.
        mask: ``(..., n, T)`` booleans, broadcastable; at least one True per sequence.

    >>> import torch
    >>> from attsvm.attention import select
    >>> found = select(torch.tensor([[0.0, 0.0, 5.0]]), torch.tensor([[True, True, False]]))
    >>> found.winner, found.probability
    (tensor([0]), tensor([[0.5000, 0.5000, 0.0000]]))
    """
    visible = logits.masked_fill(~mask, -torch.inf)
    best, winner = visible.max(dim=-1, keepdim=True)
    relative = visible - best
    # The winner's own term is an exact 1; log1p keeps the losers' mass when it is far below one ulp
    # of 1.
    losers = torch.exp(relative).scatter(-1, winner, 0.0).sum(dim=-1, keepdim=True)
    return Selection(winner[..., 0], relative, relative - torch.log1p(losers))


def attend(logits: Tensor, tokens: Tensor, mask: Tensor, scale: LogScale | None = None) -> Tensor:
    r"""Attention outputs :math:`o_i=X_i^\top\mathrm{softmax}(a_i)`, with the exact gradient above
    for the logits.

    Where ``tokens`` are trained they get their gradient :math:`s_t\,\partial L/\partial o` too,
    which takes no ``scale``.

    Args:
        logits: ``(..., n, T)``.
        tokens: ``(..., n, T, d_x)``, broadcastable in front.
        mask: ``(..., n, T)``, broadcastable in front.
        scale: when given, the gradient of each run (all axes but the last two) is divided by the
            largest probability
            :math:`\max s_{it}` of a token with :math:`\Delta_{it}\ne0` and the logarithm of that is
            stored in ``scale.attention``; -inf where there is none and the gradient is exactly
            zero.

    Returns:
        ``(..., n, d_x)``.

    >>> import torch
    >>> from attsvm.attention import attend
    >>> tokens, mask = torch.tensor([[[1.0], [3.0]]]), torch.ones(1, 2, dtype=torch.bool)
    >>> attend(torch.zeros(1, 2), tokens, mask)
    tensor([[2.]])
    """
    return _Attend.apply(logits, tokens, mask, scale)  # type: ignore[no-untyped-call]


def query_logits(moved: Tensor, keys: Tensor) -> Tensor:
    """``(..., n, T)``: keys ``(..., n, T, d_k)`` times moved queries ``(..., n, d_k)``."""
    return (moved[..., None, :] @ keys.mT)[..., 0, :]


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, tokens: Tensor, mask: Tensor, scale: LogScale | None
    ) -> Tensor:
        selection = select(logits, mask)
        ctx.save_for_backward(selection.log_probability, selection.winner, tokens)
        ctx.scale = scale
        return (selection.probability[..., None, :] @ tokens)[..., 0, :]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor | None, None, None]:
        log_s, winner, tokens = ctx.saved_tensors
        winner = winner[..., None]
        values = (grad[..., None, :] @ tokens.mT)[..., 0, :]
        values = values - values.gather(-1, winner)
        if ctx.scale is None:
            first = torch.exp(log_s) * values
        else:
            untied = log_s.masked_fill(values == 0, -torch.inf)  # drops the winner as well
            largest = untied.amax(dim=(-2, -1), keepdim=True)
            ctx.scale.attention = largest[..., 0, 0]
            first = values * torch.exp(untied - largest.clamp(min=torch.finfo(largest.dtype).min))
        # Tied scores have no first-order term: what remains for them is -s_t times the sum, which
        # is exact as it stands.
        gradient = first - torch.exp(log_s) * first.sum(dim=-1, keepdim=True)
        gradient = gradient.scatter(-1, winner, 0.0)
        gradient = gradient.scatter(-1, winner, -gradient.sum(dim=-1, keepdim=True))
        if not ctx.needs_input_grad[1]:
            return gradient, None, None, None
        of_tokens = torch.exp(log_s)[..., None] * grad[..., None, :]
        return gradient, of_tokens.sum_to_size(tokens.shape), None, None
