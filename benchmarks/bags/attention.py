"""Attention-based deep MIL (Ilse, Tomczak, Welling, 2018), plain and gated, in torch.

The published protocol as far as it goes at this size: dropout, weight decay, minibatches, about a
hundred passes over a hundred bags, and the step at which the loss of left-out bags is smallest. All
folds are one batched programme: a step takes one minibatch of each fold.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from shared import Array, Model, Scale
from sklearn.model_selection import StratifiedShuffleSplit

from attsvm.datasets.bags import Bags

WIDTH, STEPS, EVERY, RATE, DROPOUT = 64, 1000, 25, 1e-3, 0.5
DECAY = 2.5e-3  # times the square of the weights: weight decay 5e-3

Parameters = dict[str, torch.Tensor]


def _start(folds: int, width: int, gated: bool, seed: int) -> Parameters:
    generator = torch.Generator().manual_seed(seed)

    def layer(fan_in: int, fan_out: int) -> torch.Tensor:
        return torch.randn(folds, fan_in, fan_out, generator=generator) * fan_in**-0.5

    made = {"V": layer(width, WIDTH), "A": layer(WIDTH, WIDTH), "w": layer(WIDTH, 1)}
    made |= {"c": layer(WIDTH, 1), "bV": torch.zeros(folds, 1, WIDTH), "b": torch.zeros(folds, 1)}
    if gated:
        made |= {"G": layer(WIDTH, WIDTH)}
    return made


def _forward(
    p: Parameters, x: torch.Tensor, bag: torch.Tensor, n: int, dropout: float = 0.0
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Values ``(F, n)``, attention ``(F, N)`` and the head's value of each instance ``(F, N)``."""
    hidden = torch.relu(torch.matmul(x, p["V"]) + p["bV"])
    if dropout:
        hidden = torch.nn.functional.dropout(hidden, dropout)
    score = torch.tanh(hidden @ p["A"])
    if "G" in p:
        score = score * torch.sigmoid(hidden @ p["G"])
    logits = (score @ p["w"])[..., 0]
    index = bag.expand_as(logits)
    most = torch.full((len(logits), n), -torch.inf).scatter_reduce(1, index, logits, "amax")
    weight = torch.exp(logits - most.gather(1, index))
    total = torch.zeros(len(logits), n).scatter_add(1, index, weight)
    attention = weight / total.gather(1, index)
    head = (hidden @ p["c"])[..., 0]
    values = torch.zeros(len(logits), n).scatter_add(1, index, attention * head)
    return values + p["b"], attention, head


