"""A subclass keeps its class, and what it overrides takes part in values, losses and training."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from attsvm.attention import Attention, FactoredAttention, Logistic, LogScale
from attsvm.base.errors import InputError
from attsvm.datasets.attention_data import AttentionData
from attsvm.optim import MirrorDescent, SteepestDescent
from attsvm.theory import regularization_path
from attsvm.training import AtSteps, train, unsupported

V = np.array([1.0, -0.5, 0.3])
PENALTY = 0.01
STEPS = 12


def data() -> AttentionData:
    rng = np.random.default_rng(3)
    signs = np.array([1.0, -1.0, 1.0, -1.0, 1.0])
    tokens, queries = rng.standard_normal((5, 4, 3)), rng.standard_normal((5, 3))
    return AttentionData(tokens, signs, queries)


DATA = data()
TOKENS, QUERIES, SIGNS = (
    torch.tensor(np.array(part)) for part in (DATA.tokens, DATA.queries, DATA.labels)
)


class Gated(Attention):
    """Values times a trained gate."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.gate = nn.Parameter(torch.tensor([0.5], dtype=torch.float64))

    def forward(self, data: Any, scale: Any = None) -> Tensor:
        return self.gate * super().forward(data, scale)


class Doubled(Attention):
    def logits(self, data: Any) -> Tensor:
        return 2.0 * super().logits(data)


class Flipped(Attention):
    def moved(self, queries: Tensor) -> Tensor:
        return -super().moved(queries)


class Mixed(Attention):
    def probabilities(self, data: Any) -> Tensor:
        return 0.5 * super().probabilities(data) + 0.125


class Squared(Attention):
    def outputs(self, data: Any, scale: Any = None) -> Tensor:
        return super().outputs(data, scale) ** 2


def plainly(kind: str, W: Tensor, gate: Tensor) -> Tensor:
    """The mean logistic loss, written down."""
    factor = {"Doubled": 2.0, "Flipped": -1.0}.get(kind, 1.0)
    logits = factor * torch.einsum("ntd,de,ne->nt", TOKENS, W, QUERIES)
    shares = torch.softmax(logits, dim=-1)
    shares = 0.5 * shares + 0.125 if kind == "Mixed" else shares
    outputs = torch.einsum("nt,ntd->nd", shares, TOKENS)
    outputs = outputs**2 if kind == "Squared" else outputs
    values = outputs @ torch.tensor(V)
    values = gate * values if kind == "Gated" else values
    return softplus(-SIGNS * values).mean() + PENALTY * (W**2).sum()


KINDS = [Gated, Doubled, Flipped, Mixed, Squared]


@pytest.mark.parametrize("make", [SteepestDescent, partial(MirrorDescent, p=1.5)])
@pytest.mark.parametrize("kind", KINDS)
def test_what_a_subclass_overrides_is_trained(kind: type[Attention], make: Any) -> None:
    model = kind.cross(DATA, V, init=("uniform", 0), penalty=PENALTY)
    assert type(model) is kind
    W = model.W.detach().clone().requires_grad_()
    gate = torch.tensor([0.5], dtype=torch.float64, requires_grad=True)
    trained = [W, gate] if kind is Gated else [W]
    model.loss(DATA).backward()
    plainly(kind.__name__, W, gate).backward()
    torch.testing.assert_close(model.W.grad, W.grad, rtol=1e-9, atol=1e-13)
    by_hand = make(trained, lr=0.1)
    trajectory = train(model, DATA, make(model.parameters(), lr=0.1), STEPS, AtSteps([0, STEPS]))
    for _ in range(STEPS):
        by_hand.zero_grad()
        plainly(kind.__name__, W, gate).backward()
        by_hand.step()
    np.testing.assert_allclose(trajectory.W[-1], W.detach().numpy(), rtol=1e-8, atol=1e-10)
    last = float(plainly(kind.__name__, W, gate).detach())
    assert trajectory.loss[-1] == pytest.approx(last, rel=1e-8)
    if kind is Gated:
        assert float(model.gate.detach()) == pytest.approx(float(gate.detach()), rel=1e-8)
        assert float(gate.detach()) != 0.5


@pytest.mark.parametrize("kind", KINDS)
def test_compiled_training_of_a_subclass_is_refused(kind: type[Attention]) -> None:
    model = kind.cross(DATA, V)
    optimizer = SteepestDescent([model.W], lr=0.1)
    with pytest.raises(InputError, match=rf"{kind.__name__} overrides"):
        train(model, DATA, optimizer, 1, backend="compiled")
    with pytest.raises(InputError, match="without scale"):
        model.loss(DATA, LogScale())


