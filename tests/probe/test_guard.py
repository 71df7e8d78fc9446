"""The guard: largest logits by hand, warnings in time, clipping that bounds logits exactly."""

from __future__ import annotations

import copy
import json
import math
import re
import warnings

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import attsvm
from attsvm import InputError
from attsvm.probe import LogitGuard, LogitWarning, capture
from attsvm.probe.growth import HeadMetrics

from .conftest import SMALL, batch, family, transformers


def without_dropout(model: nn.Module) -> nn.Module:
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        for name in ("attention_dropout", "dropout"):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)
    for name in ("attention_probs_dropout_prob", "attn_pdrop"):
        if hasattr(getattr(model, "config", None), name):
            setattr(model.config, name, 0.0)
    return model.train()


def given(name: str) -> dict[str, Tensor]:
    """No padding, so that every logit counts."""
    return {k: v for k, v in batch(name).items() if k != "attention_mask"}


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, name: str) -> None:
    optimizer.zero_grad()
    model(**batch(name)).last_hidden_state.square().mean().backward()
    optimizer.step()


def largest(model: nn.Module, inputs: dict[str, Tensor]) -> Tensor:
    """``(layers, heads)`` from a capture."""
    with torch.no_grad(), capture(model.eval()) as recording:
        model(**inputs)
    model.train()
    return torch.stack(
        [
            torch.stack([t.logits().amax(dim=(1, 2)) for t in layer.texts]).amax(dim=0)
            for layer in recording.layers
        ]
    )


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
        found = F.scaled_dot_product_attention(q, k, x[:, None], attn_mask=self.bias(x))
        return found.sum(dim=1)

    def bias(self, x: Tensor) -> Tensor | None:
        """Near queries and keys are favoured by up to one nat, as relative positions do."""
        T = x.shape[1]
        return torch.eye(T).repeat(1, 1, 1, 1) if self.kind == "biased" else None

    def peaks(self, x: Tensor) -> Tensor:
        logits = self.q.shape[-1] ** -0.5 * (self.q @ self.k.mT)
        bias = self.bias(x)
        return (logits if bias is None else logits + bias).amax(dim=(0, 2, 3))


class Net(nn.Module):
    def __init__(self, kind: str = "plain") -> None:
        super().__init__()
        torch.manual_seed(3)
        self.attention = Layer(kind)
        self.last = nn.Linear(16, 16)

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


@pytest.mark.parametrize("name", ["gpt2", "llama", "bert", "albert", "vit", "t5"])
def test_the_largest_logit_of_every_head(name: str) -> None:
    model = without_dropout(family(name))
    guard = LogitGuard(model, every=1)
    model(**given(name))
    found = torch.tensor([each.largest for each in guard.metrics()]).reshape(-1, 4)
    torch.testing.assert_close(found, largest(model, given(name)), rtol=1e-4, atol=1e-5)
    guard.remove()
    assert not model._forward_pre_hooks


def test_eager_attention_is_measured_through_the_fused_one() -> None:
    model = without_dropout(family("bert"))
    model.set_attn_implementation("eager")
    guard = LogitGuard(model, every=1)
    model(**given("bert"))
    assert len(guard.metrics()) == 8
    assert model.config._attn_implementation == "eager"


def one_layer(name: str) -> nn.Module:
    """A family in one layer, whose inputs no clip changes."""
    t, small = transformers, {**SMALL, "num_hidden_layers": 1}
    if name == "deepseek" and not hasattr(t, "DeepseekV3Model"):
        pytest.skip("transformers before 4.51 has no latent heads")
    torch.manual_seed(0)
    latent = {
        "q_lora_rank": 12,
        "kv_lora_rank": 8,
        "qk_rope_head_dim": 4,
        "qk_nope_head_dim": 6,
        "v_head_dim": 8,
        "first_k_dense_replace": 1,
        "n_routed_experts": 4,
        "moe_intermediate_size": 8,
    }
    kinds = {
        "gpt2": lambda: t.GPT2Model(
            t.GPT2Config(n_embd=32, n_layer=1, n_head=4, vocab_size=100, bos_token_id=1)
        ),
        "bert": lambda: t.BertModel(
            t.BertConfig(**{k: v for k, v in small.items() if not k.endswith("token_id")})
        ),
        "albert": lambda: t.AlbertModel(t.AlbertConfig(**small, embedding_size=16)),
        "llama": lambda: t.LlamaModel(t.LlamaConfig(**small, num_key_value_heads=2)),
        "gpt_neox": lambda: t.GPTNeoXModel(t.GPTNeoXConfig(**small)),
        "phi3": lambda: t.Phi3Model(t.Phi3Config(**small, num_key_value_heads=2)),
        "falcon": lambda: t.FalconModel(
            t.FalconConfig(**small, num_kv_heads=2, new_decoder_architecture=True)
        ),
        "deepseek": lambda: t.DeepseekV3Model(t.DeepseekV3Config(**small, **latent)),
        "vit": lambda: family("vit"),
    }
    return without_dropout(kinds[name]())


