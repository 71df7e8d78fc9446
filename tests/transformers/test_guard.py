"""The guard: largest logits by hand, warnings in time, clipping that bounds logits exactly."""

from __future__ import annotations

import copy
import json
import math
import pickle
import re
import warnings
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import attsvm
from attsvm import InputError
from attsvm.transformers import LogitGuard, LogitWarning

from .conftest import batch, family, recorded


def given(name: str) -> dict[str, Tensor]:
    """No padding, so that every logit counts."""
    return {k: v for k, v in batch(name).items() if k != "attention_mask"}


class Layer(nn.Module):
    """One attention layer written by hand: fused or separate maps, a bias on logits, tied maps."""

    def __init__(self, kind: str = "plain", width: int = 16, heads: int = 4) -> None:
        super().__init__()
        self.kind, self.num_heads, self.hidden_size = kind, heads, width
        if kind == "interleaved":
            self.query_key_value = nn.Linear(width, 3 * width)
        else:
            self.q_proj, self.k_proj = nn.Linear(width, width), nn.Linear(width, width)
        if kind == "tied":
            self.k_proj = self.q_proj

    def forward(self, x: Tensor) -> Tensor:
        split = (self.num_heads, -1)
        if self.kind == "interleaved":
            q, k, _ = self.query_key_value(x).unflatten(-1, split).transpose(1, 2).chunk(3, dim=-1)
        else:
            q, k = (m(x).unflatten(-1, split).transpose(1, 2) for m in (self.q_proj, self.k_proj))
        self.q, self.k = q.detach(), k.detach()
        # near queries and keys are favoured by one nat, as relative positions do
        bias = torch.eye(x.shape[1])[None, None] if self.kind == "biased" else None
        return F.scaled_dot_product_attention(q, k, x[:, None], attn_mask=bias).sum(dim=1)

    def peaks(self) -> Tensor:
        """The largest logit of every head in the latest pass, without a bias."""
        q, k = self.q.double(), self.k.double()
        return (q.shape[-1] ** -0.5 * (q @ k.mT)).amax(dim=(0, 2, 3))


class Torch(nn.MultiheadAttention):
    """torch's own layer, its queries and keys from inputs of one width, or of two."""

    def forward(self, x: Tensor) -> Tensor:
        keys = x[..., : self.kdim].contiguous()
        return super().forward(x, keys, keys, need_weights=False)[0]


class Net(nn.Module):
    def __init__(self, kind: str = "plain", size: float = 1.0) -> None:
        super().__init__()
        torch.manual_seed(3)
        if kind.startswith("torch"):
            self.attention = Torch(16, 4, batch_first=True, kdim=int(kind[5:]), vdim=int(kind[5:]))
        else:
            self.attention = Layer(kind)
        self.last = nn.Linear(16, 16)
        with torch.no_grad():
            for parameter in self.attention.parameters():
                parameter.mul_(size)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.attention(x))


X = torch.randn(3, 7, 16, generator=torch.Generator().manual_seed(0))


def step(net: nn.Module, optimizer: torch.optim.Optimizer, *inputs: Tensor) -> None:
    for x in inputs:
        net(x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def sgd(model: nn.Module, lr: float = 0.0) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=lr)


def peaks(guard: LogitGuard) -> Tensor:
    return torch.tensor([each.largest for each in guard.metrics()])


def measured_steps(guard: LogitGuard) -> list[int]:
    """The steps of the records of the first head of the first layer."""
    heads = {(layer, head): records for layer, head, _, records in guard.state_dict()["heads"]}
    return [int(record[0]) for record in heads[0, 0]]


@pytest.mark.parametrize("name", ["gpt2", "llama", "bert", "albert", "vit", "t5"])
def test_the_largest_logit_of_every_head(name: str) -> None:
    """Eager attention is measured through the fused one."""
    model = family(name).train()
    model.set_attn_implementation("eager")
    guard = LogitGuard(model, every=1)
    model(**given(name))
    assert model.config._attn_implementation == "eager"
    guard.remove()
    assert not model._forward_pre_hooks
    layers = recorded(model.eval(), given(name)).layers
    heads = [[text.logits().amax(dim=(1, 2)) for text in layer.texts] for layer in layers.values()]
    wanted = torch.cat([torch.stack(texts).amax(dim=0) for texts in heads])
    torch.testing.assert_close(peaks(guard), wanted, rtol=1e-4, atol=1e-5)


