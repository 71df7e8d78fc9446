"""Small decoders of characters under six optimisers, and what pruning costs them.

The decoder is that of :mod:`attsvm_papers.heads.decoder`. AdamW, Muon and this project's spectral
descent move all matrices of its blocks; mirror descent moves queries and keys, with AdamW on the
other matrices. Everything else is trained by AdamW. Rates fall to zero along a cosine.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from attsvm.data import FloatArray
from attsvm.optim import CombinedOptimizer, MirrorDescent, SteepestDescent
from attsvm.probe import capture
from attsvm_papers.heads.decoder import (
    Decoder,
    Sizes,
    held_out_loss,
    train_steps,
)

OPTIMISERS = ("adamw", "muon", "spectral", "l1.1", "l1.5", "l3")
RATES = {"adamw": 3e-3, "muon": 3e-2, "spectral": 3e-2, "l1.1": 0.03, "l1.5": 0.1, "l3": 0.03}
"""Of the matrices that the optimiser is named for; the best of three and more that were tried."""
OTHERS = 3e-3  # of AdamW on the other matrices beside mirror descent
REST = 1e-3  # of AdamW on tables, norms, biases and the output
TURN = 0.1  # of the rate is left at the end
DECAYS = (0.0, 0.1)


def optimiser(model: Any, name: str, rate: float, decay: float) -> CombinedOptimizer:
    """The named one of :data:`OPTIMISERS`; ``decay`` is the weight decay of all matrices of blocks,
    decoupled, times the rate.
    """
    matrices = [
        part.weight
        for block in model.blocks
        for part in block.modules()
        if isinstance(part, nn.Linear)
    ]
    attention = [part.weight for block in model.blocks for part in (block.queries, block.keys)]
    chosen = attention if name.startswith("l") else matrices
    mine = {id(each) for each in chosen}
    others = [each for each in matrices if id(each) not in mine]
    inside = {id(each) for each in matrices}
    rest = [each for each in model.parameters() if id(each) not in inside]
    own: torch.optim.Optimizer
    if name == "adamw":
        own = torch.optim.AdamW(chosen, lr=rate, weight_decay=decay)
    elif name == "muon":
        own = torch.optim.Muon(chosen, lr=rate, weight_decay=decay)
    elif name == "spectral":
        own = SteepestDescent(
            chosen,
            lr=rate,
            norm="spectral",
            momentum=0.95,
            nesterov=True,
            weight_decay=decay,
            polar="polar-express",
        )
    else:
        own = MirrorDescent(
            chosen,
            lr=rate,
            p=float(name[1:]),
            normalize=True,
            weight_decay=decay,
            decay_mode="primal",
        )
    members = [own, torch.optim.AdamW(rest, lr=REST, weight_decay=0.0)]
    if others:
        members.append(torch.optim.AdamW(others, lr=OTHERS, weight_decay=decay))
    return CombinedOptimizer(members)


def training(
    ids: Tensor, vocabulary: int, sizes: Sizes, name: str, rate: float, decay: float, seed: int
) -> Iterator[tuple[int, Decoder]]:
    """The network after 1, 2, ... steps; the seed draws first weights and batches."""

    def factor(step: int) -> float:
        return TURN + (1 - TURN) * 0.5 * (1 + math.cos(math.pi * step / sizes.steps))

    def make(model: Decoder) -> CombinedOptimizer:
        return optimiser(model, name, rate, decay)

    return islice(train_steps(ids, vocabulary, sizes, make, seed, factor), 1, None)


@torch.no_grad()
def norm(model: Decoder) -> float:
    r"""Root mean square over heads of the Frobenius norm of :math:`W_K^\top W_Q/\sqrt d`, whose
    products with tokens are the logits.
    """
    found = []
    for block in model.blocks:
        heads: Any = block
        Q, K = (part.weight.unflatten(0, (heads.heads, -1)) for part in (heads.queries, heads.keys))
        found.append((K.mT @ Q).square().sum(dim=(1, 2)) / Q.shape[1])
    return float(torch.cat(found).mean().sqrt())


@torch.no_grad()
def scaled(model: Decoder, factor: float) -> Decoder:
    """A copy whose logits of attention are multiplied by a factor."""
    found = copy.deepcopy(model)
    for block in found.blocks:
        part: Any = block
        part.queries.weight.mul_(factor)
    return found


RULES: dict[str, Callable[[Tensor, torch.Generator], Tensor]] = {
    "top": lambda logits, draw: logits,
    "random": lambda logits, draw: torch.rand(logits.shape, generator=draw),
    "nearest": lambda logits, draw: torch.arange(logits.shape[-1]).expand_as(logits),
}
"""What decides which tokens of a query are kept, of logits ``(B, heads, T, T)``."""


def pruned_loss(model: Decoder, texts: Tensor, size: int, rule: str) -> float:
    r"""The held-out loss where every query of every head keeps so many of the tokens that it sees,
    without retraining.

    With attention weights :math:`p_t` and a set :math:`S` that is kept, its output becomes
    :math:`\sum_{t\in S}p_tv_t/\sum_{t\in S}p_t`. A query that sees fewer keeps all of them.

    Args:
        model: the decoder.
        texts: ``(n, context + 1)``.
        size: tokens that are kept.
        rule: one of :data:`RULES`, those with the largest numbers are kept.
    """
    draw = torch.Generator().manual_seed(0)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        logits = q.shape[-1] ** -0.5 * (q @ k.mT)
        later = torch.ones_like(logits, dtype=torch.bool).triu(1)
        logits = logits.masked_fill(later, -torch.inf)
        score = RULES[rule](logits, draw).to(logits).masked_fill(later, -torch.inf)
        best = score.topk(min(size, logits.shape[-1]), dim=-1).indices
        kept = torch.full_like(logits, -torch.inf).scatter(-1, best, logits.gather(-1, best))
        return kept.softmax(dim=-1) @ v

    blocks: Any = model.blocks
    for block in blocks:
        block.attend = attend
    try:
        return held_out_loss(model, texts)
    finally:
        for block in blocks:
            del block.attend


@torch.no_grad()
def copies(model: Decoder, texts: Tensor) -> float:
    """Share of queries, over heads and layers, that attend most to themselves, to the token before,
    or to one of the same kind.
    """
    with capture(model, projections=False) as recording:
        model(texts)
    found: list[FloatArray] = []
    for layer in recording.layers:
        for text in layer.texts:
            ids, at = texts[text.text].numpy(), text.positions
            top = text.logits().argmax(dim=-1).numpy()
            copied = (top == at) | (top == at - 1) | (ids[top] == ids[at])
            found.append(copied[:, at > 1].mean(axis=1))
    return float(np.mean(np.concatenate(found)))
