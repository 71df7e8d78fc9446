r"""The authors' training loops, written anew in plain torch from what is known of them, beside the
exact mode.

Softmax and gradients are torch's own; each parameter moves by :math:`-\eta g/(\|g\|+\epsilon)` with
the machine epsilon of float64, and factors carry the penalty
:math:`\epsilon(\|K\|_F^2+\|Q\|_F^2)`. While :math:`\|g\|\gg\epsilon` this is the exact mode to
rounding; where :math:`\|g\|` reaches :math:`\epsilon` the released loops stand still, and the exact
mode goes on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

import attsvm
from attsvm.datasets import toy, unit_sphere
from attsvm.dynamics import AtSteps
from attsvm.models import Attention
from attsvm.optim import SteepestDescent

EPSILON = 2.0**-52
CLEAR = np.log(EPSILON * 1e9)  # of gradients that shorten a step by 1e-9 at most

Case = tuple[attsvm.AttentionData, Any, Attention, Callable[..., Tensor]]


def starts(seed: int, count: int) -> list[np.ndarray]:
    """Weights of the size of those of ``nn.Linear``."""
    return list(np.random.default_rng(seed).uniform(-0.3, 0.3, (count, 10, 10)))


def matrix(seed: int) -> Case:
    data, v = unit_sphere(6, 8, 10, seed=seed)
    model = Attention.cross(data, v, init=starts(seed, 1)[0])
    return data, v, model, lambda W: W


def factors(seed: int) -> Case:
    """Keys and queries of two linear layers, each gradient normalised, with the penalty."""
    data, v = unit_sphere(6, 8, 10, seed=seed)
    pair: Any = tuple(starts(seed, 2))
    model = Attention.cross(data, v, init=pair, parameterization="KQ", penalty=EPSILON)
    return data, v, model, lambda K, Q: K @ Q.T


def joint(seed: int) -> Case:
    """A prompt and its head, each gradient normalised by itself."""
    problem = toy(("joint", "joint_nonsupport")[seed])
    p, v = (np.array(problem.starts[name][0]) for name in ("p", "v"))
    model = Attention.prompt(problem.data, v, init=p, train_head=True)
    return problem.data, None, model, lambda p, v: p


def compared(case: Case, steps: int) -> tuple[Any, Any, np.ndarray, np.ndarray]:
    """Weights of the released loop and of ours at every tenth step, and the logarithms of the
    shortest gradient of theirs and of ours.
    """
    data, v, model, combined = case
    X, y, z = (torch.tensor(np.array(a)) for a in (data.tokens, data.labels, data.queries))
    z = torch.ones(data.n, 1, dtype=X.dtype) if model.inputs.prompt else z
    theirs = [parameter.detach().clone().requires_grad_() for parameter in model.parameters()]
    marks, found, sizes = range(0, steps + 1, 10), [], []
    for step in range(steps + 1):
        W, head = combined(*theirs), theirs[-1] if v is None else torch.tensor(v)[:, None]
        s = torch.softmax((X @ W @ z[..., None])[..., 0], dim=-1)
        values = ((s[:, None] @ X)[:, 0] @ head)[:, 0]
        penalty = float(model.penalty) * sum(each.square().sum() for each in theirs)
        gradients = torch.autograd.grad(penalty - logsigmoid(y * values).mean(), theirs)
        norms = [float(gradient.norm()) for gradient in gradients]
        if step in marks:
            found.append(W.detach().numpy().copy())
            sizes.append(np.log(min(norms)))
        with torch.no_grad():
            for parameter, gradient, norm in zip(theirs, gradients, norms, strict=True):
                parameter -= 0.1 * gradient / (norm + EPSILON)
    optimizer = SteepestDescent(model.parameters(), lr=0.1)
    ours = attsvm.train(model, data, optimizer, steps, AtSteps(marks))
    return np.stack(found), ours.W, np.array(sizes), ours.log_gradient_norm


def distances(theirs: np.ndarray, ours: np.ndarray) -> np.ndarray:
    """Relative to the weights."""
    return np.linalg.norm(theirs - ours, axis=(1, 2)) / np.linalg.norm(ours, axis=(1, 2))


@pytest.mark.parametrize(
    ("case", "seed", "steps"),
    [(matrix, 1, 1500), (joint, 0, 1000), (factors, 2, 300), (joint, 1, 300)],
)
def test_the_exact_mode_is_the_released_loop_until_epsilon_is_felt(
    case: Callable[[int], Case], seed: int, steps: int
) -> None:
    theirs, ours, sizes, log_norm = compared(case(seed), steps)
    distance = distances(theirs, ours)
    clear = np.logical_and.accumulate(sizes > CLEAR)
    assert clear.sum() >= 8  # at least 80 steps are compared
    assert distance[clear].max() <= 1e-9
    if steps >= 1000:  # half a step is left of theirs where the norm is epsilon
        leaps = [np.linalg.norm(np.diff(W, axis=0), axis=(1, 2)) for W in (theirs, ours)]
        first = int(np.argmax(leaps[0] < 0.5 * leaps[1]))
        assert abs(log_norm[first] - np.log(EPSILON)) < 2.0
        assert distance[-1] > 0.1
        assert log_norm[-1] < np.log(EPSILON) - 10.0


def test_the_penalty_of_factors_holds_both_in_place_and_nothing_else_does() -> None:
    theirs, ours, _, _ = compared(factors(1), 1500)
    sizes = np.linalg.norm(theirs, axis=(1, 2))
    assert sizes[-1] == pytest.approx(sizes[len(sizes) * 2 // 3], rel=0.05)
    assert np.linalg.norm(ours[-1]) == pytest.approx(sizes[-1], rel=0.05)
    data, _, model, _ = factors(1)
    model.penalty *= 0.0
    free = attsvm.train(model, data, SteepestDescent(model.parameters(), lr=0.1), 1500)
    assert free.norm[-1] > 2.0 * sizes[-1]
