r"""Several heads whose values are added,
:math:`f_i=\sum_hv_h^\top X_i^\top\mathrm{softmax}(X_iW_hz_i)`, with decoders :math:`v_h` that stay
fixed.

The heads meet in the loss alone: :math:`\partial L/\partial W_h` is that of one head, with the
slope :math:`\ell'(Y_if_i)` of all. So a layer is one model on the pairs of
:func:`attsvm.head_pairs`, a row per sequence and head, under a loss that adds the rows of a
sequence.
"""

from __future__ import annotations

from typing import Any

import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from attsvm.attention import Attention, Logistic, LogScale, Loss
from attsvm.base.errors import InputError
from attsvm.datasets.attention_data import AttentionData, floats


class HeadDecoders(nn.Module):
    r"""A decoder for each head: row ``h`` of every ``H`` rows of outputs becomes
    :math:`v_h^\top o`.

    Args:
        weight: :math:`v_1\dots v_H`, ``(..., H, d_x)``.
    """

    weight: Tensor

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.register_buffer("weight", weight.clone())

    def forward(self, outputs: Tensor) -> Tensor:
        """The terms ``(..., n * H)`` that heads add to the values of their sequences, of outputs
        ``(..., n * H, d_x)``.
        """
        heads, width = self.weight.shape[-2:]
        rows = outputs.reshape(*outputs.shape[:-2], -1, heads, width)
        return (rows * self.weight[..., None, :, :]).sum(dim=-1).flatten(-2)


class SummedLoss(Loss):
    r"""A loss of the margins :math:`Y_i\sum_hf_{ih}` of sequences, from those of their heads, one
    after the other.
    """

    def __init__(self, heads: int, loss: Loss) -> None:
        self.heads, self.loss = heads, loss

    def __call__(self, margins: Tensor, scale: LogScale | None = None) -> Tensor:
        """See :meth:`Loss.__call__`; ``margins`` is ``(..., n * heads)``."""
        summed = margins.reshape(*margins.shape[:-1], -1, self.heads).sum(dim=-1)
        return self.loss(summed, scale)

    def value(self, margins: Tensor) -> Tensor:
        """The loss of margins of sequences."""
        return self.loss.value(margins)

    def slope(self, margins: Tensor) -> tuple[Tensor | float, Tensor]:
        """The slope of the loss of margins of sequences."""
        return self.loss.slope(margins)


def sum_of_heads(
    pairs: AttentionData, decoders: ArrayLike, loss: Loss | None = None, **options: Any
) -> Attention:
    r"""The model :math:`f_i=\sum_hv_h^\top X_i^\top\mathrm{softmax}(X_iW_hz_i)` on the pairs of its
    heads.

    Its weights are :math:`W=[W_1\dots W_H]`; with ``parameterization="KQ"`` they are
    :math:`K[Q_1^\top\dots Q_H^\top]`, heads that share their keys (multi-query attention). Values,
    selections and scores have a row per pair: those of a sequence follow each other, and the loss
    adds them. Train with ``SteepestDescent(..., blocks=H * [d_z], blocks_axis=-1)`` to normalise
    every head by itself.

    Args:
        pairs: what :func:`attsvm.head_pairs` makes of the data.
        decoders: :math:`v_1\dots v_H`, ``(H, d_x)`` or ``(runs, H, d_x)``.
        loss: of the margins of sequences, see :meth:`attsvm.attention.Attention.cross`.
        **options: ``runs``, ``init``, ``parameterization`` and so on, see there.

    Raises:
        InputError: decoders of another width or that are not finite, pairs that are not of that
            many heads, or what :meth:`attsvm.attention.Attention.cross` refuses.
    """
    v = floats("decoders", decoders)
    leads = ((), pairs.batch_shape or (options.get("runs"),))
    if v.ndim < 2 or v.shape[-1] != pairs.d_x or v.shape[:-2] not in leads:
        raise InputError(
            f"decoders has shape {v.shape}; give (H, {pairs.d_x}), one decoder per head, with the"
            " runs in front if they differ"
        )
    if not torch.isfinite(torch.from_numpy(v)).all():
        raise InputError("decoders holds a value that is not finite; every value must be finite")
    heads = v.shape[-2]
    if pairs.n % heads or pairs.d_z % heads:
        raise InputError(
            f"the data has {pairs.n} rows and d_z={pairs.d_z}, and there are {heads} decoders;"
            " give head_pairs(data, heads) for as many heads as decoders"
        )
    summed = SummedLoss(heads, Logistic() if loss is None else loss)
    return Attention.cross(pairs, HeadDecoders(torch.from_numpy(v)), loss=summed, **options)
