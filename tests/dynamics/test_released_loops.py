r"""The authors' training loops, written anew in plain torch from what is known of them, beside the
exact mode.

Starts are those of ``nn.Linear`` under a seed of torch; softmax and gradients are torch's own; each
parameter moves by :math:`-\eta g/(\|g\|+\epsilon)` with the machine epsilon of float64, and factors
carry the penalty :math:`\epsilon(\|K\|_F^2+\|Q\|_F^2)`. While :math:`\|g\|\gg\epsilon` this is the
exact mode to rounding; where :math:`\|g\|` reaches :math:`\epsilon` the released loops stand still,
and the exact mode goes on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

import attsvm
from attsvm.datasets import toy
from attsvm.datasets.next_token import priority_graph
from attsvm.dynamics import AtSteps
from attsvm.dynamics.next_token import Problem, Rule, attention_stage
from attsvm.models import Attention, MLPHead
from attsvm.optim import MirrorDescent, SteepestDescent

EPSILON = 2.0**-52
PINNED = 1e-9  # relative to the weights
CLEAR = 1e9  # gradients this much longer than epsilon: a step is shortened by 1e-9 at most


class Course(NamedTuple):
    """Weights at the marks, and the logarithm of the gradient's norm there, of the least of
    several.
    """

    W: np.ndarray
    log_gradient: np.ndarray


def released(
    parameters: list[Tensor],
    loss: Callable[[], Tensor],
    weights: Callable[[], Tensor],
    marks: list[int],
    lr: float = 0.1,
) -> Course:
    """The optimiser of the released loops: every parameter by itself, epsilon added to the norm of
    its gradient.
    """
    found, sizes = [], []
    for step in range(marks[-1] + 1):
        gradients = torch.autograd.grad(loss(), parameters)
        norms = [float(gradient.norm()) for gradient in gradients]
        if step in marks:
            found.append(weights().detach().clone().numpy())
            sizes.append(min(norms))
        with torch.no_grad():
            for parameter, gradient, norm in zip(parameters, gradients, norms, strict=True):
                parameter -= lr * gradient / (norm + EPSILON)
    return Course(np.stack(found), np.log(np.array(sizes)))


def tensors(data: attsvm.AttentionData) -> tuple[Tensor, Tensor, Tensor]:
    return tuple(torch.tensor(a) for a in (data.tokens, data.labels, data.queries))


def logistic(values: Tensor, labels: Tensor) -> Tensor:
    return -logsigmoid(labels * values).mean()


def linear(d: int, count: int, seed: int) -> list[Tensor]:
    """The weights of so many layers, made one after the other under one seed."""
    torch.manual_seed(seed)
    layers = [nn.Linear(d, d, bias=False, dtype=torch.float64) for _ in range(count)]
    return [layer.weight for layer in layers]


def exact(model: Attention, data: attsvm.AttentionData, marks: list[int], **options) -> Course:
    optimizer = SteepestDescent(model.parameters(), lr=0.1)
    course = attsvm.train(model, data, optimizer, marks[-1], AtSteps(marks), **options)
    return Course(course.W, course.log_gradient_norm)


def matrix(seed: int, marks: list[int]) -> tuple[Course, Course]:
    """W of one linear layer under a fixed linear head, on the random instances."""
    data, v = attsvm.datasets.unit_sphere(6, 8, 10, seed=seed)
    X, y, z = tensors(data)
    (W,) = linear(10, 1, seed)
    start = W.detach().numpy().T.copy()

    def loss() -> Tensor:
        s = torch.softmax((X @ W.T @ z[..., None])[..., 0], dim=-1)
        return logistic((s[:, None] @ X)[:, 0] @ torch.tensor(v), y)

    theirs = released([W], loss, lambda: W.T, marks)
    return theirs, exact(Attention.cross(data, v, init=start), data, marks)


def factors(seed: int, marks: list[int]) -> tuple[Course, Course]:
    """Keys and queries of two linear layers, each gradient normalised, with the penalty."""
    data, v = attsvm.datasets.unit_sphere(6, 8, 10, seed=seed)
    X, y, z = tensors(data)
    key, query = linear(10, 2, seed)
    K, Q = (part.detach().numpy().T.copy() for part in (key, query))

    def loss() -> Tensor:
        logits = (X @ key.T) @ (z @ query.T)[..., None]
        s = torch.softmax(logits[..., 0], dim=-1)
        fit = logistic((s[:, None] @ X)[:, 0] @ torch.tensor(v), y)
        return fit + EPSILON * (key.square().sum() + query.square().sum())

    theirs = released([key, query], loss, lambda: key.T @ query, marks)
    model = Attention.cross(data, v, init=(K, Q), parameterization="KQ", penalty=EPSILON)
    return theirs, exact(model, data, marks)


def perceptron(seed: int, marks: list[int]) -> tuple[Course, Course]:
    """W under the head of a two-layer perceptron."""
    data, _ = attsvm.datasets.unit_sphere(3, 4, 6, seed=seed)
    X, y, z = tensors(data)
    V = torch.randn(6, 6, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    V /= V.norm()
    (W,) = linear(6, 1, seed)
    start = W.detach().numpy().T.copy()

    def loss() -> Tensor:
        s = torch.softmax((X @ W.T @ z[..., None])[..., 0], dim=-1)
        return logistic(torch.relu((s[:, None] @ X)[:, 0] @ V).sum(-1), y)

    theirs = released([W], loss, lambda: W.T, marks)
    return theirs, exact(Attention.cross(data, MLPHead(V), init=start), data, marks)


def prompt(seed: int, marks: list[int]) -> tuple[Course, Course]:
    """A prompt under key and query maps diag(1, 1, 0) in three dimensions; starts of the figure."""
    problem = toy("multiple_global")
    lifted, start = problem.lifted, problem.starts["p"][seed]
    X, y, _ = tensors(lifted)
    v, cut = torch.tensor(problem.value_head), torch.diag(torch.tensor([1.0, 1.0, 0.0]).double())
    p = torch.tensor([*start, 0.0], dtype=torch.float64, requires_grad=True)

    def loss() -> Tensor:
        s = torch.softmax((X @ cut) @ (cut @ p), dim=-1)
        return logistic((s[:, None] @ X)[:, 0] @ v, y)

    theirs = released([p], loss, lambda: p[:2, None], marks)
    model = Attention.prompt(lifted, problem.value_head, keys=problem.keys, init=start)
    return theirs, exact(model, lifted, marks)


def joint(seed: int, marks: list[int]) -> tuple[Course, Course]:
    """A prompt and its head, each gradient normalised by itself; the prompt is compared."""
    problem = toy(("joint", "joint_nonsupport")[seed % 2])
    X, y, _ = tensors(problem.data)
    first = [np.array(problem.starts[name][0]) for name in ("p", "v")]
    p, v = (torch.tensor(each, requires_grad=True) for each in first)

    def loss() -> Tensor:
        s = torch.softmax(X @ p, dim=-1)
        return logistic((s[:, None] @ X)[:, 0] @ v, y)

    theirs = released([p, v], loss, lambda: p[:, None], marks)
    model = Attention.prompt(problem.data, first[1], init=first[0], train_head=True)
    return theirs, exact(model, problem.data, marks)


def mirror(seed: int, marks: list[int], p: float = 1.75) -> tuple[Course, Course]:
    """Mirror descent from a linear layer: the dual is made from the weights at every step."""
    data, v = attsvm.datasets.unit_sphere(6, 8, 10, seed=seed)
    X, y, z = tensors(data)
    (W,) = linear(10, 1, seed)
    start = W.detach().numpy().T.copy()
    found, sizes = [], []
    for step in range(marks[-1] + 1):
        s = torch.softmax((X @ W.T @ z[..., None])[..., 0], dim=-1)
        (g,) = torch.autograd.grad(logistic((s[:, None] @ X)[:, 0] @ torch.tensor(v), y), W)
        if step in marks:
            found.append(W.detach().T.clone().numpy())
            sizes.append(float(g.norm()))
        with torch.no_grad():
            dual = W.sign() * W.abs() ** (p - 1) - 0.1 * g / (g.norm(p / (p - 1)) + EPSILON)
            W.copy_(dual.sign() * dual.abs() ** (1 / (p - 1)))
    model = Attention.cross(data, v, init=start)
    optimizer = MirrorDescent(model.parameters(), lr=0.1, p=p, normalize=True)
    course = attsvm.train(model, data, optimizer, marks[-1], AtSteps(marks))
    return Course(np.stack(found), np.log(np.array(sizes))), Course(
        course.W, course.log_gradient_norm
    )


def graph(seed: int, marks: list[int]) -> tuple[Course, Course]:
    """W on a priority graph: minus the log of the attention on the label, in steps of 0.1."""
    data = priority_graph(6, 4, 6, 8, seed)
    E = torch.tensor(np.array(data.embeddings))
    (W,) = linear(8, 1, seed)
    start = W.detach().numpy().T.copy()
    sentences = [torch.tensor(np.array(one)) for one in data.sentences]

    def loss() -> Tensor:
        terms = []
        for tokens, label in zip(sentences, data.labels, strict=True):
            s = torch.softmax(E[tokens] @ W.T @ E[tokens[-1]], dim=0)
            terms.append(-torch.log(s[tokens == int(label)].sum()))
        return torch.stack(terms).mean()

    theirs = released([W], loss, lambda: W.T, marks)
    course = attention_stage(
        Problem.of([data], "log_mass"),
        Rule(0.1),
        marks[-1],
        init=start[None],
        records=AtSteps(marks),
    )
    return theirs, Course(course.W[:, 0], theirs.log_gradient)


def compared(loop, seed: int, steps: int) -> tuple[Course, Course, np.ndarray]:
    """Both courses behind the start, and the distance between them relative to the weights."""
    both = loop(seed, list(range(0, steps + 1, 10)))
    theirs, ours = (Course(each.W[1:], each.log_gradient[1:]) for each in both)
    size = np.linalg.norm(ours.W, axis=(1, 2))
    return theirs, ours, np.linalg.norm(theirs.W - ours.W, axis=(1, 2)) / size


def assert_pinned(theirs: Course, distance: np.ndarray) -> None:
    """One loop is the other while the gradient is far from epsilon."""
    clear = np.logical_and.accumulate(theirs.log_gradient > np.log(EPSILON * CLEAR))
    assert clear.sum() >= 8, "at least 80 steps are compared"
    assert distance[clear].max() <= PINNED


@pytest.mark.parametrize(
    ("loop", "seed", "steps"),
    [
        (matrix, 2, 700),
        (factors, 2, 300),
        (perceptron, 1, 500),
        (prompt, 2, 300),
        (prompt, 5, 300),
        (joint, 1, 300),
        (graph, 1, 300),
    ],
)
def test_the_exact_mode_is_the_released_loop_while_epsilon_is_not_felt(loop, seed, steps):
    theirs, _, distance = compared(loop, seed, steps)
    assert_pinned(theirs, distance)


@pytest.mark.parametrize(
    ("loop", "seed", "steps"),
    [(matrix, 1, 1500), (prompt, 0, 1000), (joint, 0, 1000), (mirror, 1, 1000)],
)
def test_they_part_where_the_gradient_is_as_short_as_epsilon(loop, seed, steps):
    """Half a step is left of theirs where the norm is epsilon; ours goes on."""
    theirs, ours, distance = compared(loop, seed, steps)
    assert_pinned(theirs, distance)
    leaps = [np.linalg.norm(np.diff(each.W, axis=0), axis=(1, 2)) for each in (theirs, ours)]
    halved = leaps[0] < 0.5 * leaps[1]
    assert halved.any()
    first = int(np.argmax(halved))
    assert abs(ours.log_gradient[first] - np.log(EPSILON)) < 2.0
    assert distance[-1] > 0.1
    assert np.linalg.norm(ours.W[-1]) > 1.2 * np.linalg.norm(theirs.W[-1])
    assert ours.log_gradient[-1] < np.log(EPSILON) - 10.0


def test_the_penalty_of_factors_holds_both_in_place_and_nothing_else_does():
    theirs, ours, distance = compared(factors, 1, 1500)
    assert_pinned(theirs, distance)
    sizes = np.linalg.norm(theirs.W, axis=(1, 2))
    assert sizes[-1] == pytest.approx(sizes[len(sizes) * 2 // 3], rel=0.05)
    assert np.linalg.norm(ours.W[-1]) == pytest.approx(sizes[-1], rel=0.05)
    data, v = attsvm.datasets.unit_sphere(6, 8, 10, seed=1)
    start = tuple(part.detach().numpy().T for part in linear(10, 2, 1))
    model = Attention.cross(data, v, init=start, parameterization="KQ")
    assert np.linalg.norm(exact(model, data, [1500]).W[-1]) > 2.0 * sizes[-1]
