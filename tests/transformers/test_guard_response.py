"""A clip that does nothing is noticed at the next measured step, and taken back bit for bit."""

from __future__ import annotations

import copy
import json
import math
import warnings

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attsvm import InputError
from attsvm.transformers import LogitGuard
from attsvm.transformers.guard import UnreadWeightsWarning
from attsvm.transformers.guard_response import is_following

from .conftest import SMALL, batch, family, transformers


class Decoder(nn.Module):
    """Attention by hand in a class that does not say so: fused, with or without a norm in between
    that is no module.
    """

    def __init__(self, normalised: str = "", name: str = "qkv", heads: int = 4) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.normalised, self.heads, self.name = normalised, heads, name
        self.add_module(name, nn.Linear(16, 48))
        self.out = nn.Linear(16, 16)
        with torch.no_grad():
            self.get_submodule(name).weight.mul_(4.0)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.get_submodule(self.name)(x).chunk(3, dim=-1)
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in (q, k, v))
        if "q" in self.normalised:
            q = F.rms_norm(q, (q.shape[-1],))
        if "k" in self.normalised:
            k = F.rms_norm(k, (k.shape[-1],))
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class TwoLayers(nn.Module):
    def __init__(self, *normalised: str) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Decoder(kind) for kind in normalised)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + layer(x)
        return x