FAMILIES = ["gpt2", "bert", "albert", "llama", "gpt_neox", "phi3", "falcon", "deepseek"]


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("name", FAMILIES)
def test_clipping_brings_heads_to_tau_and_leaves_the_bits_of_others(
    name: str, padded: bool
) -> None:
    model = family(name, layers=1).train()  # whose inputs no clip changes
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if key.rpartition(".")[2] == "weight" and parameter.ndim == 2 and "embed" not in key:
                parameter.mul_(8.0)
    inputs = batch("bert") if padded else given("bert")
    untouched = {key: p.detach().clone() for key, p in model.named_parameters()}
    check_clip(model, lambda: model(**inputs).last_hidden_state.sum().backward())
    changed = {
        key: int((p != untouched[key]).sum()) / p.numel()
        for key, p in model.named_parameters()
        if not torch.equal(p, untouched[key])
    }
    assert changed
    assert max(changed.values()) <= 0.5


def check_clip(model: nn.Module, backward: Callable[[], None]) -> None:
    """Two heads are beyond tau, and at tau after a step; others keep their bits."""
    guard = LogitGuard(model, every=1)
    backward()
    before = peaks(guard)
    guard.remove()
    tau = float(before.sort().values[1:3].mean())
    optimizer = sgd(model)
    guard = LogitGuard(model, tau=tau, action="clip", every=1, optimizer=optimizer)
    for _ in range(2):
        backward()
        optimizer.step()
    found = peaks(guard)
    torch.testing.assert_close(found, before.clamp(max=tau), rtol=1e-5, atol=0)
    assert torch.equal(found[before < tau], before[before < tau])


@pytest.mark.parametrize("kind", ["plain", "interleaved", "tied", "biased", "torch16", "torch12"])
def test_other_layers_are_clipped_to_tau(kind: str) -> None:
    net = Net(kind, 6.0)
    check_clip(net, lambda: net(X).sum().backward())


@pytest.mark.parametrize("shorten", [True, False])
def test_later_steps_of_clipped_weights_shrink_with_them(shorten: bool) -> None:
    """The third step from the same weights: with the guard of two clips, and with no guard."""
    net = Net(size=6.0)
    net(X)
    before = net.attention.peaks()
    taus = [float(before.sort().values[2:].mean()), float(before.sort().values[1:3].mean())]
    optimizer = sgd(net, 1e-3)
    guard = LogitGuard(net, taus[0], "clip", every=1, optimizer=optimizer, shorten=shorten)
    rows: Tensor = torch.ones(16)
    for tau in taus:
        guard.tau = tau
        net(X)
        gamma = (tau / net.attention.peaks()).clamp(max=1.0).sqrt().float()
        rows = rows * gamma.repeat_interleave(4)
        step(net, optimizer, X)
    assert len(rows.unique()) == 3  # heads clipped never, once and twice
    alone = copy.deepcopy(net)
    start = copy.deepcopy(net.attention)
    kept = json.loads(json.dumps(guard.state_dict()))
    guard.remove()
    LogitGuard(net, 1e9, "clip", optimizer=optimizer, shorten=shorten).load_state_dict(kept)
    step(alone, sgd(alone, 1e-3), X)
    step(net, optimizer, X)
    for name in ("q_proj.weight", "q_proj.bias", "k_proj.weight"):
        old, new, plain = (
            each.get_parameter(name) for each in (start, net.attention, alone.attention)
        )
        factors = (rows if shorten else torch.ones(16)).reshape(-1, *[1] * (old.ndim - 1))
        torch.testing.assert_close(new - old, factors * (plain - old), rtol=1e-3, atol=1e-7)
        assert torch.equal(new[rows == 1], plain[rows == 1])


def test_shared_weights_are_clipped_once_by_the_largest_of_their_layers() -> None:
    model = family("albert").train()
    guard = LogitGuard(model, every=1)
    model(**given("albert"))
    layers = peaks(guard).reshape(2, 4)
    assert (layers.argmax(dim=0) == 1).any()
    guard.remove()
    name = next(key for key, _ in model.named_parameters() if key.endswith("query.weight"))
    before = model.get_parameter(name).detach().clone()
    tau = 0.5 * float(layers.min())
    optimizer = sgd(model)
    LogitGuard(model, tau=tau, action="clip", every=1, optimizer=optimizer)
    model(**given("albert")).last_hidden_state.sum().backward()
    optimizer.step()
    factors = (tau / layers.amax(dim=0)).sqrt().repeat_interleave(8)[:, None]
    torch.testing.assert_close(model.get_parameter(name), before * factors, rtol=1e-5, atol=0)


