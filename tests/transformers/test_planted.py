"""Heads whose answer is known: trained by the library to their max-margin limit, and random."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import attsvm
from attsvm.transformers import Comparison, audit, demo_model

from .conftest import one_head, recorded

SURE = 0.997  # of one head's interval, so that twenty of twenty hold in 94 of 100 suites


def compared(W: np.ndarray, size: float, data: attsvm.AttentionData, seed: int) -> Comparison:
    """The head beside weights with random singular vectors."""
    x, z = torch.tensor(data.tokens), torch.tensor(data.queries[:, None, :-1])
    recording = recorded(one_head(W, size), x, z)
    found = audit(recording, ["fro"], ["random"], draws=8, seed=seed)
    return found.head(0, 0).fit("fro")


def trained(seeds: range) -> list[tuple[attsvm.AttentionData, np.ndarray, float]]:
    """Sequences, weights after many steps, and the cosine to the limit of what they select."""
    rng = np.random.default_rng([seeds.start, 77])
    data, v = attsvm.datasets.unit_sphere(n=16, T=6, d=20, seed=list(seeds))
    z = rng.normal(size=(*data.tokens.shape[:2], 20)) / 20**0.5
    z -= z.mean(axis=1, keepdims=True)  # the mean query is zero, so centring changes nothing
    data = replace(data, queries=np.concatenate([z, np.ones((*z.shape[:2], 1))], axis=2))
    model = attsvm.attention.Attention.cross(data, head=v)
    optimizer = attsvm.optim.SteepestDescent([model.W], lr=0.1)
    attsvm.train(model, data, optimizer, steps=20_000, record=attsvm.LogSpaced(5))
    found = []
    for i, W in enumerate(model.W.detach().numpy()):
        one = attsvm.AttentionData(data.tokens[i], data.labels[i], data.queries[i])
        chosen = np.einsum("ntd,de,ne->nt", one.tokens, W, one.queries).argmax(axis=1)
        limit = attsvm.max_margin(attsvm.selection_margins(one, chosen)).W
        found.append((one, W, float((W * limit).sum() / np.linalg.norm(W) / np.linalg.norm(limit))))
    return found


@pytest.mark.parametrize(
    "seeds",
    [
        pytest.param(range(3), id="3"),
        pytest.param(range(200, 220), id="20", marks=pytest.mark.slow),
    ],
)
def test_heads_at_their_limit_stand_out_and_random_heads_do_not(seeds: range) -> None:
    for i, (data, W, cosine) in enumerate(trained(seeds)):
        limit = compared(W, 1.0, data, i)
        assert limit.status == "optimal"
        assert limit.cosine == pytest.approx(cosine, abs=1e-6)
        assert limit.excess == pytest.approx(1 - limit.null(), abs=0.01)  # the theory: cosine one
        assert limit.interval(SURE)[0] > 0
        rng = np.random.default_rng([i, len(seeds)])
        chance = compared(rng.normal(size=W.shape), 100.0, data, i)
        low, high = chance.interval(SURE)
        assert low < 0 < high


@pytest.mark.parametrize(
    ("layers", "copies"),
    [pytest.param([2], 1, id="8"), pytest.param(None, 5, id="200", marks=pytest.mark.slow)],
)
def test_random_weights_on_real_keys_are_inside_the_null_band(layers, copies: int) -> None:
    """The heads of the stories model with queries turned at random: on its keys and queries that is
    the null ``random`` itself. Of many heads 95 % are inside, less three standard errors.
    """
    model, _, batch = demo_model(tokens=120)
    inside = []
    for copy in range(copies):
        recording = recorded(model, batch["input_ids"], layers=layers)
        generator = torch.Generator().manual_seed(copy)
        for layer in recording.layers.values():
            for text in layer.texts:
                for head in text.queries:
                    turn = torch.linalg.qr(torch.randn(8, 8, generator=generator)).Q
                    head.copy_(4.0 * head @ turn)
        found = audit(recording, ["fro"], ["random"], draws=5, seed=copy)
        for each in found.heads:
            for fit in each.fits:
                low, high = fit.interval()
                inside.append(low < 0 < high)
    assert len(inside) >= 7 * copies
    assert np.mean(inside) > 0.95 - 3 * (0.95 * 0.05 / len(inside)) ** 0.5