FAMILIES = ["gpt2", "bert", "albert", "llama", "gpt_neox", "phi3", "falcon", "deepseek"]


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("name", FAMILIES)
def test_clipping_brings_heads_to_tau_and_leaves_the_bits_of_others(
    name: str, padded: bool
) -> None:
    model = one_layer(name)
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if key.rpartition(".")[2] == "weight" and parameter.ndim == 2 and "embed" not in key:
                parameter.mul_(8.0)
    inputs = batch("bert") if padded else given("bert")
    guard = LogitGuard(model, every=1)
    model(**inputs)
    before = torch.tensor([each.largest for each in guard.metrics()])
    guard.remove()
    tau = float(before.sort().values[1:3].mean())  # two heads beyond it
    untouched = {key: p.detach().clone() for key, p in model.named_parameters()}
    optimizer = sgd(model)
    guard = LogitGuard(model, tau=tau, action="clip", every=1, optimizer=optimizer)
    model(**inputs).last_hidden_state.sum().backward()
    optimizer.step()
    model(**inputs)
    optimizer.step()
    found = torch.tensor([each.largest for each in guard.metrics()])
    assert (found <= tau * (1 + 1e-5)).all()
    torch.testing.assert_close(found, before.clamp(max=tau), rtol=1e-5, atol=0)
    assert torch.equal(found[before < tau], before[before < tau])
    changed = {
        key: int((p != untouched[key]).sum()) / p.numel()
        for key, p in model.named_parameters()
        if not torch.equal(p, untouched[key])
    }
    assert changed
    assert max(changed.values()) <= 0.5


@pytest.mark.parametrize("kind", ["plain", "interleaved", "tied", "biased"])
def test_layers_written_by_hand_are_clipped_to_tau(kind: str) -> None:
    net = Net(kind)
    with torch.no_grad():
        for parameter in net.attention.parameters():
            parameter.mul_(6.0)
    net(X)
    before = net.attention.peaks(X)
    tau = float(before.sort().values[1:3].mean())
    optimizer = sgd(net)
    LogitGuard(net, tau=tau, action="clip", every=1, optimizer=optimizer)
    step(net, optimizer, X)
    net(X)
    found = net.attention.peaks(X)
    torch.testing.assert_close(found[before > tau], torch.full((2,), tau), rtol=1e-5, atol=0)
    assert torch.equal(found[before < tau], before[before < tau])


@pytest.mark.parametrize("shorten", [True, False])
def test_later_steps_of_clipped_weights_shrink_with_them(shorten: bool) -> None:
    """The third step from the same weights: with the guard of two clips, and with no guard."""
    net = Net()
    with torch.no_grad():
        for parameter in net.attention.parameters():
            parameter.mul_(6.0)
    net(X)
    before = net.attention.peaks(X)
    taus = [float(before.sort().values[2:].mean()), float(before.sort().values[1:3].mean())]
    optimizer = sgd(net, 1e-3)
    guard = LogitGuard(net, taus[0], "clip", every=1, optimizer=optimizer, shorten=shorten)
    rows: Tensor = torch.ones(16)
    for tau in taus:
        guard.tau = tau
        net(X)
        gamma = (tau / net.attention.peaks(X)).clamp(max=1.0).sqrt()
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


def test_torchs_own_attention_is_clipped_to_tau() -> None:
    for settings in ({}, {"kdim": 12, "vdim": 12}):
        torch.manual_seed(0)
        net = nn.MultiheadAttention(16, 4, batch_first=True, **settings)
        with torch.no_grad():
            for parameter in net.parameters():
                parameter.copy_(torch.randn(parameter.shape))
        keys = X[..., :12].contiguous() if settings else X
        optimizer = sgd(net)
        found = []
        for tau in (1e9, None, None):
            guard = LogitGuard(
                net,
                tau=tau or float(found[0].median()),
                action="clip",
                every=1,
                optimizer=optimizer,
            )
            net(X, keys, keys, need_weights=False)[0].sum().backward()
            optimizer.step()
            found.append(torch.tensor([each.largest for each in guard.metrics()]))
            guard.remove()
        clipped = found[0].clamp(max=float(found[0].median()))
        torch.testing.assert_close(found[2], clipped, rtol=1e-5, atol=1e-5)