class Twice(nn.Module):
    """One module that attends twice, with so many heads."""

    def __init__(self, heads: tuple[int, int]) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.heads = heads
        self.maps = nn.ModuleList(nn.Linear(16, 32) for _ in heads)

    def forward(self, x: Tensor) -> Tensor:
        self.largest: list[Tensor] = []
        for heads, layer in zip(self.heads, self.maps, strict=True):
            q, k = layer(x).unflatten(-1, (2, heads, -1)).permute(2, 0, 3, 1, 4)
            self.largest.append((q.shape[-1] ** -0.5 * (q @ k.mT)).amax(dim=(0, 2, 3)).detach())
            x = x + F.scaled_dot_product_attention(q, k, q).transpose(1, 2).flatten(2)
        return x


@pytest.mark.filterwarnings("ignore::attsvm.transformers.guard.UnreadWeightsWarning")
@pytest.mark.parametrize("heads", [(2, 2), (4, 2), (2, 4)])
def test_a_module_may_attend_several_times_with_other_heads(heads: tuple[int, int]) -> None:
    net = Twice(heads)
    guard = LogitGuard(net, every=1)
    net(X)
    torch.testing.assert_close(peaks(guard), torch.cat(net.largest))


def test_layers_that_share_weights_turn_alike() -> None:
    net = Net()
    net.last = net.attention
    optimizer = sgd(net, lr=0.1)
    guard = LogitGuard(net, every=1, optimizer=optimizer)
    for _ in range(3):
        step(net, optimizer, X)
    first, second = (
        [[each.turned, each.norm] for each in guard.metrics() if each.layer == layer]
        for layer in (0, 1)
    )
    assert first == second
    assert min(turned for turned, _ in first) > 1e-6


def test_a_warning_names_the_head_once_and_says_what_to_do() -> None:
    model = family("gpt2").train()
    guard = attsvm.transformers.LogitGuard(model, tau=1e-9, every=1)
    assert repr(guard).endswith("nothing measured in 0 steps")
    with pytest.warns(
        LogitWarning, match=r"head \d of layer \d .* beyond tau .*lower the rate"
    ) as told:
        model(**batch("gpt2"))
    assert {each.filename for each in told} == {__file__}, "the line that the user wrote"
    assert re.search(r"8 heads at step 0, largest logit .* \(layer \d, head \d, ", repr(guard))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model(**batch("gpt2"))


def grow(kind: str, tau: float) -> LogitGuard:
    """Weights scaled up step by step, or replaced at random by ever larger ones."""
    net = Net()
    optimizer = sgd(net)
    guard = LogitGuard(net, tau=tau, every=1, optimizer=optimizer, horizon=200)
    generator = torch.Generator().manual_seed(0)
    maps = [net.attention.q_proj.weight, net.attention.k_proj.weight]
    with torch.no_grad():
        maps[0].mul_(30.0)  # steps of several nats
    for t in range(1, 10):
        with torch.no_grad():
            for weight in maps:
                if kind == "scaled":
                    weight.mul_((t / max(t - 1, 1)) ** 0.5)
                else:
                    weight.copy_(0.3 * t**0.5 * torch.randn(16, 16, generator=generator))
        step(net, optimizer, X)
    return guard


@pytest.mark.parametrize(
    ("kind", "state", "times", "said"),
    [
        ("scaled", "saturating", 0.9, "saturation: .* settled; its norm adds .* nats a step"),
        ("random", "unstable", 0.9, "instability: .*lower"),
        ("random", "unstable", 2, "reaches tau = .* in about"),
    ],
)
def test_growth_is_told_from_turning(kind: str, state: str, times: float, said: str) -> None:
    """By state and sentence, with tau so many times the largest logit."""
    heads = grow(kind, 1e6).metrics()
    assert [each.state for each in heads].count(state) >= 3
    with pytest.warns(LogitWarning, match=said):
        grow(kind, times * max(each.largest for each in heads))


def test_a_head_is_told_of_once_while_it_grows() -> None:
    """Logits of a hundred and more, beyond tau from the third step on, five nats a step."""
    net = Net()
    optimizer = sgd(net)
    told: list[int] = []
    guard = LogitGuard(
        net, 1e9, lambda heads: told.extend(each.head for each in heads), 1, optimizer
    )
    with torch.no_grad():
        net.attention.q_proj.weight.mul_(100.0)
    for _ in range(12):
        with torch.no_grad():
            net.attention.q_proj.weight.mul_(1.05)
        step(net, optimizer, X)
        guard.tau = 0.5 * float(peaks(guard).min())
    assert sorted(told) == [0, 1, 2, 3]


