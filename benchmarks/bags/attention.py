"""Attention-based deep MIL (Ilse, Tomczak, Welling, 2018), plain and gated, in torch.

All folds are one batched programme over one table of instances: the first layer of F folds is one
matrix product. Bags of a fold's held-out part get no weight in its loss.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from shared import Array, Model, Scale
from sklearn.model_selection import StratifiedShuffleSplit

from attsvm.bags import Bags

WIDTH, STEPS, EVERY, RATE = 64, 100, 5, 2e-3
DECAYS = (1e-4, 1e-2)

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
    p: Parameters, x: torch.Tensor, bag: torch.Tensor, n: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Values ``(F, n)``, attention ``(F, N)`` and the head's value of each instance ``(F, N)``."""
    hidden = torch.relu(torch.matmul(x, p["V"]) + p["bV"])
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


def _train(
    p: Parameters, x: torch.Tensor, bags: Bags, y: Array, weight: Array, decay: Any, steps: Any
) -> Iterator[tuple[int, torch.Tensor, Parameters]]:
    """Adam on the weighted logistic loss; yields step, values of all bags, and the parameters.

    ``decay`` and ``steps`` are one number or one per fold; a fold that has had its steps stays.
    """
    p = {name: value.clone().requires_grad_() for name, value in p.items()}
    folds = len(p["V"])
    decay = torch.as_tensor(np.broadcast_to(decay, folds).copy(), dtype=torch.float32)
    steps = torch.as_tensor(np.broadcast_to(steps, folds).copy())
    optimizer = torch.optim.Adam(list(p.values()), lr=RATE)
    bag = torch.as_tensor(bags.bag)[None]
    target = torch.as_tensor(y, dtype=torch.float32)
    share = torch.as_tensor(weight / weight.sum(axis=1, keepdims=True), dtype=torch.float32)
    for step in range(int(steps.max()) + 1):
        values, _, _ = _forward(p, x, bag, bags.n)
        if step % EVERY == 0:
            yield step, values.detach(), p
        if step == int(steps.max()):
            return
        loss = (torch.nn.functional.softplus(-target * values) * share).sum(dim=1)
        norm = sum((p[k] ** 2).sum(dim=(1, 2)) for k in ("V", "A", "w", "c"))
        running = (step < steps).float()
        optimizer.zero_grad()
        ((loss + decay * norm) * running).sum().backward()
        before = {name: value.detach().clone() for name, value in p.items()}
        optimizer.step()
        with torch.no_grad():
            for name, value in p.items():
                stay = running.reshape(-1, *[1] * (value.dim() - 1)) == 0
                value.copy_(torch.where(stay, before[name], value))


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
    """Weight decay and number of steps by the loss on a fifth of each training set; then all of it
    is trained on.
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
        target = torch.as_tensor(y, dtype=torch.float32)
        share = torch.as_tensor(held / held.sum(axis=1, keepdims=True), dtype=torch.float32)
        best = np.full(len(trains), np.inf)
        decay, steps = np.zeros(len(trains)), np.zeros(len(trains), dtype=int)
        for candidate in DECAYS:
            for step, values, _ in _train(start, x, bags, y, fitted, candidate, STEPS):
                losses = (torch.nn.functional.softplus(-target * values) * share).sum(dim=1).numpy()
                better = losses < best
                best[better], decay[better], steps[better] = losses[better], candidate, step
        last = start
        for _step, _values, last in _train(start, x, bags, y, fitted + held, decay, steps):  # noqa: B007
            pass
        for f, scale in enumerate(scales):
            p = {name: value[f : f + 1].detach() for name, value in last.items()}
            yield Attention(p, scale, {"decay": float(decay[f]), "steps": int(steps[f])})

    return fit


METHODS = {"attention-MIL": attention_mil(gated=False), "gated attention-MIL": attention_mil(True)}