def test_shared_weights_are_clipped_once_by_the_largest_of_their_layers() -> None:
    model = without_dropout(family("albert"))
    guard = LogitGuard(model, every=1)
    model(**given("albert"))
    peaks = torch.tensor([each.largest for each in guard.metrics()]).reshape(2, 4)
    assert (peaks.argmax(dim=0) == 1).any()
    guard.remove()
    name = next(key for key, _ in model.named_parameters() if key.endswith("query.weight"))
    before = model.get_parameter(name).detach().clone()
    tau = 0.5 * float(peaks.min())
    optimizer = sgd(model)
    LogitGuard(model, tau=tau, action="clip", every=1, optimizer=optimizer)
    model(**given("albert")).last_hidden_state.sum().backward()
    optimizer.step()
    factors = (tau / peaks.amax(dim=0)).sqrt().repeat_interleave(8)[:, None]
    torch.testing.assert_close(model.get_parameter(name), before * factors, rtol=1e-5, atol=0)


def test_a_warning_names_the_head_once_and_says_what_to_do() -> None:
    model = family("gpt2").train()
    guard = LogitGuard(model, tau=1e-9, every=1)
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
    assert len(guard.metrics()) == 8


def test_the_guard_stands_where_optimisers_are() -> None:
    assert attsvm.optim.LogitGuard is attsvm.probe.LogitGuard is LogitGuard
    with pytest.raises(AttributeError, match=r"attsvm\.optim.* has no attribute 'nonsense'"):
        _ = attsvm.optim.nonsense


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


@pytest.mark.parametrize(("kind", "state"), [("scaled", "saturating"), ("random", "unstable")])
def test_growth_is_told_from_turning_by_state_and_sentence(kind: str, state: str) -> None:
    guard = grow(kind, 1e6)
    heads = guard.metrics()
    assert [each.state for each in heads].count(state) >= 3
    assert all(each.steps_to_tau > 0 for each in heads)
    worst = max(each.largest for each in heads)
    said = {
        "saturating": "saturation: .* settled; its norm adds .* nats a step.*lower",
        "unstable": "instability: .*lower",
    }
    with pytest.warns(LogitWarning, match=said[state]):
        grow(kind, 0.9 * worst)


def test_a_settled_head_is_not_announced_and_an_unstable_one_is() -> None:
    worst = max(each.largest for each in grow("scaled", 1e6).metrics())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        grow("scaled", 2 * worst)  # within the horizon of 200 steps, and harmless
    worst = max(each.largest for each in grow("random", 1e6).metrics())
    with pytest.warns(LogitWarning, match="reaches tau = .* in about"):
        grow("random", 2 * worst)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        grow("random", 10 * worst)  # three doublings and more would be a guess


@pytest.mark.parametrize(("growth", "warned"), [(1.05, True), (1.0005, False)])
def test_large_logits_are_warned_of_while_their_weights_grow_fast(
    growth: float, warned: bool
) -> None:
    """Logits of a hundred and more, beyond tau from the third step on: five nats a step and more,
    or a twentieth."""
    net = Net()
    optimizer = sgd(net)
    told: list[HeadMetrics] = []
    guard = LogitGuard(net, 1e9, told.extend, every=1, optimizer=optimizer)
    with torch.no_grad():
        net.attention.q_proj.weight.mul_(100.0)
    step(net, optimizer, X)
    for _ in range(12):
        with torch.no_grad():
            net.attention.q_proj.weight.mul_(growth)
        step(net, optimizer, X)
        guard.tau = 0.5 * min(each.largest for each in guard.metrics())
    assert min(each.largest for each in guard.metrics()) > 90
    assert bool(told) == warned


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
    optimizer.step()
    assert torch.equal(net.attention.k_proj.weight[:4], before[:4])
    assert net.attention.k_proj.weight[4:].isfinite().all()


def measured_steps(guard: LogitGuard) -> list[int]:
    return [int(record.step) for record in guard._heads[0, 0].records]


def test_a_guard_of_ones_own_says_how_long_it_waits() -> None:
    """benchmarks/guard.py measures at equal distances, so that other guards can be replayed."""

    class Seldom(LogitGuard):
        def _wait(self) -> int:
            return 5

    net = Net()
    optimizer = sgd(net)
    guard = Seldom(net, every=1, optimizer=optimizer)
    for _ in range(11):
        step(net, optimizer, X)
    assert measured_steps(guard) == [0, 5, 10]


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
    quiet = LogitGuard(Net(), every=1)
    quiet._model(X)
    assert guard.metrics()[0].largest == quiet.metrics()[0].largest
    by_pass = LogitGuard(net, every=3)
    for _ in range(7):
        net(X)
    assert measured_steps(by_pass) == [0, 1, 4]


