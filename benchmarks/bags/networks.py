"""Gated attention (Ilse, Tomczak, Welling, 2018) and the mean of the highest instance scores, in
torch, as they are trained on slides: a bag a step, dropout, early stopping on a fifth of the bags.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from shared import Array, FitFolds, Model, Scale, Scaled
from sklearn.model_selection import train_test_split
from torch import Tensor, nn

from attsvm.datasets.bags import Bags

DECAYS, SEEDS = (1e-4, 1e-2), (0, 1, 2)
PASSES, PATIENCE, HIGHEST = 50, 10, 8


class GatedAttention(nn.Module):
    """``d -> 256``, gated attention of 128, a linear head."""

    unsigned, rates = True, (1e-3, 3e-4, 1e-4)

    def __init__(self, d: int) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Linear(d, 256), nn.ReLU(), nn.Dropout(0.25))
        self.tanh, self.gate = nn.Linear(256, 128), nn.Linear(256, 128)
        self.logit, self.head = nn.Linear(128, 1), nn.Linear(256, 1)

    def forward(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """The value of a bag and the logits of its instances."""
        hidden = self.features(rows)
        gated = torch.tanh(self.tanh(hidden)) * torch.sigmoid(self.gate(hidden))
        logits = self.logit(gated)[:, 0]
        return self.head(torch.softmax(logits, 0) @ hidden)[0], logits


class HighestScores(nn.Module):
    """The mean of the highest linear scores of a bag."""

    unsigned, rates = False, (3e-2, 1e-2, 3e-3)

    def __init__(self, d: int) -> None:
        super().__init__()
        self.head = nn.Linear(d, 1)

    def forward(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """The value of a bag and the scores of its instances."""
        scores = self.head(rows)[:, 0]
        return scores.topk(min(HIGHEST, len(scores))).values.mean(), scores


class Trained:
    """A network that has been trained on bags."""

    def __init__(self, network: nn.Module) -> None:
        self.network, self.unsigned = network, network.unsigned

    def _read(self, bags: Bags) -> list[tuple[Tensor, Tensor]]:
        with torch.no_grad():
            return [self.network(_tensor(rows)) for rows in bags]

    def values(self, bags: Bags) -> Array:
        return np.array([float(value) for value, _ in self._read(bags)])

    def instances(self, bags: Bags) -> Array:
        return np.concatenate([scores.numpy() for _, scores in self._read(bags)])


def _tensor(rows: Array) -> Tensor:
    return torch.as_tensor(np.asarray(rows, np.float32))


def _train(
    network: nn.Module, bags: Bags, y: Array, rate: float, decay: float, seed: int
) -> tuple[Trained, float]:
    """The network at its least validation loss, and that loss."""
    rows, target = [_tensor(bag) for bag in bags], torch.as_tensor(y > 0, dtype=torch.float32)
    train, validation = train_test_split(
        np.arange(bags.n), test_size=0.2, stratify=y, random_state=seed
    )
    optimizer = torch.optim.AdamW(network.parameters(), lr=rate, weight_decay=decay)
    loss = nn.functional.binary_cross_entropy_with_logits
    generator = np.random.default_rng(seed)
    least, since, best = np.inf, 0, network.state_dict()
    for _ in range(PASSES):
        network.train()
        for i in generator.permutation(train):
            optimizer.zero_grad()
            loss(network(rows[i])[0], target[i]).backward()
            optimizer.step()
        network.eval()
        with torch.no_grad():
            left_out = np.mean([float(loss(network(rows[i])[0], target[i])) for i in validation])
        since += 1
        if left_out < least:
            least, since = float(left_out), 0
            best = {name: value.clone() for name, value in network.state_dict().items()}
        if since >= PATIENCE:
            break
    network.load_state_dict(best)
    return Trained(network.eval()), least


def tuned(kind: type[nn.Module]) -> FitFolds:
    """Every rate and weight decay from every seed; of the setting whose mean validation loss is the
    least, the network with the least.
    """

    def fit(bags: Bags, y: Array, trains: list[Array], seed: int) -> Iterator[Model]:
        torch.set_num_threads(1)
        for train in trains:
            scale = Scale.of(bags.take(train).rows)
            scaled, labels = scale(bags.take(train)), y[train]
            fits: dict[tuple[float, float], list[tuple[Trained, float]]] = {}
            for rate, decay in itertools.product(kind.rates, DECAYS):
                fits[rate, decay] = []
                for start in SEEDS:
                    torch.manual_seed(start)
                    network = kind(bags.d)
                    fits[rate, decay].append(_train(network, scaled, labels, rate, decay, start))
            setting = min(fits, key=lambda key: float(np.mean([least for _, least in fits[key]])))
            best, _ = min(fits[setting], key=lambda trained: trained[1])
            choice: dict[str, Any] = {"rate": setting[0], "decay": setting[1]}
            yield Scaled(scale, best, choice)

    return fit


METHODS: dict[str, FitFolds] = {}
GRADED = {
    "gated attention, tuned": tuned(GatedAttention),
    f"linear top-{HIGHEST}, tuned": tuned(HighestScores),
}
