"""Every parameterisation, head and loss against the textbook programme under autodiff, and against
each other at saturation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from attsvm import train
from attsvm.attention import (
    Attention,
    Exponential,
    FunctionLoss,
    LambdaHead,
    Linear,
    Logistic,
    LogScale,
    Loss,
    MLPHead,
)
from attsvm.base.errors import InputError
from attsvm.datasets import unit_sphere
from attsvm.datasets.attention_data import AttentionData

RNG = np.random.default_rng(0)
V = RNG.standard_normal(4)
HEADS: dict[str, Callable[[], object]] = {
    "linear": lambda: V,
    "lambda": lambda: LambdaHead(torch.tensor(V), 0.3),
    "mlp": lambda: MLPHead(torch.tensor(np.random.default_rng(1).standard_normal((4, 5)))),
    "function": lambda: lambda o: torch.tanh(o).sum(dim=-1) + o[..., 0] ** 3,
}
LOSSES: dict[str, tuple[Loss, Callable[[torch.Tensor], torch.Tensor]]] = {
    "logistic": (Logistic(), lambda u: torch.log1p(torch.exp(-u))),
    "exponential": (Exponential(), lambda u: torch.exp(-u)),
    "linear": (Linear(), lambda u: -u),
    "function": (FunctionLoss(lambda u: torch.atan(-u)), lambda u: torch.atan(-u)),
}
KEYS = np.random.default_rng(2).standard_normal((3, 4))
FORMS = ["W", "KQ", "stacked", "p", "scaled"]


def ragged() -> AttentionData:
    rng = np.random.default_rng(3)
    mask = rng.random((5, 6)) < 0.7
    mask[:, 2] = True
    return AttentionData(
        rng.standard_normal((5, 6, 4)),
        np.sign(rng.standard_normal(5)),
        rng.standard_normal((5, 3)),
        mask,
    )


def build(
    form: str, data: AttentionData, head: object, loss: Loss, size: float = 1.0, **options: object
) -> Attention:
    rng = np.random.default_rng(4)
    common = {"loss": loss, "intercept": None, **options}
    if form == "W":
        return Attention.cross(data, head, init=size * rng.standard_normal((4, 3)), **common)
    if form == "scaled":
        W = size * rng.standard_normal((4, 3))
        model = Attention.cross(data, head, init=W, temperature="query", **common)
        with torch.no_grad():
            model.log_scale += torch.tensor(rng.standard_normal((3, 1)))
        return model
    if form in ("KQ", "stacked"):
        pair = tuple(np.sqrt(size) * rng.standard_normal(shape) for shape in ((4, 2), (3, 2)))
        return Attention.cross(
            data,
            head,
            parameterization="KQ",
            inner=2,
            init=pair,
            stacked=form == "stacked",
            **common,
        )
    return Attention.prompt(data, head, keys=KEYS, init=size * rng.standard_normal(3), **common)


def textbook_logits(form: str, model: Attention, x: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    if form == "W":
        return x @ model.W @ z
    if form == "scaled":
        return torch.exp(z @ model.log_scale[:, 0]) * (x @ model.W @ z)
    if form in ("KQ", "stacked"):
        K, Q = (model.K, model.Q) if form == "KQ" else (model.KQ[:4], model.KQ[4:])
        return x @ K @ (Q.T @ z)
    return (x @ torch.tensor(KEYS).T @ model.W)[:, 0]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("loss", LOSSES)
def test_loss_and_gradients_equal_the_textbook(form: str, head: str, loss: str) -> None:
    data = ragged()
    objective, plain = LOSSES[loss]
    model = build(form, data, HEADS[head](), objective)
    total = torch.zeros((), dtype=torch.float64)
    for X, z, y, mask in zip(data.tokens, data.queries, data.labels, data.mask, strict=True):
        x = torch.tensor(X[mask])
        s = torch.softmax(textbook_logits(form, model, x, torch.tensor(z)), dim=0)
        total = total + plain(y * model.head((s @ x)[None])[0]) / data.n
    names = list(model.weights)
    expected = torch.autograd.grad(total, list(model.weights.values()))
    scaled = LogScale()
    for scale in (None, scaled):
        model.zero_grad()
        value = model.loss(data, scale)
        value.backward()
        torch.testing.assert_close(value.detach(), total.detach(), rtol=1e-12, atol=1e-14)
        factor = 1.0 if scale is None else torch.exp(scale.weights)
        for name, gradient in zip(names, expected, strict=True):
            torch.testing.assert_close(
                factor * model.weights[name].grad, gradient, rtol=1e-10, atol=1e-12
            )


class Unknown(Logistic):
    """The logistic loss, which the compiled pass does not know by this name."""


@pytest.mark.parametrize("scaled", [True, False])
@pytest.mark.parametrize("trained", [None, 0.3, "without an intercept"])
@pytest.mark.parametrize("size", [1.0, 30.0])
def test_the_compiled_pass_is_the_torch_one(
    size: float, trained: float | str | None, scaled: bool
) -> None:
    # logits of size 100 carry roundings of 1e-14
    data = ragged()
    head = np.random.default_rng(6).standard_normal(data.d_x)
    intercept = trained if isinstance(trained, float) else None
    common: dict[str, Any] = {"init": ("uniform", 5), "runs": 3}
    common |= {"intercept": intercept, "train_head": trained is not None}
    found = []
    for loss in (Logistic(), Unknown()):
        common["loss"] = loss
        model = Attention.cross(data, head, **common)
        with torch.no_grad():
            model.W *= size
        scale = LogScale()
        value = model.loss(data, scale if scaled else None)
        value.sum().backward()
        factors = {"W": scale.weights, "head.readout": scale.head} if scaled else {}
        found.append([value.detach()])
        for name, parameter in model.named_parameters():  # a factor is anybody's choice
            factor = torch.exp(factors[name])[:, None, None] if scaled else 1.0
            found[-1].append(factor * parameter.grad)
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-13)


def test_penalty_is_exact_at_any_scale_of_the_data_gradient() -> None:
    data = ragged()
    for strength, size in ((0.1, 1.0), (1e-12, 30.0), (2.2e-16, 4000.0)):
        model, scale = build("KQ", data, V, Logistic(), size=size, penalty=strength), LogScale()
        model.loss(data, scale).backward()
        model.add_penalty(scale)
        bare = build("KQ", data, V, Logistic(), size=size)
        loss = bare.loss(data)
        loss.backward()
        for name, weight in model.weights.items():
            expected = bare.weights[name].grad + 2.0 * strength * weight.detach()
            torch.testing.assert_close(
                torch.exp(scale.weights) * weight.grad, expected, rtol=1e-10, atol=0
            )
        plain = build("KQ", data, V, Logistic(), size=size, penalty=strength)
        value = plain.loss(data)
        value.backward()
        squares = sum(float((weight.detach() ** 2).sum()) for weight in plain.weights.values())
        assert value.item() == pytest.approx(loss.item() + strength * squares, rel=1e-13)
        torch.testing.assert_close(
            plain.K.grad, bare.K.grad + 2.0 * strength * bare.K.detach(), rtol=1e-10, atol=0
        )


def test_a_temperature_of_each_query_is_trained_recorded_and_restored() -> None:
    """Two queries are the same; their temperatures alone can tell their attention apart."""
    keys = np.eye(3)
    data = AttentionData(np.stack([keys, keys]), np.ones(2), np.ones((2, 1)))
    maps = torch.softmax(torch.tensor(np.array([[6.0, 0, 0], [1.0, 0, 0]])), dim=-1)
    options: dict[str, Any] = {"targets": maps.numpy(), "temperature": np.eye(2)}
    model = Attention.cross(data, lambda o: o, init=0.1 * np.eye(3, 1), **options)
    descent = torch.optim.Adam(model.parameters(), lr=0.05)
    course = train(model, data, descent, 2000)
    torch.testing.assert_close(model.probabilities(data).detach(), maps, atol=1e-4, rtol=0)
    scales = course.parameters["log_scale"][:, :, 0]
    assert scales[0].tolist() == [0.0, 0.0]
    assert scales[-1, 0] - scales[-1, 1] == pytest.approx(np.log(6.0), abs=1e-2)
    with pytest.raises(InputError, match="features of 2 queries but the data has 1"):
        model.loss(data.take([0]))


@pytest.mark.parametrize("head", HEADS)
def test_scores_are_slopes_of_the_margin_along_tokens(head: str) -> None:
    data = ragged()
    model = build("W", data, HEADS[head](), Logistic())
    scores, outputs = model.scores(data), model.outputs(data).detach()
    tokens, labels = torch.tensor(data.tokens), torch.tensor(data.labels)
    step = 1e-6
    for t in range(data.T):
        ahead, behind = (
            labels * model.head(outputs + sign * step * tokens[:, t]) for sign in (1, -1)
        )
        slope = ((ahead - behind) / (2 * step)).detach().numpy()
        shown = data.mask[:, t]
        np.testing.assert_allclose(scores.numpy()[shown, t], slope[shown], rtol=1e-6, atol=1e-8)
        assert (scores.numpy()[~shown, t] == -np.inf).all()


FACTORS = {"parameterization": "KQ"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"parameterization": "QK"}, "parameterization is 'QK'"),
        ({"inner": 2}, "inner and stacked belong to factors"),
        (FACTORS | {"temperature": "query"}, "temperatures belong to W"),
        ({"temperature": "key"}, "temperature is 'key'; give 'query'"),
        ({"temperature": np.eye(3)}, "features of 5 queries"),
        (FACTORS, "K = Q = 0 is a stationary point"),
        (FACTORS | {"inner": 0, "init": "zeros"}, "inner is 0"),
        (FACTORS | {"init": np.ones((4, 3))}, "init of factors is a pair"),
        (FACTORS | {"init": (np.ones((4, 3)), np.ones((4, 3)))}, r"init\[1\] has shape"),
        ({"loss": "hinge"}, "loss is 'hinge'"),
        ({"loss": [Linear(), Logistic()], "runs": 3}, "loss is"),
        ({"penalty": -1.0}, "penalty is -1.0"),
        ({"runs": 3, "penalty": [0.1, 0.2]}, r"as many of them as there are runs \(3\)"),
        ({"head": MLPHead(torch.ones(4, 2)), "train_head": True}, "train_head makes a linear head"),
    ],
)
def test_refusals(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Attention.cross(ragged(), **{"head": V, **options})


def test_key_maps_that_do_not_fit_are_refused() -> None:
    with pytest.raises(InputError, match=r"keys has shape \(2, 3\)"):
        Attention.prompt(ragged(), V, keys=np.ones((2, 3)))
    with pytest.raises(InputError, match=r"keys has shape \(3, 4\)"):
        Attention.prompt(ragged(), V, keys=KEYS).loss(unit_sphere(3, 6, 5, seed=0)[0])
