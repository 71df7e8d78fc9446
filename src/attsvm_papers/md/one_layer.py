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
from attsvm_papers.md.frozen_states import Sequences

MIRROR = {"l1.1": 1.1, "l1.5": 1.5, "l3": 3.0}
OPTIMISERS = ("l1.1", "l1.5", "gd", "l3", "momentum", "adam")
CONTROLS = {"frozen": "adam", "adam shuffled": "adam", "l1.1 shuffled": "l1.1"}
"""Attention as it was drawn, under a trained head; labels of the training part shuffled: and whose
rate they take.
"""
METHODS = (*OPTIMISERS, *CONTROLS)
_BLOCK = 512  # examples measured at a time


class Weights(NamedTuple):
    """``W`` ``(S, d, d)``, ``V`` ``(S, d, C)`` and ``b`` ``(S, 1, C)``."""

    W: Tensor
    V: Tensor
    b: Tensor


class Training:
    """One method at one rate, for several seeds: their weights, optimiser and labels."""

    def __init__(self, data: Sequences, method: str, lr: float, seeds: Sequence[int]) -> None:
        self.data, self.seconds = data, 0.0
        self.weights = started(data, seeds)
        own = self.weights[1:] if method == "frozen" else self.weights
        for each in own:
            each.requires_grad_()
        self.optimiser = _optimiser(CONTROLS.get(method, method), own, lr)
        self.rows = torch.from_numpy(np.stack([data.parts(seed)[0] for seed in seeds]))
        labels = data.labels[self.rows]
        if method.endswith("shuffled"):
            mixed = [
                np.random.default_rng([seed, 2]).permutation(labels.shape[1]) for seed in seeds
            ]
            labels = torch.gather(labels, 1, torch.from_numpy(np.stack(mixed)))
        self.labels = labels

    def epoch(self, order: Sequence[Tensor]) -> None:
        """A step for every ``(S, B)`` of places in the training part."""
        start = time.process_time()
        for places in order:
            rows, labels = torch.gather(self.rows, 1, places), torch.gather(self.labels, 1, places)
            self.optimiser.zero_grad()
            scores = logits(self.weights, self.data, rows)
            loss = F.cross_entropy(scores.flatten(0, 1), labels.flatten(), reduction="sum")
            (loss / rows.shape[1]).backward()
            self.optimiser.step()
        self.seconds += time.process_time() - start


def _optimiser(name: str, weights: Sequence[Tensor], lr: float) -> torch.optim.Optimizer:
    if name == "adam":
        return torch.optim.Adam(weights, lr)
    if name in ("gd", "momentum"):
        return torch.optim.SGD(weights, lr, momentum=0.9 if name == "momentum" else 0.0)
    return MirrorDescent(weights, lr, p=MIRROR[name])


def started(data: Sequences, seeds: Sequence[int]) -> Weights:
    """Uniform weights below one over the root of the width, as of torch's linear layers."""
    d, classes = data.tokens.shape[2], int(data.labels.max()) + 1
    drawn = []
    for seed in seeds:
        rng = np.random.default_rng([seed, 3])
        drawn.append([rng.uniform(-1, 1, shape) for shape in ((d, d), (d, classes), (1, classes))])
    return Weights(
        *(
            torch.from_numpy(np.stack(each).astype(np.float32)) / d**0.5
            for each in zip(*drawn, strict=True)
        )
    )


def logits(weights: Weights, data: Sequences, rows: Tensor) -> Tensor:
    """``(S, B, C)`` of the examples ``(S, B)``."""
    every = rows.flatten()
    mask = data.mask.index_select(0, every)
    longest = int(mask.sum(dim=1).max())
    tokens, mask = data.tokens.index_select(0, every)[:, :longest], mask[:, :longest]
    d = tokens.shape[-1]
    keys = data.queries.index_select(0, every).view(*rows.shape, d) @ weights.W.mT / d**0.5
    scores = (tokens @ keys.view(-1, d, 1))[..., 0].masked_fill(~mask, -torch.inf)
    mixed = scores.softmax(dim=-1)[:, None] @ tokens
    return mixed.view(*rows.shape, d) @ weights.V + weights.b


