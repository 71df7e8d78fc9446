r"""One softmax-attention layer with a linear head on tokens that stay as they are, for many seeds
at once.

.. math:: f(X,z)=V^\top X^\top\mathrm{softmax}(XWz/\sqrt d)+b .

Seeds are the first axis of every parameter. Optimisers go entry by entry, and the loss is a sum
over seeds, so that each seed is trained as if it were alone.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from attsvm.optim import MirrorDescent
from attsvm_papers.md.frozen_states import FrozenSequences

MIRROR = {"l1.1": 1.1, "l1.5": 1.5, "l3": 3.0}
OPTIMISERS = ("l1.1", "l1.5", "gd", "l3", "momentum", "adam")
CONTROLS = {"frozen": "adam", "adam shuffled": "adam", "l1.1 shuffled": "l1.1"}
"""Attention as it was drawn, under a trained head; labels of the training part shuffled: and whose
rate they take.
"""
METHODS = (*OPTIMISERS, *CONTROLS)
_BLOCK = 512  # examples measured at a time


class LayerWeights(NamedTuple):
    """Weights ``W`` ``(S, d, d)``, head ``V`` ``(S, d, C)`` and bias ``b`` ``(S, 1, C)``."""

    W: Tensor
    V: Tensor
    b: Tensor


class Training:
    """One method at one rate, for several seeds: their weights, optimiser and labels."""

    def __init__(self, data: FrozenSequences, method: str, lr: float, seeds: Sequence[int]) -> None:
        self.data, self.seconds = data, 0.0
        self.weights = initial_weights(data, seeds)
        trained_weights = self.weights[1:] if method == "frozen" else self.weights
        for parameter in trained_weights:
            parameter.requires_grad_()
        self.optimiser = _optimiser_of(CONTROLS.get(method, method), trained_weights, lr)
        self.rows = torch.from_numpy(np.stack([data.split(seed)[0] for seed in seeds]))
        labels = data.labels[self.rows]
        if method.endswith("shuffled"):
            orders = [
                np.random.default_rng([seed, 2]).permutation(labels.shape[1]) for seed in seeds
            ]
            labels = torch.gather(labels, 1, torch.from_numpy(np.stack(orders)))
        self.labels = labels

    def epoch(self, order: Sequence[Tensor]) -> None:
        """One step for every batch of positions ``(S, B)`` among the training examples."""
        start = time.process_time()
        for positions in order:
            rows, labels = (
                torch.gather(self.rows, 1, positions),
                torch.gather(self.labels, 1, positions),
            )
            self.optimiser.zero_grad()
            scores = class_logits(self.weights, self.data, rows)
            loss = F.cross_entropy(scores.flatten(0, 1), labels.flatten(), reduction="sum")
            (loss / rows.shape[1]).backward()
            self.optimiser.step()
        self.seconds += time.process_time() - start


def _optimiser_of(name: str, weights: Sequence[Tensor], lr: float) -> torch.optim.Optimizer:
    if name == "adam":
        return torch.optim.Adam(weights, lr)
    if name in ("gd", "momentum"):
        return torch.optim.SGD(weights, lr, momentum=0.9 if name == "momentum" else 0.0)
    return MirrorDescent(weights, lr, p=MIRROR[name])


def initial_weights(data: FrozenSequences, seeds: Sequence[int]) -> LayerWeights:
    """Uniform weights below one over the root of the width, as of torch's linear layers."""
    d, classes = data.tokens.shape[2], int(data.labels.max()) + 1
    matrices = []
    for seed in seeds:
        rng = np.random.default_rng([seed, 3])
        matrices.append(
            [rng.uniform(-1, 1, shape) for shape in ((d, d), (d, classes), (1, classes))]
        )
    return LayerWeights(
        *(
            torch.from_numpy(np.stack(block).astype(np.float32)) / d**0.5
            for block in zip(*matrices, strict=True)
        )
    )


def class_logits(weights: LayerWeights, data: FrozenSequences, rows: Tensor) -> Tensor:
    """Logits ``(S, B, C)`` of the examples ``(S, B)``."""
    examples = rows.flatten()
    mask = data.mask.index_select(0, examples)
    longest = int(mask.sum(dim=1).max())
    tokens, mask = data.tokens.index_select(0, examples)[:, :longest], mask[:, :longest]
    d = tokens.shape[-1]
    keys = data.queries.index_select(0, examples).view(*rows.shape, d) @ weights.W.mT / d**0.5
    scores = (tokens @ keys.view(-1, d, 1))[..., 0].masked_fill(~mask, -torch.inf)
    mixed = scores.softmax(dim=-1)[:, None] @ tokens
    return mixed.view(*rows.shape, d) @ weights.V + weights.b


