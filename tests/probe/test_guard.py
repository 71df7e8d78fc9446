"""The guard: largest logits by hand, warnings in time, clipping that bounds logits exactly."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

from attsvm import InputError
from attsvm.probe import LogitGuard, LogitWarning, capture

from .conftest import batch, family


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, name: str) -> None:
    optimizer.zero_grad()
    model(**batch(name)).last_hidden_state.square().mean().backward()
    optimizer.step()


def largest(model: nn.Module, name: str) -> torch.Tensor:
    """``(layers, heads)`` from a capture."""
    with torch.no_grad(), capture(model.eval()) as recording:
        given = {k: v for k, v in batch(name).items() if k != "attention_mask"}
        model(**given)
    model.train()
    return torch.stack(
        [
            torch.stack([t.logits().amax(dim=(1, 2)) for t in layer.texts]).amax(dim=0)
            for layer in recording.layers
        ]
    )


@pytest.mark.parametrize("name", ["gpt2", "llama", "bert"])
def test_the_largest_logit_of_every_head(name: str) -> None:
    model = family(name).train()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    model.config.attention_probs_dropout_prob = 0.0
    guard = LogitGuard(model, every=1)
    given = {k: v for k, v in batch(name).items() if k != "attention_mask"}
    model(**given)
    found = torch.tensor([each.largest for each in guard.metrics()]).reshape(2, 4)
    torch.testing.assert_close(found, largest(model, name), rtol=1e-4, atol=1e-5)
    guard.remove()
    assert not model._forward_pre_hooks


@pytest.mark.parametrize("name", ["gpt2", "llama", "bert"])
def test_clipping_brings_heads_beyond_tau_to_tau_and_leaves_the_others(name: str) -> None:
    model = family(name).train()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if any(part in key for part in ("query.weight", "key.weight", "q_proj", "k_proj")):
                parameter.mul_(40.0)
            if "c_attn.weight" in key:
                parameter[:, :64].mul_(40.0)
    before = largest(model, name)
    tau = float(before.flatten().sort().values[4])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    guard = LogitGuard(model, tau=tau, action="clip", every=1, optimizer=optimizer)
    given = {k: v for k, v in batch(name).items() if k != "attention_mask"}
    model(**given).last_hidden_state.sum().backward()
    optimizer.step()
    guard.remove()
    first = largest(model, name)[0]  # later layers see other inputs
    torch.testing.assert_close(first, before[0].clamp(max=tau), rtol=1e-3, atol=1e-4)


def test_a_warning_names_the_head_once() -> None:
    model = family("gpt2").train()
    guard = LogitGuard(model, tau=1e-9, every=1)
    with pytest.warns(LogitWarning, match=r"head \d of layer \d .* beyond tau"):
        model(**batch("gpt2"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model(**batch("gpt2"))
    assert len(guard.metrics()) == 8


def test_only_every_nth_training_pass_is_measured() -> None:
    model = family("bert").train()
    seen: list[int] = []
    guard = LogitGuard(model, every=3)
    original = guard._see
    guard._watch._see = lambda call: (seen.append(call.number), original(call))
    for _ in range(7):
        model(**batch("bert"))
    model.eval()
    model(**batch("bert"))
    assert len(seen) == 3 * 2


def test_growth_is_told_from_turning() -> None:
    """Weights scaled up step by step saturate; weights replaced at random are unstable."""
    for kind, wanted in (("scaled", "saturating"), ("random", "unstable")):
        model = family("gpt2").train()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        guard = LogitGuard(model, tau=1e6, every=1, optimizer=optimizer)
        generator = torch.Generator().manual_seed(0)
        for step in range(1, 8):
            with torch.no_grad():
                for block in model.h:
                    weight = block.attn.c_attn.weight
                    if kind == "scaled":
                        weight[:, :64].mul_(((step + 1) / step) ** 0.5 if step > 1 else 8.0)
                    else:
                        weight[:, :64].copy_(torch.randn(32, 64, generator=generator) * step**0.5)
            train_step(model, optimizer, "gpt2")
        states = [each.state for each in guard.metrics() if each.layer == 0]
        assert states.count(wanted) >= 3


def test_a_checkpoint_goes_on() -> None:
    model = family("gpt2").train()
    guard = LogitGuard(model, every=1)
    for _ in range(3):
        model(**batch("gpt2"))
    other = LogitGuard(family("gpt2").train(), every=1)
    other.load_state_dict(guard.state_dict())
    assert [each.largest for each in other.metrics()] == [each.largest for each in guard.metrics()]


def test_refusals() -> None:
    model = family("bert")
    with pytest.raises(InputError, match="pass optimizer="):
        LogitGuard(model, action="clip")
    with pytest.raises(InputError, match="tau is -1"):
        LogitGuard(model, tau=-1)
    with pytest.raises(InputError, match="use 'warn', 'clip' or a function"):
        LogitGuard(model, action="stop")

    class Normalised(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q_norm = nn.LayerNorm(4)

    normalised = Normalised()
    optimizer = torch.optim.SGD(normalised.parameters(), lr=0.1)
    with pytest.raises(InputError, match="q_norm normalises queries or keys"):
        LogitGuard(normalised, action="clip", optimizer=optimizer)
