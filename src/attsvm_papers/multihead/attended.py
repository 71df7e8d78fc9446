"""Attention between layers, exact where it is saturated."""

from __future__ import annotations

import torch
from torch import Tensor

from attsvm.models import Selection, select


def attended(logits: Tensor, values: Tensor) -> tuple[Tensor, Selection]:
    """``(..., q, d)`` and the winners ``(..., q)``: averages of ``values``, ``(..., q, T, d)``,
    measured from the winner's, so that gradients stay exact where attention is saturated.
    """
    found = select(logits, torch.ones_like(logits, dtype=torch.bool))
    first = values.take_along_dim(found.winner[..., None, None], dim=-2)
    moved = found.probability[..., None, :] @ (values - first)
    return (first + moved)[..., 0, :], found