MEASURES = ("right", "top", "random", "entropy", "opinion", "opinion_random")


@torch.no_grad()
def measure_examples(
    weights: LayerWeights, data: FrozenSequences, seeds: Sequence[int]
) -> dict[str, NDArray[Any]]:
    """Measures ``(n, S)`` of every example and seed: whether it is classified rightly, by all
    tokens, by the one of highest attention and by a random one; the entropy of attention over that
    of even attention; whether the token of highest attention, and the random one, is a word of
    opinion (NaN where a text has none).
    """
    measures_of_blocks: list[list[Tensor]] = []
    chance = torch.from_numpy(
        np.stack([np.random.default_rng([seed, 4]).random(len(data.labels)) for seed in seeds], 1)
    )
    for start in range(0, len(data.labels), _BLOCK):
        block = slice(start, start + _BLOCK)
        tokens, mask, labels = data.tokens[block], data.mask[block], data.labels[block, None]
        keys = torch.einsum("nd,sed->nes", data.queries[block], weights.W)
        scores = (tokens @ keys / tokens.shape[-1] ** 0.5).masked_fill(~mask[..., None], -torch.inf)
        shares = scores.softmax(dim=1)
        entropy = torch.special.entr(shares).sum(dim=1) / mask.sum(dim=1, keepdim=True).log()
        top = scores.argmax(dim=1)
        random_token = (chance[block] * mask.sum(dim=1, keepdim=True)).long()
        row = torch.arange(len(tokens))[:, None]
        is_right = [
            (torch.einsum("nsd,sdc->nsc", x, weights.V) + weights.b[:, 0]).argmax(dim=2) == labels
            for x in (shares.mT @ tokens, tokens[row, top], tokens[row, random_token])
        ]
        is_opinion = data.opinion[block]
        missing = torch.where(is_opinion.any(dim=1, keepdim=True), 0.0, torch.nan)
        selected_opinion = [is_opinion[row, token] + missing for token in (top, random_token)]
        measures_of_blocks.append([*is_right, entropy, *selected_opinion])
    return {
        name: torch.cat(blocks).double().numpy()
        for name, blocks in zip(MEASURES, zip(*measures_of_blocks, strict=True), strict=True)
    }


def train_side_by_side(
    data: FrozenSequences,
    trainings: Sequence[Training],
    seeds: Sequence[int],
    epochs: int,
    batch: int,
    *,
    last: bool = False,
) -> list[dict[str, NDArray[Any]]]:
    """Measures of every training by epoch ``(S, epochs + 1)``: accuracies on training and
    validation examples, :func:`measure_examples` of the test examples, the evenness of W, and
    seconds; with ``last`` ``(S, 1)``, after the last epoch. All go on by an epoch in turn, on the
    same examples.
    """
    records: list[list[dict[str, Any]]] = [[] for _ in trainings]
    splits = [data.split(seed) for seed in seeds]
    for epoch in range(epochs + 1):
        order = [
            np.random.default_rng([seed, 5, epoch]).permutation(data.sizes[0]) for seed in seeds
        ]
        steps = torch.from_numpy(np.stack(order)).split(batch, dim=1)
        for training, record in zip(trainings, records, strict=True):
            if epoch:
                training.epoch(steps)
            if epoch == epochs or not last:
                record.append(_measure_training(training, splits, seeds))
    return [
        {name: np.stack([row[name] for row in record], axis=1) for name in record[0]}
        for record in records
    ]


def _measure_training(
    training: Training, splits: Sequence[Sequence[NDArray[Any]]], seeds: Sequence[int]
) -> dict[str, Any]:
    measures = measure_examples(training.weights, training.data, seeds)
    W = training.weights.W.detach().double()
    record = {
        "train": np.array([measures["right"][rows[0], s].mean() for s, rows in enumerate(splits)]),
        "validation": np.array(
            [measures["right"][rows[1], s].mean() for s, rows in enumerate(splits)]
        ),
        "evenness": (W.abs().mean((1, 2)) ** 2 / W.square().mean((1, 2))).numpy(),
        "seconds": np.full(len(seeds), training.seconds),
    }
    for name, values in measures.items():
        record[name] = np.array(
            [
                np.nanmean(values[rows[2], s]) if np.isfinite(values[rows[2], s]).any() else np.nan
                for s, rows in enumerate(splits)
            ]
        )
    return record
