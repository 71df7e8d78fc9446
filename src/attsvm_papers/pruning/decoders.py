"""Small decoders of characters under six optimisers, and the cost of pruning them.

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

from attsvm.datasets.attention_data import FloatArray
from attsvm.optim import CombinedOptimizer, MirrorDescent, SteepestDescent
from attsvm.transformers import capture
from attsvm_papers.heads.decoder import (
    Decoder,
    DecoderSizes,
    held_out_loss,
    train_steps,
)

OPTIMISERS = ("adamw", "muon", "spectral", "l1.1", "l1.5", "l3")
RATES = {"adamw": 3e-3, "muon": 3e-2, "spectral": 3e-2, "l1.1": 0.03, "l1.5": 0.1, "l3": 0.03}
"""Of the matrices that the optimiser is named for; the best of three and more that were tried."""
OTHER_MATRICES_RATE = 3e-3  # of AdamW on the other matrices beside mirror descent
REST_RATE = 1e-3  # of AdamW on tables, norms, biases and the output
TURN = 0.1  # of the rate is left at the end
DECAYS = (0.0, 0.1)


def pruning_optimiser(model: Any, name: str, rate: float, decay: float) -> CombinedOptimizer:
    """The optimiser of this name, one of :data:`OPTIMISERS`; ``decay`` is the weight decay of all
    matrices of blocks, decoupled, times the rate.
    """
    matrices = [
        module.weight
        for block in model.blocks
        for module in block.modules()
        if isinstance(module, nn.Linear)
    ]
    attention = [
        projection.weight for block in model.blocks for projection in (block.queries, block.keys)
    ]
    trained_matrices = attention if name.startswith("l") else matrices
    trained_ids = {id(matrix) for matrix in trained_matrices}
    other_matrices = [matrix for matrix in matrices if id(matrix) not in trained_ids]
    matrix_ids = {id(matrix) for matrix in matrices}
    other_parameters = [matrix for matrix in model.parameters() if id(matrix) not in matrix_ids]
    optimizer: torch.optim.Optimizer
    if name == "adamw":
        optimizer = torch.optim.AdamW(trained_matrices, lr=rate, weight_decay=decay)
    elif name == "muon":
        optimizer = torch.optim.Muon(trained_matrices, lr=rate, weight_decay=decay)
    elif name == "spectral":
        optimizer = SteepestDescent(
            trained_matrices,
            lr=rate,
            norm="spectral",
            momentum=0.95,
            nesterov=True,
            weight_decay=decay,
            polar="polar-express",
        )
    else:
        optimizer = MirrorDescent(
            trained_matrices,
            lr=rate,
            p=float(name[1:]),
            normalize=True,
            weight_decay=decay,
            decay_mode="primal",
        )
    members = [optimizer, torch.optim.AdamW(other_parameters, lr=REST_RATE, weight_decay=0.0)]
    if other_matrices:
        members.append(
            torch.optim.AdamW(other_matrices, lr=OTHER_MATRICES_RATE, weight_decay=decay)
        )
    return CombinedOptimizer(members)


def train_by_optimiser(
    ids: Tensor,
    vocabulary: int,
    sizes: DecoderSizes,
    name: str,
    rate: float,
    decay: float,
    seed: int,
) -> Iterator[tuple[int, Decoder]]:
    """The network after 1, 2, ... steps; the seed draws first weights and batches."""

    def factor(step: int) -> float:
        return TURN + (1 - TURN) * 0.5 * (1 + math.cos(math.pi * step / sizes.steps))

    def make(model: Decoder) -> CombinedOptimizer:
        return pruning_optimiser(model, name, rate, decay)

    return islice(train_steps(ids, vocabulary, sizes, make, seed, factor), 1, None)


@torch.no_grad()
def head_norm(model: Decoder) -> float:
    r"""Root mean square over heads of the Frobenius norm of :math:`W_K^\top W_Q/\sqrt d`, whose
    products with tokens are the logits.
    """
    squares = []
    for block in model.blocks:
        heads: Any = block
        Q, K = (
            projection.weight.unflatten(0, (heads.heads, -1))
            for projection in (heads.queries, heads.keys)
        )
        squares.append((K.mT @ Q).square().sum(dim=(1, 2)) / Q.shape[1])
    return float(torch.cat(squares).mean().sqrt())


@torch.no_grad()
def with_scaled_logits(model: Decoder, factor: float) -> Decoder:
    """A copy whose logits of attention are multiplied by a factor."""
    copy_of_model = copy.deepcopy(model)
    for block in copy_of_model.blocks:
        attention: Any = block
        attention.queries.weight.mul_(factor)
    return copy_of_model


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
    generator = torch.Generator().manual_seed(0)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        logits = q.shape[-1] ** -0.5 * (q @ k.mT)
        later = torch.ones_like(logits, dtype=torch.bool).triu(1)
        logits = logits.masked_fill(later, -torch.inf)
        score = RULES[rule](logits, generator).to(logits).masked_fill(later, -torch.inf)
        best = score.topk(min(size, logits.shape[-1]), dim=-1).indices
        kept_logits = torch.full_like(logits, -torch.inf).scatter(-1, best, logits.gather(-1, best))
        return kept_logits.softmax(dim=-1) @ v

    blocks: Any = model.blocks
    for block in blocks:
        block.attend = attend
    try:
        return held_out_loss(model, texts)
    finally:
        for block in blocks:
            del block.attend


@torch.no_grad()
def share_of_copies(model: Decoder, texts: Tensor) -> float:
    """Share of queries, over heads and layers, that attend most to themselves, to the token before,
    or to one of the same kind.
    """
    with capture(model, projections=False) as recording:
        model(texts)
    shares: list[FloatArray] = []
    for layer in recording.layers.values():
        for text in layer.texts:
            ids, positions = texts[text.text].numpy(), text.positions
            top = text.logits().argmax(dim=-1).numpy()
            copied = (top == positions) | (top == positions - 1) | (ids[top] == ids[positions])
            shares.append(copied[:, positions > 1].mean(axis=1))
    return float(np.mean(np.concatenate(shares)))