def step(net: nn.Module, optimizer: torch.optim.Optimizer, seed: int) -> None:
    """One training step on data of its own."""
    x = torch.randn(3, 7, 16, generator=torch.Generator().manual_seed(seed))
    net(x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


@pytest.mark.parametrize("every", [1, 20])
@pytest.mark.parametrize("normalised", ["q", "k", "qk"])
def test_a_functional_norm_is_refused_after_the_first_clip(normalised: str, every: int) -> None:
    """The weights are those of a run without a guard, and training goes on as that run does."""
    net = Decoder(normalised)
    alone = copy.deepcopy(net)
    optimizer, other = (torch.optim.AdamW(model.parameters(), lr=0.01) for model in (net, alone))
    guard = LogitGuard(net, tau=0.5, action="clip", every=every, optimizer=optimizer)
    step(net, optimizer, 0)
    step(alone, other, 0)
    assert not torch.equal(net.qkv.weight, alone.qkv.weight)
    with pytest.raises(InputError, match=r"head 0 of layer 0 .*, head 3 .* did not follow the"):
        step(net, optimizer, 1)
    for p, q in zip(net.parameters(), alone.parameters(), strict=True):
        assert torch.equal(p, q)
    # heads that were refused are not clipped again
    optimizer.zero_grad()
    for seed in range(2, 5):
        step(net, optimizer, seed)
        step(alone, other, seed)
    for p, q in zip(net.parameters(), alone.parameters(), strict=True):
        assert torch.equal(p, q)
    assert guard.steps == 4
    # nor after a checkpoint
    saved = json.loads(json.dumps(guard.state_dict()))
    guard.remove()
    LogitGuard(net, 0.5, "clip", every=1, optimizer=optimizer).load_state_dict(saved)
    for model, mover in ((net, optimizer), (alone, other)):
        step(model, mover, 5)
    assert torch.equal(net.qkv.weight, alone.qkv.weight)


def test_hunyuan_is_refused_after_the_first_clip() -> None:
    if not hasattr(transformers, "HunYuanDenseV1Model"):
        pytest.skip("this transformers has no HunYuan")
    torch.manual_seed(0)
    config = transformers.HunYuanDenseV1Config(**SMALL, num_key_value_heads=4, head_dim=8)
    model = transformers.HunYuanDenseV1Model(config).train()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    LogitGuard(model, tau=0.5, action="clip", every=1, optimizer=optimizer)
    inputs = batch("bert")["input_ids"]
    model(inputs).last_hidden_state.square().mean().backward()
    optimizer.step()
    model((inputs + 1) % 90 + 3).last_hidden_state.square().mean().backward()
    with pytest.raises(InputError, match=r"head \d of layer \d \(layers.\d.self_attn\)"):
        optimizer.step()
    for name, p in model.named_parameters():
        assert torch.equal(p, before[name])


def test_heads_that_follow_stay_clipped_beside_those_that_are_refused() -> None:
    net = TwoLayers("", "qk")
    optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
    before = [layer.qkv.weight.detach().clone() for layer in net.layers]
    LogitGuard(net, tau=0.5, action="clip", every=1, optimizer=optimizer)
    step(net, optimizer, 0)
    clipped = net.layers[0].qkv.weight.detach().clone()
    with pytest.raises(InputError) as refusal:
        step(net, optimizer, 1)
    assert "of layer 1 (layers.1)" in str(refusal.value)
    assert "of layer 0" not in str(refusal.value)
    assert torch.equal(net.layers[1].qkv.weight, before[1])
    assert torch.equal(net.layers[0].qkv.weight, clipped)
    assert not torch.equal(clipped, before[0])


@pytest.mark.parametrize("lr", [0.001, 0.3])
def test_heads_whose_logits_follow_are_never_refused(lr: float) -> None:
    """On other data at every step, at rates that grow logits faster than clips shrink them."""
    net = TwoLayers("", "")
    optimizer = torch.optim.AdamW(net.parameters(), lr=lr)
    guard = LogitGuard(net, tau=2.0, action="clip", every=1, optimizer=optimizer)
    for seed in range(12):
        step(net, optimizer, seed)
    assert guard.steps == 12
    assert guard.state_dict()["shrunk"]


@pytest.mark.parametrize("name", ["gpt2", "bert", "llama", "phi3", "gpt_neox", "deepseek"])
def test_families_in_mixed_precision_are_not_refused(name: str) -> None:
    model = family(name, layers=1).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    guard = LogitGuard(model, tau=1e-3, action="clip", every=1, optimizer=optimizer)
    ids = batch("bert")["input_ids"]
    for shift in range(2):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model((ids + shift) % 90 + 3).last_hidden_state.float().square().mean()
        loss.backward()
        optimizer.step()
    assert guard.steps == 2
    assert guard.state_dict()["shrunk"]


def test_sizes_that_hardly_change_tell_nothing() -> None:
    """Queries a tenth smaller, with their projection, without it, or by a thousandth."""
    sides = (1.0, 2.0, math.nan, math.nan)
    assert is_following(sides, (0.81, 1.62, math.nan, math.nan)) is True
    assert is_following(sides, (1.0, 1.62, math.nan, math.nan)) is False
    assert is_following(sides, (1.0, 1.998, math.nan, math.nan)) is None
    assert is_following((1.0, 2.0, 1.0, 1.0), (0.81, 1.62, 1.0, 0.81)) is False


def test_a_fused_matrix_is_read_and_clipped_whatever_its_class() -> None:
    net = Decoder()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
    guard = LogitGuard(net, tau=0.5, action="clip", every=1, optimizer=optimizer)
    values = net.qkv.weight[32:].detach().clone()
    for _ in range(2):
        step(net, optimizer, 0)
    heads = guard.metrics()
    assert [head.largest for head in heads] == pytest.approx([0.5] * 4, rel=1e-5)
    assert all(head.norm > 0 for head in heads)
    assert torch.equal(net.qkv.weight[32:], values)


def test_unread_heads_have_a_state_of_their_own_and_are_named_once() -> None:
    net = Decoder(name="mixed")
    optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
    guard = LogitGuard(net, tau=1e6, every=1, optimizer=optimizer)
    with pytest.warns(UnreadWeightsWarning, match="weights of Decoder were not recogn") as messages:
        step(net, optimizer, 0)
    assert len(messages) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        step(net, optimizer, 1)
    assert {head.state for head in guard.metrics()} == {"unread"}


def test_early_training_of_a_healthy_model_is_not_unstable() -> None:
    """From small weights at a usual rate: directions turn while logits grow, by less than a nat in
    a step.
    """
    net = Decoder()
    with torch.no_grad():
        net.qkv.weight.mul_(0.05)
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)
    guard = LogitGuard(net, tau=100.0, every=1, optimizer=optimizer)
    states = set()
    for seed in range(20):
        x = torch.randn(16, 7, 16, generator=torch.Generator().manual_seed(seed))
        (net(x) - x.roll(1, dims=1)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        states |= {head.state for head in guard.metrics()}
    assert "turning" in states
    assert "unstable" not in states
