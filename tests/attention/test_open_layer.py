"""A layer with the keys, values, scores, masks, heads and targets of a user."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from attsvm.attention import Attention, LogScale
from attsvm.base.errors import InputError
from attsvm.datasets import unit_sphere
from attsvm.datasets.attention_data import AttentionData
from attsvm.datasets.queries import sequence_pairs
from attsvm.optim import SteepestDescent
from attsvm.training import Trajectory, train

DATA, V = unit_sphere(4, 5, 6, seed=3)
MATRIX = np.random.default_rng(5).standard_normal((3, 6))


@pytest.fixture
def rng() -> np.random.Generator:
    """A generator for each test, so that no test depends on those that ran before it."""
    return np.random.default_rng(6)


def trained(model: Attention, data: AttentionData, steps: int) -> Trajectory:
    return train(model, data, SteepestDescent(model.parameters(), lr=0.1), steps)


# Keys and values.


def test_keys_and_values_may_be_a_matrix_an_array_or_a_function() -> None:
    tokens = DATA.tokens @ MATRIX.T
    ways: list[Any] = [MATRIX, tokens, lambda data: data.tokens @ MATRIX.T, torch.tensor(tokens)]
    for name in ("keys", "values"):
        head = V if name == "keys" else np.ones(3)
        found = []
        for given in ways:
            model = Attention.cross(DATA, head, **{name: given})
            trajectory = trained(model, DATA, 50)
            assert trajectory.backend == "compiled"
            found.append((trajectory.W[-1], trajectory.loss[-1]))
        for W, loss in found[1:]:
            np.testing.assert_allclose(W, found[0][0], rtol=1e-10, atol=1e-12)
            assert loss == pytest.approx(found[0][1], rel=1e-12)


def textbook(W: Tensor, keys: Any, values: Any, head: Any, data: AttentionData) -> Tensor:
    a, z = torch.tensor(np.array(keys)), torch.tensor(np.array(data.queries))
    hidden = torch.tensor(~data.mask)
    logits = torch.einsum("ntd,de,ne->nt", a, W, z).masked_fill(hidden, -torch.inf)
    outputs = torch.einsum("nt,ntd->nd", torch.softmax(logits, -1), torch.tensor(np.array(values)))
    margins = torch.tensor(np.array(data.labels)) * (outputs @ torch.tensor(head))
    return nn.functional.softplus(-margins).mean()


@pytest.mark.parametrize("backend", ["compiled", "autograd"])
def test_values_that_differ_from_keys_have_the_gradient_of_the_textbook(
    backend: str, rng: np.random.Generator
) -> None:
    mask = np.ones((4, 5), dtype=bool)
    mask[1, 3:] = False
    data = AttentionData(DATA.tokens, DATA.labels, DATA.queries, mask)
    keys, values, head = (rng.standard_normal(s) for s in ((4, 5, 3), (4, 5, 2), (2,)))
    start = rng.standard_normal((3, 6))
    model = Attention.cross(data, head, None, init=start, keys=keys, values=values)
    W = torch.tensor(start, requires_grad=True)
    textbook(W, keys, values, head, data).backward()
    assert W.grad is not None
    descent = SteepestDescent(model.parameters(), lr=0.5, normalize=False)
    trajectory = train(model, data, descent, 1, backend=backend)  # type: ignore[arg-type]
    expected = start - 0.5 * W.grad.numpy()
    np.testing.assert_allclose(trajectory.W[-1], expected, rtol=1e-11, atol=1e-13)


def test_runs_may_have_keys_of_their_own(rng: np.random.Generator) -> None:
    data, v = unit_sphere(3, 4, 6, seed=[0, 1])
    keys = rng.standard_normal((2, 3, 4, 5))
    together = trained(Attention.cross(data, v, keys=keys), data, 100)
    for r in range(2):
        one = data.instance(r)
        alone = trained(Attention.cross(one, v[r], keys=keys[r]), one, 100)
        np.testing.assert_array_equal(together.W[-1, r], alone.W[-1])


def test_a_model_with_a_function_reads_other_data() -> None:
    model = Attention.cross(DATA, V, keys=lambda data: data.tokens[..., ::-1])
    other, _ = unit_sphere(7, 3, 6, seed=8)
    assert model(other).shape == (7,)
    with pytest.raises(InputError, match=r"keys has shape \(4, 5, 3\)"):
        Attention.cross(DATA, V, keys=np.ones((4, 5, 3)))(other)


# Masks per query.


def test_windows_and_causal_masks_meet() -> None:
    distance = np.subtract.outer(np.arange(5), np.arange(5))
    both = sequence_pairs(DATA, np.ones((4, 5)), causal=True, mask=np.abs(distance) <= 1)
    expected = (distance >= 0) & (distance <= 1)
    assert (both.mask.reshape(4, 5, 5) == expected).all()
    for mask, sentence in (
        (np.zeros((5, 5), dtype=bool), "position 0 of sequence 0 sees no token"),
        (np.ones((4, 4), dtype=bool), r"give booleans \(5, 5\)"),
        (np.ones((5, 5)), "give booleans"),
    ):
        with pytest.raises(InputError, match=sentence):
            sequence_pairs(DATA, np.ones((4, 5)), mask=mask)


# Scores.


class Distance(nn.Module):
    """Minus half the squared distance, times a trained factor."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(0.7, dtype=torch.float64))

    def forward(self, moved: Tensor, keys: Tensor) -> Tensor:
        return -0.5 * self.factor * ((moved[..., None, :] - keys) ** 2).sum(dim=-1)