MEASURES = ("right", "top", "random", "entropy", "opinion", "opinion_random")


@torch.no_grad()
def measured(weights: Weights, data: Sequences, seeds: Sequence[int]) -> dict[str, NDArray[Any]]:
    """``(n, S)`` of every example and seed: whether it is classified rightly, by all tokens, by
    the one of highest attention and by a random one; the entropy of attention over that of even
    attention; whether the token of highest attention, and the random one, is a word of opinion
    (NaN where a text has none).
    """
    found: list[list[Tensor]] = []
    chance = torch.from_numpy(
        np.stack([np.random.default_rng([seed, 4]).random(len(data.labels)) for seed in seeds], 1)
    )
    for start in range(0, len(data.labels), _BLOCK):
        some = slice(start, start + _BLOCK)
        tokens, mask, labels = data.tokens[some], data.mask[some], data.labels[some, None]
        keys = torch.einsum("nd,sed->nes", data.queries[some], weights.W)
        scores = (tokens @ keys / tokens.shape[-1] ** 0.5).masked_fill(~mask[..., None], -torch.inf)
        shares = scores.softmax(dim=1)
        entropy = torch.special.entr(shares).sum(dim=1) / mask.sum(dim=1, keepdim=True).log()
        top = scores.argmax(dim=1)
        other = (chance[some] * mask.sum(dim=1, keepdim=True)).long()
        each = torch.arange(len(tokens))[:, None]
        said = [
            (torch.einsum("nsd,sdc->nsc", x, weights.V) + weights.b[:, 0]).argmax(dim=2) == labels
            for x in (shares.mT @ tokens, tokens[each, top], tokens[each, other])
        ]
        telling = data.opinion[some]
        none = torch.where(telling.any(dim=1, keepdim=True), 0.0, torch.nan)
        words = [telling[each, chosen] + none for chosen in (top, other)]
        found.append([*said, entropy, *words])
    return {
        name: torch.cat(parts).double().numpy()
        for name, parts in zip(MEASURES, zip(*found, strict=True), strict=True)
    }


def courses(
    data: Sequences,
    trainings: Sequence[Training],
    seeds: Sequence[int],
    epochs: int,
    batch: int,
    *,
    last: bool = False,
) -> list[dict[str, NDArray[Any]]]:
    """Of every training ``(S, epochs + 1)``: accuracies on the parts, what :func:`measured` says
    of the test part, the evenness of W, and seconds; with ``last`` ``(S, 1)``, after the last
    epoch. All go on by an epoch in turn, on the same examples.
    """
    records: list[list[dict[str, Any]]] = [[] for _ in trainings]
    parts = [data.parts(seed) for seed in seeds]
    for epoch in range(epochs + 1):
        order = [
            np.random.default_rng([seed, 5, epoch]).permutation(data.sizes[0]) for seed in seeds
        ]
        steps = torch.from_numpy(np.stack(order)).split(batch, dim=1)
        for training, record in zip(trainings, records, strict=True):
            if epoch:
                training.epoch(steps)
            if epoch == epochs or not last:
                record.append(_record(training, parts, seeds))
    return [
        {name: np.stack([each[name] for each in record], axis=1) for name in record[0]}
        for record in records
    ]


def _record(
    training: Training, parts: Sequence[Sequence[NDArray[Any]]], seeds: Sequence[int]
) -> dict[str, Any]:
    found = measured(training.weights, training.data, seeds)
    W = training.weights.W.detach().double()
    record = {
        "train": np.array([found["right"][rows[0], s].mean() for s, rows in enumerate(parts)]),
        "validation": np.array([found["right"][rows[1], s].mean() for s, rows in enumerate(parts)]),
        "evenness": (W.abs().mean((1, 2)) ** 2 / W.square().mean((1, 2))).numpy(),
        "seconds": np.full(len(seeds), training.seconds),
    }
    for name, values in found.items():
        record[name] = np.array(
            [
                np.nanmean(values[rows[2], s]) if np.isfinite(values[rows[2], s]).any() else np.nan
                for s, rows in enumerate(parts)
            ]
        )
    return record
