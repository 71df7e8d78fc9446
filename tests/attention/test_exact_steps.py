"""One normalised step of every form and head against the closed form written out in extended
precision, at any saturation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mpmath
import numpy as np
import pytest
import torch

from attsvm.attention import Attention, LambdaHead, MLPHead
from attsvm.datasets.attention_data import AttentionData
from attsvm.optim import SteepestDescent
from attsvm.training import LogSpaced, train


def few_bits(array: np.ndarray, bits: int = 8) -> np.ndarray:
    """Multiples of a power of two: products of such numbers are exact, so that logits are, and only
    the gradient is tested.
    """
    return np.ldexp(np.rint(np.ldexp(array, bits)), -bits)


RNG = np.random.default_rng(12)
DATA = AttentionData(
    few_bits(RNG.standard_normal((3, 4, 3))),
    np.sign(RNG.standard_normal(3)),
    few_bits(RNG.standard_normal((3, 3))),
)
V = RNG.standard_normal(3)
HIDDEN = RNG.standard_normal((3, 5))
KEYS = few_bits(RNG.standard_normal((2, 3)), 3)
HEADS: dict[str, Callable[[], object]] = {
    "linear": lambda: V,
    "lambda": lambda: LambdaHead(torch.tensor(V), 0.3),
    "mlp": lambda: MLPHead(torch.tensor(HIDDEN)),
}
FORMS = ["W", "KQ", "p"]
# Attention selects a zero token in both: the gradient of the head is all in what it leaves to the
# others.
ZERO = AttentionData(
    np.array([[[0, 0], [-1, -0.5], [-1.5, 0.25]], [[-2, 1], [0, 0], [-1, 0.5]]]),
    [1, -1],
    np.ones((2, 1)),
)
LOSSES: dict[str, tuple[Any, Callable[[Any], Any]]] = {
    "logistic": ("logistic", lambda u: -1 / (1 + mpmath.exp(u))),
    "exponential": ("exponential", lambda u: -mpmath.exp(-u)),
    "linear": ("linear", lambda u: mpmath.mpf(-1)),
    "function": (lambda u: torch.atan(-u), lambda u: -1 / (1 + u * u)),
}


def build(form: str, head: object, size: float) -> Attention:
    rng = np.random.default_rng(13)

    def start(*shape: int) -> np.ndarray:
        return few_bits(size * rng.standard_normal(shape), 6)

    if form == "p":
        return Attention.prompt(DATA, head, keys=KEYS, init=start(2))
    options: dict[str, object] = {"intercept": None, "init": start(3, 3)}
    if form == "KQ":
        pair = (
            few_bits(size**0.5 * rng.standard_normal((3, 2)), 4),
            few_bits(size**0.5 * rng.standard_normal((3, 2)), 4),
        )
        options |= {"parameterization": "KQ", "inner": 2, "init": pair}
    return Attention.cross(DATA, head, **options)


def questions(
    form: str, data: AttentionData
) -> list[tuple[np.ndarray, np.ndarray, np.ndarray, float]]:
    """Tokens, keys, query and label of every attention output."""
    keys, queries = (data.tokens, data.queries)
    if form == "p":
        keys, queries = data.tokens @ KEYS.T, np.ones((3, 1))
    return list(zip(data.tokens, keys, queries, data.labels, strict=True))


def slopes_of_head(head: str, o: Any, v: Any) -> tuple[Any, Any]:
    """h(o) and its gradient."""
    if head == "mlp":
        V1 = mpmath.matrix(HIDDEN.tolist())
        before = V1.T * o
        active = mpmath.matrix([1 if x > 0 else 0 for x in before])
        return mpmath.fsum(x for x in before if x > 0), V1 * active
    strength = mpmath.mpf(0.3) if head == "lambda" else mpmath.mpf(0)
    return (v.T * o)[0] - strength * (o.T * o)[0], v - 2 * strength * o


def exact_step(
    model: Attention, form: str, head: str, lr: float, loss: str = "logistic"
) -> tuple[dict[str, np.ndarray], list[float]]:
    """Parameters after one step of length ``lr`` along each normalised gradient, and the logarithms
    of the gradients' norms: the closed form with as many digits as it takes.
    """
    data = ZERO if form == "zero" else DATA
    weights = {name: value.detach().numpy() for name, value in model.named_parameters()}
    combined = model.combined().detach().numpy()
    rows = questions(form, data)
    saturation = max(float(np.ptp(keys @ (combined @ z))) for _, keys, z, _ in rows)
    # cancellation loses twice the digits of the smallest probability
    with mpmath.workdps(40 + int(saturation)):
        M = mpmath.matrix
        P = {name: M(value.tolist()) for name, value in weights.items()}
        W = P["K"] * P["Q"].T if "K" in P else P["W"]
        v = P.get("head.readout", M(V.tolist()))
        G, of_head = mpmath.zeros(W.rows, W.cols), mpmath.zeros(v.rows, 1)
        for X, keys, z, y in rows:
            x, k, q = M(X.tolist()), M(keys.tolist()), M(z.tolist())
            a = k * (W * q)
            e = [mpmath.exp(t - max(a)) for t in a]
            s = M([t / mpmath.fsum(e) for t in e])
            o = x.T * s
            value, along = slopes_of_head(head, o, v)
            gamma = float(y) * (x * along)
            mean = (s.T * gamma)[0]
            slope = LOSSES[loss][1](float(y) * value)
            b = M([p * (c - mean) for p, c in zip(s, gamma, strict=True)])
            G += slope / len(rows) * (k.T * b) * q.T
            of_head += slope / len(rows) * float(y) * o
        gradients = {"K": G * P["Q"], "Q": G.T * P["K"]} if "K" in P else {"W": G}
        if "head.readout" in P:
            gradients["head.readout"] = of_head
        moved, logs = {}, []
        for name, gradient in gradients.items():
            norm = mpmath.sqrt(mpmath.fsum(t * t for t in gradient))
            logs.append(float(mpmath.log(norm)))
            step = P[name] - mpmath.mpf(lr) * gradient / norm
            moved[name] = np.array([[float(t) for t in step[i, :]] for i in range(step.rows)])
    return moved, logs


# The rectifier's kinks leave no first-order term to compare at saturation.
CASES = [
    (form, head, size)
    for form in FORMS
    for head in HEADS
    for size in (1.0, 60.0)
    if head != "mlp" or size == 1.0
]
CASES += [("W", "linear", 500.0)]


@pytest.mark.parametrize(("form", "head", "size"), CASES)
def test_one_step_has_twelve_digits(form: str, head: str, size: float) -> None:
    start = build(form, HEADS[head](), size)
    expected, logs = exact_step(start, form, head, 0.125)
    for backend in ("auto", "autograd"):
        model = build(form, HEADS[head](), size)
        optimizer = SteepestDescent(model.parameters(), lr=0.125)
        course = train(model, DATA, optimizer, 1, LogSpaced(1), backend=backend)
        if len(logs) == 1:
            assert course.log_gradient_norm[0] == pytest.approx(logs[0], rel=1e-12, abs=1e-12)
        assert_there(model, expected)


def assert_there(model: Attention, expected: dict[str, np.ndarray]) -> None:
    for name, value in expected.items():
        ours = model.get_parameter(name).detach().numpy()
        assert np.abs(ours - value).max() <= 1e-12 * max(1.0, np.abs(value).max()), name


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("size", [1.0, 64.0, 1024.0])
def test_a_head_learns_from_what_a_selected_zero_token_leaves(loss: str, size: float) -> None:
    def model() -> Attention:
        options: dict[str, Any] = {"init": size * np.array([[1.0], [0.125]]), "train_head": True}
        return Attention.cross(ZERO, [0.75, -1.25], None, loss=LOSSES[loss][0], **options)

    expected, logs = exact_step(model(), "zero", "linear", 0.125, loss)
    for backend in ("auto", "autograd"):
        trained = model()
        optimizer = SteepestDescent(trained.parameters(), lr=0.125)
        course = train(trained, ZERO, optimizer, 1, LogSpaced(1), backend=backend)
        assert course.log_gradient_norm[0] == pytest.approx(logs[0], rel=1e-12, abs=1e-12)
        assert_there(trained, expected)