def test_a_product_as_similarity_is_the_layer_itself() -> None:
    def product(moved: Tensor, keys: Tensor) -> Tensor:
        return torch.einsum("...nd,...ntd->...nt", moved, keys)

    ends = []
    for similarity in (None, product):
        model = Attention.cross(DATA, V, runs=2, init=("uniform", 0), similarity=similarity)
        ends.append(trained(model, DATA, 300))
    assert [each.backend for each in ends] == ["compiled", "autograd"]
    np.testing.assert_allclose(ends[1].W[-1], ends[0].W[-1], rtol=1e-9, atol=1e-11)


def test_distances_are_trained_with_their_parameters() -> None:
    model = Attention.cross(DATA, V, None, init=("uniform", 0), similarity=Distance())
    assert isinstance(model.similarity, Distance)
    W = model.W.detach().clone().requires_grad_()
    factor = model.similarity.factor.detach().clone().requires_grad_()
    X, z = torch.tensor(np.array(DATA.tokens)), torch.tensor(np.array(DATA.queries))
    logits = -0.5 * factor * (((z @ W.T)[:, None] - X) ** 2).sum(-1)
    values = torch.einsum("nt,ntd,d->n", torch.softmax(logits, -1), X, torch.tensor(V))
    loss = nn.functional.softplus(-torch.tensor(np.array(DATA.labels)) * values).mean()
    loss.backward()
    found = model.loss(DATA)
    found.backward()
    torch.testing.assert_close(found, loss)
    torch.testing.assert_close(model.W.grad, W.grad, rtol=1e-10, atol=1e-13)
    torch.testing.assert_close(model.similarity.factor.grad, factor.grad, rtol=1e-10, atol=1e-13)
    before = float(factor.detach())
    trained(model, DATA, 20)
    assert float(model.similarity.factor.detach()) != before


# Targets.


def planted(classes: int) -> tuple[AttentionData, Any, Any, Any]:
    """Data, a matrix head, the planted token of each sequence and the values of the head there."""
    data, _ = unit_sphere(5, 4, 16, seed=7)
    head = np.random.default_rng(8).standard_normal((classes, 16))
    chosen = np.array([0, 3, 1, 2, 1])
    return data, head, chosen, data.tokens[np.arange(5), chosen] @ head.T


LOSSES_OF_TARGETS: dict[str, tuple[Any, Any]] = {
    "squared": ("squared", lambda f, y: 0.5 * ((f - y) ** 2).sum(-1)),
    "cross_entropy": (
        "cross_entropy",
        lambda f, y: (
            torch.logsumexp(f, -1) - f.take_along_dim(y.expand(f.shape[:-1])[..., None], -1)[..., 0]
        ),
    ),
    "per entry": (
        lambda f, y: nn.functional.huber_loss(f, y, reduction="none"),
        lambda f, y: nn.functional.huber_loss(f, y.expand(f.shape), reduction="none").sum(-1),
    ),
    "per row": (
        lambda f, y: torch.linalg.vector_norm(f - y, dim=-1),
        lambda f, y: torch.linalg.vector_norm(f - y, dim=-1),
    ),
}


@pytest.mark.parametrize("runs", [None, 2])
@pytest.mark.parametrize("name", LOSSES_OF_TARGETS)
def test_losses_of_targets_have_the_gradient_of_the_textbook(name: str, runs: int | None) -> None:
    loss, plain = LOSSES_OF_TARGETS[name]
    data, head, _, targets = planted(3)
    targets = targets.argmax(axis=1) if name == "cross_entropy" else targets
    options: dict[str, Any] = {"runs": runs, "init": ("uniform", 1), "train_head": True}
    model = Attention.cross(data, head, loss=loss, targets=targets, **options)
    X, z = torch.tensor(np.array(data.tokens)), torch.tensor(np.array(data.queries))
    W, M = (each.detach().clone().requires_grad_() for each in (model.W, model.head.weight))
    logits = torch.einsum("ntd,...de,ne->...nt", X, W, z)
    outputs = torch.einsum("...nt,ntd->...nd", torch.softmax(logits, -1), X)
    expected = plain(outputs @ M.mT, torch.tensor(targets)).mean(-1)
    expected.sum().backward()
    scale = LogScale()
    for given in (None, scale):
        model.zero_grad()
        found = model.loss(data, given)
        found.sum().backward()
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)
        factor = 1.0 if given is None else torch.exp(scale.weights)[..., None, None]
        torch.testing.assert_close(factor * model.W.grad, W.grad, rtol=1e-10, atol=1e-13)
    if runs is None:
        torch.testing.assert_close(torch.exp(scale.head) * model.head.weight.grad, M.grad)


