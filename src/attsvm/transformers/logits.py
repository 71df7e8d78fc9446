r"""What logits say, a block of queries at a time.

Of one query with logits :math:`a_t` the *selected* token is the largest, its *margin* the distance
to the best rival, :math:`a_{(1)}-a_{(2)}` in nats, its *top mass* the softmax weight of the
selected token and its *entropy* :math:`-\sum_tp_t\log p_t`. Tokens of one class count as one: their
weights add, and they are no rivals of each other.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

_BLOCK = 1 << 22  # logits computed at a time, 16 megabytes in float32


class Firmness(NamedTuple):
    """Statistics of queries; each has the shape of the logits without their last axis.

    Attributes:
        selected: the place of the largest logit.
        runner: that of the best rival, -1 where there is none.
        margin: nats, ``inf`` where there is no rival.
        top: softmax weight of the selected token's class.
        entropy: nats.
        peak: the largest logit.
    """

    selected: Tensor
    runner: Tensor
    margin: Tensor
    top: Tensor
    entropy: Tensor
    peak: Tensor


def blocks(queries: int, logits: int) -> Iterator[slice]:
    """Runs of queries, in order, that together have about four million logits.

    Args:
        queries: how many there are.
        logits: how many each of them has, over texts, heads and keys.
    """
    step = max(1, _BLOCK // max(logits, 1))
    for start in range(0, queries, step):
        yield slice(start, min(start + step, queries))


def firmness(logits: Tensor, classes: Tensor | None = None) -> Firmness:
    """The statistics of logits ``(..., q, T)``, hidden keys at minus infinity.

    Args:
        logits: at least one key of every query is not hidden.
        classes: ``(T,)`` integers, equal for equivalent tokens; each its own when left out.
    """
    peak, selected = logits.max(dim=-1)
    # relative to the peak, so that nothing cancels in saturated heads
    below = logits - peak[..., None]
    weights = below.exp()
    total = weights.sum(dim=-1)
    entropy = total.log() - (weights * below.clamp(min=-1e30)).sum(dim=-1) / total
    if classes is None:
        top = total.reciprocal()
        rivals = logits.scatter(-1, selected[..., None], -torch.inf)
    else:
        own = classes[selected][..., None] == classes
        top = (weights * own).sum(dim=-1) / total
        rivals = logits.masked_fill(own, -torch.inf)
    second, runner = rivals.max(dim=-1)
    runner = runner.masked_fill(second == -torch.inf, -1)
    return Firmness(selected, runner, peak - second, top, entropy, peak)
