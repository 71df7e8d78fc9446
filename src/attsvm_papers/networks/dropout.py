"""Dropout with masks that cost little on a CPU."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def dropout(x: Tensor, share: float, training: bool = True) -> Tensor:
    """Entries become zero with the probability ``share``, and the others are divided by the
    probability to be kept, so that means stay.

    On a CPU torch draws a double for every entry, which takes longer than the products of a small
    transformer. Here a random byte decides there, and ``share`` is rounded to a 256th; on other
    devices it is :func:`torch.nn.functional.dropout`. Either way torch's generator draws.

    Args:
        x: of any shape.
        share: at least 0 and below 1.
        training: nothing is dropped without it.

    Source: Srivastava et al., *Dropout* (2014).
    """
    if not training or x.device.type != "cpu":
        return F.dropout(x, share, training)
    threshold = min(round(256 * share), 255)  # of the values of a byte
    if not threshold:
        return x
    random_words = torch.empty(-(-x.numel() // 8), dtype=torch.int64).random_(-(2**63), None)
    is_kept = random_words.view(torch.uint8)[: x.numel()].view(x.shape) >= threshold
    # as numbers: torch's products with booleans, and its filling by a mask, are ten times slower
    return x * is_kept.view(torch.uint8).to(x.dtype).mul_(256 / (256 - threshold))


class Dropout(nn.Dropout):
    """:func:`dropout` as a layer."""

    def forward(self, input: Tensor) -> Tensor:
        """See :func:`dropout`."""
        return dropout(input, self.p, self.training)