def test_what_a_subclass_cannot_override_alone_is_refused() -> None:
    class Read(Attention):
        def sequences(self, data: Any) -> Any:
            return super().sequences(data)

    with pytest.raises(InputError, match="overrides sequences"):
        Read.cross(DATA, V).loss(DATA)
    with pytest.raises(InputError, match="override scores"):
        Gated.cross(DATA, V).scores(DATA)


def test_constructors_make_their_class_or_refuse() -> None:
    class Factors(FactoredAttention):
        pass

    pair = {"parameterization": "KQ", "init": ("uniform", 0)}
    assert type(Factors.cross(DATA, V, **pair)) is Factors
    assert type(Factors.cross(DATA, V, **pair, stacked=True)) is Factors
    assert type(Factors.prompt(DATA, V, **pair)) is Factors
    assert type(Gated.prompt(DATA, V)) is Gated
    assert type(Attention.cross(DATA, V, **pair)) is FactoredAttention
    plain = Factors.cross(DATA, V, **pair)  # which overrides nothing
    assert unsupported(plain, SteepestDescent(plain.parameters(), lr=0.1)) is None
    for make in (
        lambda: Gated.cross(DATA, V, **pair),
        lambda: Factors.cross(DATA, V),
        lambda: FactoredAttention.cross(DATA, V),
    ):
        with pytest.raises(InputError, match="make it a subclass of"):
            make()


def trained(model: Attention, optimizer: torch.optim.Optimizer) -> np.ndarray:
    return train(model, DATA, optimizer, STEPS, AtSteps([0, STEPS])).W[-1]


def test_functions_put_on_the_model_take_part() -> None:
    def half(module: nn.Module, inputs: Any, values: Tensor) -> Tensor:
        return values / 2

    wanted = Attention.cross(DATA, V / 2, init=("uniform", 0))
    hooked, heads, replaced = (Attention.cross(DATA, V, init=("uniform", 0)) for _ in range(3))
    hooked.register_forward_hook(half)
    heads.head.register_forward_hook(half)
    inner = replaced.forward
    replaced.forward = lambda data, scale=None: inner(data, scale) / 2
    goal = trained(wanted, SteepestDescent([wanted.W], lr=0.1))
    for model in (hooked, heads, replaced):
        found = trained(model, SteepestDescent([model.W], lr=0.1))
        np.testing.assert_allclose(found, goal, rtol=1e-8, atol=1e-10)


def test_hooks_of_gradients_and_steps_take_part() -> None:
    mask = torch.ones(3, 3, dtype=torch.float64)
    mask[0] = 0.0
    model = Attention.cross(DATA, V)
    model.W.register_hook(lambda gradient: gradient * mask)
    W = trained(model, SteepestDescent([model.W], lr=0.1))
    assert not W[0].any()
    assert W[1:].any()
    other = Attention.cross(DATA, V)
    optimizer = SteepestDescent([other.W], lr=0.1)
    optimizer.register_step_post_hook(lambda *_: other.W.data[0].zero_())
    W = trained(other, optimizer)
    assert not W[0].any()
    assert W[1:].any()


class Steeper(Logistic):
    """A logistic loss of twice the margin."""

    def value(self, margins: Tensor) -> Tensor:
        return super().value(2.0 * margins)

    def slope(self, margins: Tensor) -> tuple[float, Tensor]:
        sign, log = super().slope(2.0 * margins)
        return sign, log + np.log(2.0)


class Halved(Logistic):
    def __call__(self, margins: Tensor, scale: Any = None) -> Tensor:
        return super().__call__(margins / 2, scale)


@pytest.mark.parametrize(("loss", "factor"), [(Steeper(), 2.0), (Halved(), 0.5)])
def test_a_loss_derived_from_a_known_one_is_itself(loss: Logistic, factor: float) -> None:
    model = Attention.cross(DATA, V, loss=loss, init=("uniform", 0))
    wanted = Attention.cross(DATA, factor * V, init=("uniform", 0))
    torch.testing.assert_close(model.loss(DATA), wanted.loss(DATA))
    found, goal = (trained(each, SteepestDescent([each.W], lr=0.1)) for each in (model, wanted))
    np.testing.assert_allclose(found, goal, rtol=1e-8, atol=1e-10)
    with pytest.raises(InputError, match="loss"):
        regularization_path(DATA, V, radii=[1.0], starts=1, loss=loss)