def test_logits_that_are_not_numbers_are_reported_and_not_clipped() -> None:
    net, found = Net(), []
    with torch.no_grad():
        net.attention.q_proj.bias[0] = math.nan
    before = net.attention.k_proj.weight.detach().clone()
    guard = LogitGuard(net, every=1, action=found.extend)
    net(X)
    guard.remove()
    assert [each.head for each in found] == [0]
    assert math.isnan(found[0].largest)
    optimizer = sgd(net)
    LogitGuard(net, tau=1e-3, every=1, action="clip", optimizer=optimizer)
    net(X)
    with pytest.warns(LogitWarning, match="head 0 .* weights or inputs hold NaN or infinity"):
        optimizer.step()
    assert torch.equal(net.attention.k_proj.weight[:4], before[:4])
    assert net.attention.k_proj.weight[4:].isfinite().all()


def test_only_every_nth_training_step_is_measured_and_evaluation_never() -> None:
    net = Net()
    optimizer = sgd(net)
    guard = LogitGuard(net, every=3, optimizer=optimizer)
    for _ in range(7):
        step(net, optimizer, X)
        net.eval()
        net(100 * X)
        net.train()
        with torch.no_grad():
            net(100 * X)
    assert measured_steps(guard) == [0, 1, 4]  # the second tells how fast logits grow
    by_pass = LogitGuard(net, every=3)
    for _ in range(7):
        net(X)
    assert measured_steps(by_pass) == [0, 1, 4]
    assert torch.equal(peaks(guard), peaks(by_pass))


def test_all_passes_of_an_accumulated_step_count_as_one() -> None:
    parts = [X, 3 * X, 2 * X]
    net = Net()
    optimizer = sgd(net)
    guard = LogitGuard(net, every=2, optimizer=optimizer)
    for _ in range(2):
        step(net, optimizer, *parts)
    assert measured_steps(guard) == [0, 1]
    alone = []
    for x in parts:
        model = Net()
        one = LogitGuard(model, every=1)
        model(x)
        alone.append([(each.largest, each.margin, each.entropy) for each in one.metrics()])
    found = [(each.largest, each.margin, each.entropy) for each in guard.metrics()]
    np.testing.assert_allclose(np.array(found)[:, 0], np.max(alone, axis=0)[:, 0], rtol=1e-5)
    np.testing.assert_allclose(np.array(found)[:, 1:], np.mean(alone, axis=0)[:, 1:], rtol=1e-5)


def test_compiled_models() -> None:
    """The guard around the compiled model; inside it nothing can be measured, and it says so."""
    found = []
    for compiled in (True, False):
        net = Net()
        model = torch.compile(net, backend="aot_eager") if compiled else net
        optimizer = sgd(net, 0.1)
        guard = LogitGuard(model, tau=1e-3, every=2, action="clip", optimizer=optimizer)
        for _ in range(4):
            step(model, optimizer, X)
        assert measured_steps(guard) == [0, 1, 3]
        found.append(peaks(guard))
    torch.testing.assert_close(found[0], found[1], rtol=1e-5, atol=0)
    LogitGuard(net, every=1)
    with pytest.raises(InputError, match="runs inside torch"):
        torch.compile(net, backend="eager")(X)
    assert torch.backends.mha.get_fastpath_enabled()


def test_a_checkpoint_goes_on() -> None:
    """Three steps, a checkpoint through JSON, three more: records as of six."""

    def trained(net: Net, steps: int, kept: str = "") -> LogitGuard:
        optimizer = sgd(net, 0.1)
        guard = LogitGuard(net, every=1, optimizer=optimizer)
        if kept:
            guard.load_state_dict(json.loads(kept))
        for _ in range(steps):
            step(net, optimizer, X)
        guard.remove()
        return guard

    net = Net()
    second = trained(net, 3, json.dumps(trained(net, 3).state_dict()))
    assert (second.steps, second.measured) == (6, 5)
    for one, other in zip(trained(Net(), 6).metrics(), second.metrics(), strict=True):
        for name in ("largest", "exponent", "steps_to_tau", "turned"):
            assert getattr(one, name) == getattr(other, name)
    older = second.state_dict()
    del older["measured"], older["next"]
    assert trained(net, 1, json.dumps(older)).measured == 6


