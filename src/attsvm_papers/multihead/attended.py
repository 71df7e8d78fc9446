"""Attention between layers, exact where it is saturated."""

import torch

from attsvm.models import select


def attended(logits, values):
    """``(..., q, d)`` and the winners ``(..., q)``: averages of ``values``, ``(..., q, T, d)``,
    measured from the winner's, so that gradients stay exact where attention is saturated.
    """
    found = select(logits, torch.ones_like(logits, dtype=torch.bool))
    first = values.take_along_dim(found.winner[..., None, None], dim=-2)
    moved = found.probability[..., None, :] @ (values - first)
    return (first + moved)[..., 0, :], found
