"""Pruned attention: all tokens kept is the model itself, fewer are what a loop over queries keeps,
and every family of models is pruned.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn

from attsvm import InputError
from attsvm.probe import story
from attsvm_papers.networks.pruning_curve import pruning_curve

from .conftest import batch, family


def output(model: nn.Module, batch: dict[str, torch.Tensor]) -> float:
    """A number that any change of attention changes (a layer norm fixes the squares)."""
    return float(model(**batch).last_hidden_state[..., :3].detach().abs().sum())


class Head(nn.Module):
    """One causal head on tokens that are given; its output is the mean of values."""

    def __init__(self, calls: str) -> None:
        super().__init__()
        self.calls = calls
        self.layer = nn.MultiheadAttention(4, 1, bias=False, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        if self.calls == "layer":
            return self.layer(x, x, x, attn_mask=hidden)[0]  # weights are asked for
        if self.calls == "layer without weights":
            return self.layer(x, x, x, attn_mask=hidden, need_weights=False)[0]
        q, k, v = self.layer.in_proj_weight.chunk(3)
        three = (x @ q.T, x @ k.T, x @ v.T)
        if self.calls == "no batch":
            three = tuple(each[:1] for each in three)  # (heads, T, d)
        seen = nn.functional.scaled_dot_product_attention(*three, is_causal=True)
        return seen @ self.layer.out_proj.weight.T


def by_hand(model: Head, x: torch.Tensor, keep) -> torch.Tensor:
    """The output of the head where a query at position i keeps the positions that ``keep`` says."""
    q, k, v = (x @ W.T for W in model.layer.in_proj_weight.chunk(3))
    rows = []
    for b in range(len(x)):
        for i in range(x.shape[1]):
            logits = k[b, : i + 1] @ q[b, i] / 2
            kept = torch.as_tensor(keep(i, logits))
            weights = logits[kept].softmax(dim=0)
            rows.append(weights @ v[b, : i + 1][kept])
    return torch.stack(rows).reshape(x.shape) @ model.layer.out_proj.weight.T


CALLS = ("layer", "layer without weights", "function", "no batch")


@pytest.mark.parametrize("calls", CALLS)
def test_what_is_kept_is_what_a_loop_over_queries_keeps(calls: str) -> None:
    torch.manual_seed(0)
    model = Head(calls)
    for weight in model.parameters():
        nn.init.normal_(weight)
    x = torch.randn(1 if calls == "no batch" else 3, 6, 4)

    def total(model: nn.Module, x: torch.Tensor) -> float:
        return float(model(x).square().sum())

    curve = pruning_curve(model, [x], (1, 2, 6), total)
    with torch.no_grad():
        for kind, keep in {
            "top": lambda size, i, logits: logits.topk(min(size, i + 1)).indices,
            "nearest": lambda size, i, logits: range(max(0, i + 1 - size), i + 1),
        }.items():
            for size, found in zip(curve.k, getattr(curve, kind), strict=True):
                kept = by_hand(model, x, lambda i, logits, s=size, f=keep: f(s, i, logits))
                assert found == pytest.approx(float(kept.square().sum()), rel=1e-5), (kind, size)
    assert curve.whole == pytest.approx(float(curve.top[-1]), rel=1e-5)
    assert curve.random[-1] == pytest.approx(curve.whole, rel=1e-5)
    assert curve.outside[0] > curve.outside[1] > curve.outside[2] == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("name", ["bert", "albert", "gpt2", "llama", "vit", "t5"])
def test_every_family_is_pruned_and_left_as_it_was(name: str) -> None:
    model = family(name)
    given = batch(name)
    before = output(model, given)
    model.train()
    model.set_attn_implementation("eager")
    curve = pruning_curve(model, [given], (1, 50), output)
    assert curve.whole == pytest.approx(before, rel=1e-5)
    for kind in (curve.top, curve.random, curve.nearest):
        assert kind[1] == pytest.approx(before, rel=1e-4), "all tokens are kept"
        assert abs(kind[0] - before) > 1e-4 * before
    assert all(module.training for module in model.modules())
    assert model.config._attn_implementation == "eager"
    assert output(model.eval(), given) == pytest.approx(before, rel=1e-5)


def test_queries_at_padding_do_not_count() -> None:
    model, given = family("bert"), batch("bert")
    alone = {name: value[1:, :9] for name, value in given.items()}
    whole = {name: value[:1] for name, value in given.items()}
    both, one, other = (
        pruning_curve(model, [each], (1,), output).outside[0] for each in (given, whole, alone)
    )
    assert both == pytest.approx((12 * one + 9 * other) / 21, rel=1e-5)


def test_the_loss_of_the_next_token() -> None:
    model, _, given = story(tokens=80)
    curve = pruning_curve(model, [given["input_ids"]], (1, 4, 80))
    logits = model(given["input_ids"][:, :-1])[0]
    loss = nn.functional.cross_entropy(logits, given["input_ids"][0, 1:])
    assert curve.whole == pytest.approx(float(loss.detach()), rel=1e-5)
    assert curve.top[2] == pytest.approx(curve.whole, rel=1e-4)
    for size in range(2):
        assert curve.top[size] < curve.nearest[size] < curve.random[size]
    assert curve.top[0] > 1.5 * curve.whole
    assert "mass outside" in str(curve)
    assert str(curve).count("\n") == 4
    draws = [
        pruning_curve(model, [given["input_ids"]], (2,), seed=seed).random[0] for seed in (0, 0, 1)
    ]
    assert draws[0] == draws[1] != draws[2]


def test_refusals() -> None:
    model, _, given = story(tokens=20)
    ids = given["input_ids"]
    for batches, k, words in (
        ([], (1,), "there are no batches"),
        ([ids], (0, 1), "give numbers of tokens"),
        ([ids], (1.5,), "give numbers of tokens"),
        ([given], (1,), "the loss of a batch is not known"),
        ([torch.randn(2, 3)], (1,), "the loss of a batch is not known"),
    ):
        with pytest.raises(InputError, match=words):
            pruning_curve(model, batches, k)
    with pytest.raises(InputError, match="no attention of Linear was seen"):
        pruning_curve(nn.Linear(3, 3), [ids.float()], (1,), lambda *_: 0.0)
