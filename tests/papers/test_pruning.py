"""Decoders whose attention is pruned: their optimisers, the controls, and claims that can fail."""

from dataclasses import asdict

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from attsvm_papers.heads.decoder import MADE, Decoder, DecoderSizes, held_out_loss
from attsvm_papers.pruning import decoders
from attsvm_papers.pruning import e1_survival as pruning_1
from attsvm_papers.pruning.decoders import (
    OPTIMISERS,
    RATES,
    RULES,
    head_norm,
    pruned_loss,
    pruning_optimiser,
    share_of_copies,
    with_scaled_logits,
)

TINY = DecoderSizes(context=12, width=12, depth=2, heads=2, batch=4, steps=5)


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Decoder(9, TINY)


@pytest.mark.parametrize("name", OPTIMISERS)
def test_an_optimiser_moves_every_parameter_once_and_decays_matrices_alone(model, name) -> None:
    groups = pruning_optimiser(model, name, RATES[name], 0.1).param_groups
    moved = [id(each) for group in groups for each in group["params"]]
    assert sorted(moved) == sorted(id(each) for each in model.parameters())
    decayed = {id(p) for group in groups if group["weight_decay"] for p in group["params"]}
    matrices = {
        id(part.weight)
        for block in model.blocks
        for part in block.modules()
        if isinstance(part, torch.nn.Linear)
    }
    assert decayed == matrices
    assert len(groups[0]["params"]) == (2 * 2 if name.startswith("l") else len(matrices))


def test_scaled_heads_have_scaled_norms_and_other_losses(model) -> None:
    texts, double = torch.randint(9, (3, 12)), with_scaled_logits(model, 2.0)
    assert head_norm(double) == pytest.approx(2 * head_norm(model))
    assert torch.equal(double.out.weight, model.out.weight)
    assert not torch.allclose(double(texts), model(texts))
    squares = [
        (block.keys.weight[head].T @ block.queries.weight[head]).square().sum().item() / 6
        for block in model.blocks
        for head in (slice(0, 6), slice(6, 12))
    ]
    assert head_norm(model) == pytest.approx(np.sqrt(np.mean(squares)), rel=1e-5)


@pytest.mark.parametrize(
    ("rule", "keep"),
    [
        ("top", lambda size, logits: np.argsort(-logits)[:size]),
        ("nearest", lambda size, logits: range(max(0, len(logits) - size), len(logits))),
    ],
)
def test_what_is_kept_is_what_a_loop_over_queries_keeps(model, rule, keep) -> None:
    texts = torch.randint(9, (2, 9))

    def attend(q, k, v):
        out = torch.zeros_like(v)
        for b, h, i in np.ndindex(*q.shape[:3]):
            logits = k[b, h, : i + 1] @ q[b, h, i] / np.sqrt(6)
            kept = list(keep(2, logits.numpy()))
            out[b, h, i] = logits[kept].softmax(dim=0) @ v[b, h, kept]
        return out

    before = held_out_loss(model, texts)
    found = {each: pruned_loss(model, texts, 2, each) for each in RULES}
    assert held_out_loss(model, texts) == before, "the model is left as it was"
    assert pruned_loss(model, texts, 50, rule) == pytest.approx(before, rel=1e-5)
    assert len({before, *found.values()}) == 4
    for block in model.blocks:
        block.attend = attend
    with torch.no_grad():
        logits = model(texts[:, :-1])
    expected = cross_entropy(logits.flatten(0, 1), texts[:, 1:].flatten())
    assert found[rule] == pytest.approx(expected.item(), rel=1e-5)


def test_copies_are_counted() -> None:
    """Keys that are zero attend to all alike; the first of equals is no copy, unless it is the same
    token.
    """
    model = Decoder(9, DecoderSizes(context=12, width=12, depth=1, heads=1))
    with torch.no_grad():
        model.blocks[0].keys.weight.zero_()
    assert share_of_copies(model, torch.arange(8)[None]) == 0.0
    assert share_of_copies(model, torch.zeros(1, 8, dtype=torch.long)) == 1.0


def test_a_row_has_the_costs_of_one_training() -> None:
    sizes = asdict(pruning_1.TINY)
    one, again, other = (
        pruning_1.run("muon", 0.1, seed, "", text=MADE, sizes=sizes) for seed in (0, 0, 1)
    )
    assert all(np.array_equal(one[name], again[name]) for name in one)
    assert one["loss"] != other["loss"], "seeds draw weights and batches"
    # logits that are not scaled, in the middle
    assert one["scaled cost"][0, 6] == pytest.approx(one["top"][0, 0], abs=1e-6)
    assert one["top"].shape == one["nearest"].shape == (1, len(pruning_1.KEPT_TOKENS))


def test_rates_fall_along_half_a_cosine(monkeypatch) -> None:
    factors = []
    monkeypatch.setattr(
        decoders, "train_steps", lambda *given: factors.append(given[-1]) or iter([])
    )
    list(decoders.train_by_optimiser(None, 9, TINY, "adamw", 1e-3, 0.0, 0))
    falling = [factors[0](step) for step in range(TINY.steps + 1)]
    assert (falling[0], falling[-1]) == (1.0, pytest.approx(0.1))
    assert (np.diff(falling) < 0).all()