class Minibatches:
    """Rows and bags of one minibatch of each fold, of which every pass takes each bag once."""

    def __init__(self, bags: Bags, chosen: Array, seed: int) -> None:
        self.bags, self.generator = bags, np.random.default_rng(seed)
        self.members = [np.flatnonzero(row) for row in chosen]
        self.size = int(np.clip(min(map(len, self.members)) // 10, 8, 64))
        self.left: list[Array] = [np.zeros(0, dtype=int) for _ in chosen]

    def draw(self) -> tuple[Array, Array, Array]:
        """Bags ``(F, B)``, rows ``(F, L)`` and the place of each row's bag in 0 to B ``(F, L)``;
        fillers belong to place B.
        """
        lengths, offsets = self.bags.lengths, self.bags.offsets
        for f, members in enumerate(self.members):
            if len(self.left[f]) < self.size:
                self.left[f] = np.concatenate([self.left[f], self.generator.permutation(members)])
        drawn = np.stack([left[: self.size] for left in self.left])
        self.left = [left[self.size :] for left in self.left]
        most = int(lengths[drawn].sum(axis=1).max())
        rows = np.zeros((len(drawn), most), dtype=int)
        place = np.full((len(drawn), most), self.size)
        for f, taken in enumerate(drawn):
            found = np.concatenate([np.arange(offsets[i], offsets[i + 1]) for i in taken])
            rows[f, : len(found)] = found
            place[f, : len(found)] = np.repeat(np.arange(self.size), lengths[taken])
        return drawn, rows, place


def _train(
    p: Parameters, x: torch.Tensor, bags: Bags, y: Array, chosen: Array, steps: Any
) -> Iterator[tuple[int, Parameters]]:
    """Adam on the logistic loss of minibatches; yields step and parameters.

    ``steps`` is one number or one per fold; a fold that has had its steps stays.
    """
    p = {name: value.clone().requires_grad_() for name, value in p.items()}
    folds = len(p["V"])
    steps = torch.as_tensor(np.broadcast_to(steps, folds).copy())
    optimizer = torch.optim.Adam(list(p.values()), lr=RATE)
    batches = Minibatches(bags, chosen, 0)
    target = torch.as_tensor(y, dtype=torch.float32)
    fold = torch.arange(folds)[:, None]
    kept = {name: value.detach().clone() for name, value in p.items()}
    for step in range(int(steps.max()) + 1):
        if step % EVERY == 0:
            yield step, kept
        if step == int(steps.max()):
            return
        drawn, rows, place = (torch.as_tensor(part) for part in batches.draw())
        values, _, _ = _forward(p, x[fold, rows], place, batches.size + 1, DROPOUT)
        loss = torch.nn.functional.softplus(-target[drawn] * values[:, :-1]).mean(dim=1)
        norm = sum((p[k] ** 2).sum(dim=(1, 2)) for k in ("V", "A", "w", "c"))
        optimizer.zero_grad()
        (loss + DECAY * norm).sum().backward()
        optimizer.step()
        running = step < steps
        kept = {
            name: torch.where(running.reshape(-1, *[1] * (value.dim() - 1)), value, kept[name])
            for name, value in ((name, value.detach()) for name, value in p.items())
        }


class Attention:
    """One fold's network."""

    unsigned = True

    def __init__(self, p: Parameters, scale: Scale, choice: dict[str, Any]) -> None:
        self.p, self.scale, self.choice = p, scale, choice

    def _run(self, bags: Bags) -> tuple[Array, Array, Array]:
        x = torch.as_tensor(self.scale(bags).rows, dtype=torch.float32)[None]
        with torch.no_grad():
            out = _forward(self.p, x, torch.as_tensor(bags.bag)[None], bags.n)
        return tuple(part[0].numpy().astype(float) for part in out)  # type: ignore[return-value]

    def values(self, bags: Bags) -> Array:
        return self._run(bags)[0]

    def instances(self, bags: Bags) -> Array:
        """The attention, which is what these models are read by."""
        return self._run(bags)[1]


def attention_mil(gated: bool) -> Any:
    """The number of steps by the loss on a fifth of each training set; then all of it is trained
    on.
    """

    def fit(bags: Bags, y: Array, trains: list[Array], seed: int) -> Iterator[Model]:
        torch.manual_seed(seed)
        scales = [Scale.of(bags.take(train).rows) for train in trains]
        stacked = np.stack([scale(bags).rows for scale in scales]).astype(np.float32)
        x = torch.as_tensor(stacked)
        fitted, held = np.zeros((2, len(trains), bags.n))
        for f, train in enumerate(trains):
            split = StratifiedShuffleSplit(1, test_size=0.2, random_state=seed)
            part, rest = next(split.split(train, y[train]))
            fitted[f, train[part]] = held[f, train[rest]] = 1.0
        start = _start(len(trains), bags.d, gated, seed)
        bag, target = torch.as_tensor(bags.bag)[None], torch.as_tensor(y, dtype=torch.float32)
        share = torch.as_tensor(held / held.sum(axis=1, keepdims=True), dtype=torch.float32)
        best, steps = np.full(len(trains), np.inf), np.zeros(len(trains), dtype=int)
        for step, p in _train(start, x, bags, y, fitted, STEPS):
            with torch.no_grad():
                values, _, _ = _forward(p, x, bag, bags.n)
            losses = (torch.nn.functional.softplus(-target * values) * share).sum(dim=1).numpy()
            better = losses < best
            best[better], steps[better] = losses[better], step
        last = start
        for _step, last in _train(start, x, bags, y, fitted + held, steps):  # noqa: B007
            pass
        for f, scale in enumerate(scales):
            p = {name: value[f : f + 1].detach() for name, value in last.items()}
            yield Attention(p, scale, {"steps": int(steps[f])})

    return fit


METHODS = {"attention-MIL": attention_mil(gated=False), "gated attention-MIL": attention_mil(True)}