def test_measurements_come_sooner_while_logits_grow_fast() -> None:
    """Logits of 40 and more that double in 4.5 steps until step 14, then rest."""
    net = Net()
    optimizer = sgd(net)
    guard = LogitGuard(net, every=10, action=lambda heads: None, optimizer=optimizer)
    weight = net.attention.q_proj.weight.detach()
    net.eval()(X)
    weight.mul_(40.0 / net.attention.peaks(X).max())
    net.train()
    for k in range(29):
        step(net, optimizer, X)
        if k < 14:
            weight.mul_(2.0 ** (1 / 4.5))
    assert measured_steps(guard) == [0, 2, 6, 10, 14, 18, 28]


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
        net(x)
        alone.append(net.attention.peaks(x))
    found = torch.tensor([each.largest for each in guard.metrics()])
    torch.testing.assert_close(found, torch.stack(alone).amax(dim=0))


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
        found.append([each.largest for each in guard.metrics()])
    assert found[0] == pytest.approx(found[1], rel=1e-5)
    guard = LogitGuard(net, every=1)
    with pytest.raises(InputError, match="runs inside torch"):
        torch.compile(net, backend="aot_eager")(X)
    assert torch.backends.mha.get_fastpath_enabled()


def test_a_checkpoint_goes_on() -> None:
    """Three steps, a checkpoint through JSON, three more: records as of six."""

    def trained(steps: int, kept: str | None) -> tuple[LogitGuard, Net]:
        optimizer = sgd(net, 0.1)
        guard = LogitGuard(net, every=1, optimizer=optimizer)
        if kept:
            guard.load_state_dict(json.loads(kept))
        for _ in range(steps):
            step(net, optimizer, X)
        guard.remove()
        return guard, net

    net = Net()
    whole, _ = trained(6, None)
    net = Net()
    first, _ = trained(3, None)
    state = first.state_dict()
    second, _ = trained(3, json.dumps(state))
    assert (second.steps, second.measured) == (6, 5)
    older = {name: each for name, each in state.items() if name not in ("measured", "next")}
    assert trained(1, json.dumps(older))[0].measured == 3
    for one, other in zip(whole.metrics(), second.metrics(), strict=True):
        assert (one.largest, one.exponent, one.steps_to_tau, one.turned) == (
            other.largest,
            other.exponent,
            other.steps_to_tau,
            other.turned,
        )


def test_mixed_precision_is_measured_in_float32() -> None:
    net = Net()
    guard = LogitGuard(net, every=1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        net(X)
    assert net.attention.q.dtype == torch.bfloat16
    exact = 0.5 * (net.attention.q.double() @ net.attention.k.double().mT).amax(dim=(0, 2, 3))
    found = torch.tensor([each.largest for each in guard.metrics()], dtype=torch.float64)
    torch.testing.assert_close(found, exact, rtol=1e-6, atol=0)


def test_a_copy_of_the_model_trains_without_the_guard_of_the_first() -> None:
    net = Net()
    guard = LogitGuard(net, every=1)
    other = copy.deepcopy(net)
    other(X)
    assert guard.metrics() == []
    net(X)
    assert len(guard.metrics()) == 4


def test_a_pass_that_fails_leaves_the_guard_as_it_was() -> None:
    net = Net()
    optimizer = sgd(net)
    guard = LogitGuard(net, every=1, optimizer=optimizer)
    with pytest.raises(RuntimeError):
        net(torch.randn(3, 7, 15))
    step(net, optimizer, X)
    assert measured_steps(guard) == [0]
    assert not guard._watch.running


def test_refusals() -> None:
    model = family("bert")
    with pytest.raises(InputError, match="pass optimizer="):
        LogitGuard(model, action="clip")
    for tau in (-1, 0, math.inf, "100"):
        with pytest.raises(InputError, match=f"tau is {tau}"):
            LogitGuard(model, tau=tau)
    for every in (0, 2.5, True):
        with pytest.raises(InputError, match=f"every is {every}; give a number of steps"):
            LogitGuard(model, every=every)
    with pytest.raises(InputError, match="use 'warn', 'clip' or a function"):
        LogitGuard(model, action="stop")
    with pytest.raises(InputError, match=r"model is a str; give a torch\.nn\.Module"):
        LogitGuard("bert")
    with pytest.raises(InputError, match="holds no parameter of the model"):
        LogitGuard(model, optimizer=sgd(Net()))
    with pytest.raises(InputError, match="no passes to count steps by"):
        LogitGuard(model, by_hand=True)

    class Normalised(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q_norm = nn.LayerNorm(4)

    normalised = Normalised()
    with pytest.raises(InputError, match="q_norm normalises queries or keys"):
        LogitGuard(normalised, action="clip", optimizer=sgd(normalised))
    plain = nn.Linear(3, 3)
    LogitGuard(plain)
    with pytest.raises(InputError, match="no attention of Linear was seen"):
        plain(torch.ones(1, 3))


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
