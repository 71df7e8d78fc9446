"""Attention between layers, exact where it is saturated."""

import torch

from attsvm.attention import select


def attend_exactly(logits, values):
    """Averages ``(..., q, d)`` of ``values`` ``(..., q, T, d)``, measured from the winner's, so
    that gradients stay exact where attention is saturated; and the selection with its winners.
    """
    selection = select(logits, torch.ones_like(logits, dtype=torch.bool))
    winner_values = values.take_along_dim(selection.winner[..., None, None], dim=-2)
    shift = selection.probability[..., None, :] @ (values - winner_values)
    return (winner_values + shift)[..., 0, :], selection
