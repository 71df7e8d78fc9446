r"""Selected token, margin, top mass and entropy from logits, a block of queries at a time.

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


class LogitStatistics(NamedTuple):
    """Statistics of queries; each has the shape of the logits without their last axis.

    Attributes:
        selected: the position of the largest logit.
        rival: that of the best rival, -1 where there is none.
        margin: nats, ``inf`` where there is no rival.
        top: softmax weight of the selected token's class.
        entropy: nats.
        peak: the largest logit.
    """

    selected: Tensor
    rival: Tensor
    margin: Tensor
    top: Tensor
    entropy: Tensor
    peak: Tensor


def query_blocks(queries: int, logits: int, size: int = 1 << 22) -> Iterator[slice]:
    """Runs of queries, in order, that together have about ``size`` logits.

    Args:
        queries: number of them.
        logits: number of logits that each of them has, over texts, heads and keys.
        size: logits to compute at a time, by default 16 megabytes in float32.
    """
    step = max(1, size // max(logits, 1))
    for start in range(0, queries, step):
        yield slice(start, min(start + step, queries))


def logit_statistics(
    logits: Tensor, classes: Tensor | None = None, sinks: Tensor | None = None
) -> LogitStatistics:
    """The statistics of logits ``(..., q, T)``, hidden keys at minus infinity.

    Args:
        logits: at least one key of every query is not hidden.
        classes: ``(T,)`` integers, equal for equivalent tokens; a class for each when left out.
        sinks: ``(heads,)`` logits that take attention beside the keys; they are no tokens, so they
            are neither selected nor rivals.
    """
    peak, selected = logits.max(dim=-1)
    # relative to the peak, so that nothing cancels in saturated heads
    below = logits - peak[..., None]
    weights = below.exp()
    total = weights.sum(dim=-1)
    # - sum p log p with p = exp(below) / total; the clamp makes 0 of a hidden key's 0 * inf
    energy = (weights * below.clamp(min=-1e30)).sum(dim=-1)
    if sinks is not None:
        sink = sinks.to(logits)[:, None] - peak
        total, energy = total + sink.exp(), energy + sink.exp() * sink
    entropy = total.log() - energy / total
    if classes is None:
        top = total.reciprocal()  # exp(0) of the selected token
        rivals = logits.scatter(-1, selected[..., None], -torch.inf)
    else:
        # tokens of one class add their weights, and are no rivals of each other
        same_class = classes[selected][..., None] == classes
        top = (weights * same_class).sum(dim=-1) / total
        rivals = logits.masked_fill(same_class, -torch.inf)
    # without a rival the largest of nothing is minus infinity, and the margin infinite
    second, rival = rivals.max(dim=-1)
    rival = rival.masked_fill(second == -torch.inf, -1)
    return LogitStatistics(selected, rival, peak - second, top, entropy, peak)