def test_mixed_precision_is_measured_in_float32() -> None:
    net = Net()
    guard = LogitGuard(net, every=1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        net(X)
    assert net.attention.q.dtype == torch.bfloat16
    torch.testing.assert_close(peaks(guard), net.attention.peaks().float(), rtol=1e-6, atol=0)


def test_steps_to_a_tau_that_is_never_reached_are_not_logged() -> None:
    net = Net()
    still, near = LogitGuard(net, tau=1e30, every=1), LogitGuard(net, tau=1e-9, every=1)
    with pytest.warns(LogitWarning):
        net(X)
    assert "guard/steps_to_tau" not in still.summary()
    assert near.summary()["guard/steps_to_tau"] == 0


def test_a_copy_of_the_model_trains_without_the_guard_of_the_first() -> None:
    net = Net()
    guard = LogitGuard(net, every=1)
    copy.deepcopy(net)(X)
    assert guard.metrics() == []
    assert guard.summary() == {}
    net(X)
    assert len(guard.metrics()) == 4
    for twin in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        hooks = [*twin._forward_pre_hooks.values(), *twin._forward_hooks.values()]
        assert len(pickle.dumps(hooks)) < 300, "hooks of a copy hold nothing"
        twin(X)
    assert guard.steps == 1


def test_two_guards_do_not_clip_the_same_weights() -> None:
    net = Net()
    optimizer = sgd(net)
    guard = LogitGuard(net, action="clip", optimizer=optimizer)
    LogitGuard(net, optimizer=optimizer).remove()
    with pytest.raises(InputError, match="another guard clips already"):
        LogitGuard(net, action="clip", optimizer=optimizer)
    guard.remove()
    LogitGuard(net, action="clip", optimizer=optimizer)


def test_a_tau_of_numpy_is_a_number() -> None:
    assert LogitGuard(Net(), tau=np.float32(3)).tau == 3.0


@pytest.mark.parametrize("shape", [(0, 7, 16), (3, 0, 16)])
def test_a_pass_without_tokens_counts_as_a_step_and_has_nothing_to_measure(shape: tuple) -> None:
    net = Net()
    optimizer = sgd(net)
    guard = LogitGuard(net, every=1, optimizer=optimizer)
    net(torch.ones(shape)).sum().backward()
    optimizer.step()
    assert guard.steps == 1
    assert guard.metrics() == []
    step(net, optimizer, X)
    assert len(guard.metrics()) == 4
    assert all(math.isfinite(head.largest) for head in guard.metrics())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (None, "no state of a guard"),
        ({"steps": "many"}, "no state of a guard"),
        ({"heads": [[1, 2]]}, "no state of a guard"),
        ({"shrunk": {"nothing.weight": [1.0]}}, r"nothing\.weight, which .* is no parameter"),
        ({"shrunk": {"attention.q_proj.weight": [0.5]}}, r"1 factors .* has shape \(16, 16\)"),
    ],
)
def test_a_state_of_something_else_is_refused_and_changes_nothing(
    change: dict | None, words: str
) -> None:
    net = Net()
    guard = LogitGuard(net, every=1)
    net(X)
    before = guard.state_dict()
    with pytest.raises(InputError, match=words):
        guard.load_state_dict({} if change is None else {**before, "steps": 9, **change})
    assert guard.state_dict() == before


@pytest.mark.filterwarnings("ignore::attsvm.transformers.guard.UnreadWeightsWarning")
def test_weights_under_adapters_are_not_taken_for_the_adapters() -> None:
    """Of ``W + B A`` with ``W`` frozen, neither ``B`` nor ``A`` has the norm or the direction."""

    class Adapted(nn.Module):
        def __init__(self, base: nn.Linear) -> None:
            super().__init__()
            self.base_layer = base.requires_grad_(False)
            self.lora_A, self.lora_B = nn.Linear(16, 2), nn.Linear(2, 16)

        def forward(self, x: Tensor) -> Tensor:
            return self.base_layer(x) + self.lora_B(self.lora_A(x))

    net = Net()
    net.attention.q_proj = Adapted(net.attention.q_proj)
    net.attention.k_proj = Adapted(net.attention.k_proj)
    guard = LogitGuard(net, every=1)
    net(X)
    assert {head.state for head in guard.metrics()} == {"unread"}