def test_scores_beside_targets_are_slopes_of_the_loss() -> None:
    data, head, _, targets = planted(3)
    model = Attention.cross(data, head, targets=targets, init=("uniform", 1))
    scores, outputs = model.scores(data), model.outputs(data).detach()
    left = model.head(outputs) - torch.tensor(targets)
    expected = -torch.einsum("nc,cd,ntd->nt", left, torch.tensor(head), torch.tensor(data.tokens))
    torch.testing.assert_close(scores, expected, rtol=1e-12, atol=1e-13)


# Sentences.


class Wide(nn.Linear):
    def __init__(self) -> None:
        super().__init__(5, 1, dtype=torch.float64)


TWO, TARGETS = np.ones((2, 6)), np.ones((4, 2))
INTERCEPT = "intercept is 0.5 beside a head that is no vector"
REFUSALS: list[tuple[Any, dict[str, Any], str]] = [
    (V, {"loss": lambda u: np.log1p(np.exp(-u))}, "write it with functions of torch"),
    (
        V,
        {"loss": lambda u: nn.functional.softplus(-u).mean()},
        r"of margins of shape \(4,\) gives \(\); write it with functions of torch, entry by entry",
    ),
    (V, {"loss": "hinge"}, "loss is 'hinge'; give 'logistic', 'exponential', 'linear', or a func"),
    (V, {"loss": "squared"}, "pass targets= with it"),
    (
        TWO,
        {"loss": "logistic", "targets": TARGETS},
        "loss is 'logistic' beside targets; give 'squared', 'cross_entropy'",
    ),
    (
        nn.Linear(6, 1),
        {},
        r"holds torch.float32 and the layer works in float64; pass head.double\(\)",
    ),
    (Wide(), {}, r"the head takes no outputs of shape \(4, 6\)"),
    (
        nn.Linear(6, 1).double(),
        {},
        r"values of shape \(4, 1\) for outputs of shape \(4, 6\); give one value per output",
    ),
    (lambda o: o.detach().numpy()[..., 0], {}, "the head gives ndarray of shape"),
    (np.ones((2, 5)), {"targets": TARGETS}, r"head has shape \(2, 5\); it must be \(2, 6\)"),
    (nn.Tanh(), {"intercept": 0.5}, INTERCEPT),
    (TWO, {"intercept": 0.5, "targets": TARGETS}, INTERCEPT),
    (TWO, {"targets": np.ones((3, 2))}, r"targets has shape \(3, 2\) for labels \(4,\)"),
    (
        TWO,
        {"loss": "cross_entropy", "targets": [0.5, 0.0, 1.0, 1.0]},
        "give targets 0, 1, 2",
    ),
    (
        TWO,
        {"loss": lambda f, y: f @ y, "targets": TARGETS},
        r"the loss fails on values of shape \(4, 2\) and targets of shape \(4, 2\)",
    ),
    (
        TWO,
        {"loss": nn.functional.mse_loss, "targets": TARGETS},
        r"gives shape \(\); write it in torch, with one number per sequence",
    ),
    (
        V,
        {"keys": np.ones((3, 5))},
        r"keys has shape \(3, 5\) and the data tokens of shape \(4, 5, 6\); give a matrix",
    ),
    (V, {"values": np.full((4, 5, 6), np.nan)}, "values holds a value that is not finite"),
    (V, {"keys": torch.ones(4, 5, 3, requires_grad=True)}, "keys asks for gradients"),
    (
        V,
        {"keys": nn.Linear(6, 3)},
        "the module of keys fails on tokens of torch.float64",
    ),
    (
        V,
        {"values": nn.Flatten(start_dim=0)},
        r"the module of values gives torch.float64 of shape \(.*give features",
    ),
    (V, {"similarity": lambda q, k: q}, r"similarity gives \(4, 6\).*of shape \(4, 5\)"),
]


@pytest.mark.parametrize(("head", "options", "sentence"), REFUSALS)
def test_what_does_not_fit_ends_in_a_sentence(
    head: Any, options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(InputError, match=sentence):
        Attention.cross(DATA, head, **options).loss(DATA)


def test_targets_belong_to_the_sequences_that_they_were_given_with() -> None:
    model = Attention.cross(DATA, TWO, targets=TARGETS)
    with pytest.raises(InputError, match="the model has targets for other sequences than these 2"):
        model.loss(DATA.take([0, 1]))