def test_a_pass_that_fails_leaves_the_guard_as_it_was() -> None:
    net = Net()
    optimizer = sgd(net)
    guard = LogitGuard(net, every=1, optimizer=optimizer)
    with pytest.raises(RuntimeError):
        net(torch.randn(3, 7, 15))
    step(net, optimizer, X)
    assert measured_steps(guard) == [0]
    assert len(guard.metrics()) == 4, "the pass that failed has left no call behind"


class Normalised(Net):
    def __init__(self) -> None:
        super().__init__()
        self.q_norm = nn.LayerNorm(4)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"action": "clip"}, "pass optimizer="),
        *(({"tau": tau}, f"tau is {tau!r};") for tau in (-1, 0, math.inf, "100", True)),
        *(({"every": n}, f"every is {n}; give a number of steps") for n in (0, 2.5, True)),
        ({"horizon": 0}, "horizon is 0; give a number of steps"),
        ({"action": "stop"}, "use 'warn', 'clip' or a function"),
        ({"model": "bert"}, r"model is a str; give a torch\.nn\.Module"),
        ({"optimizer": sgd(Net())}, "holds no parameter of the model"),
        ({"by_hand": True}, "no passes to count steps by"),
        ({"model": Normalised(), "action": "clip"}, "q_norm normalises queries or keys"),
    ],
)
def test_refusals(settings: dict, words: str) -> None:
    settings = {"model": Net(), **settings}
    if isinstance(settings["model"], Normalised):
        settings["optimizer"] = sgd(settings["model"])
    with pytest.raises(InputError, match=words):
        LogitGuard(**settings)


def test_a_model_without_attention_is_refused_at_its_first_pass() -> None:
    plain = nn.Linear(3, 3)
    LogitGuard(plain)
    with pytest.raises(InputError, match="no attention of Linear was seen"):
        plain(torch.ones(1, 3))


@pytest.mark.filterwarnings("ignore::attsvm.transformers.guard.UnreadWeightsWarning")
def test_weights_that_cannot_be_clipped_are_named() -> None:
    """Frozen ones, vectors in place of matrices, names that say nothing."""
    frozen = Net()
    frozen.attention.requires_grad_(False)

    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q_proj, self.k_proj = nn.Parameter(torch.ones(16)), nn.Parameter(torch.ones(16))

        def forward(self, x: Tensor) -> Tensor:
            return F.scaled_dot_product_attention(
                (self.q_proj * x)[:, None], x[:, None], x[:, None]
            )

    for net in (frozen, nn.Sequential(Scaled())):
        optimizer = sgd(net)
        guard = LogitGuard(net, tau=1e-3, action="clip", every=1, optimizer=optimizer)
        net(X).sum().backward()
        with pytest.raises(InputError, match="were not found among the trained matrices"):
            optimizer.step()
        assert all(math.isnan(each.norm) for each in guard.metrics())


@pytest.mark.parametrize("action", ["warn", "clip"])
def test_an_error_of_the_model_is_its_own_and_ends_the_measurement(action: str) -> None:
    class Failing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.TransformerEncoderLayer(8, 2, 8, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            if x.isnan().any():
                raise ZeroDivisionError("of the model")
            return self.layer(x)

    model = Failing()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard = LogitGuard(model, action=action, every=1, optimizer=optimizer)
    # a hook that comes after those of the guard
    model.register_forward_hook(lambda *_: None, always_call=True)
    with pytest.raises(ZeroDivisionError, match="of the model"):
        model(torch.full((1, 3, 8), torch.nan))
    assert not model.layer._forward_hooks
    model(torch.ones(1, 3, 8)).sum().backward()
    optimizer.step()
    assert [head.step for head in guard.metrics()] == [0, 0]


def test_a_model_that_multiplies_by_hand_without_a_module_of_attention() -> None:
    """Texts and heads are one axis, so the number of heads is what the model itself says."""

    class ByHand(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.num_heads, self.weight = 2, nn.Parameter(torch.eye(8))

        def forward(self, x: Tensor) -> Tensor:
            x = x.unflatten(-1, (2, 8)).transpose(1, 2).flatten(0, 1)
            return (x @ self.weight @ x.mT).softmax(dim=-1) @ x

    net = ByHand()
    guard = LogitGuard(net, every=1)
    with pytest.warns(UserWarning, match="weights of ByHand were not recognised"):
        net(X)
    products = X.unflatten(-1, (2, 8)).transpose(1, 2)
    expected = (products @ products.mT).amax(dim=(0, 2, 3))
    torch.testing.assert_close(peaks(guard), expected)
