"""Prompt and head trained together on the points of two experiments, and the regularisation path of
the pair.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attsvm import (
    Trajectory,
    decoder_margins,
    max_margin,
    prompt_margins,
    regularization_path,
    relaxed_margins,
    train,
)
from attsvm.datasets import Toy
from attsvm.dynamics import AtSteps, direction_gap
from attsvm.models import Attention
from attsvm.optim import SteepestDescent
from attsvm.selection import margin_drop
from attsvm_papers.kit import Claim, at_most
from attsvm_papers.mmts.prompts import FAR, at, course, marks, of

Columns = dict[str, NDArray[Any]]
TOKENS = (1, 1, 1)  # the second token is selected everywhere; the first is zero


def train_pair(
    problem: Toy,
    p: ArrayLike,
    v: ArrayLike,
    lr: float,
    steps: int,
    at_steps: Sequence[int],
    kappas: ArrayLike = (1.0,),
) -> Trajectory:
    r"""Normalised descent on head and prompt, each by itself; the head's steps are :math:`\kappa`
    times as long, one run each.
    """
    ratios = np.asarray(kappas, dtype=np.float64)
    model = Attention.prompt(problem.data, v, init=np.asarray(p), runs=len(ratios), train_head=True)
    optimizer = SteepestDescent(model.parameters(), lr=lr)
    return train(
        model,
        problem.data,
        optimizer,
        steps,
        AtSteps(at_steps),
        step_scale={"head.readout": ratios},
    )


def descent(problem: Toy, lr: float, steps: int) -> Columns:
    """The papers' run, one row: its course, the head's, both probabilities by step, and the three
    solutions it is compared with.
    """
    data = problem.data
    trajectory = train_pair(
        problem, problem.starts["p"][0], problem.starts["v"][0], lr, steps, marks(steps)
    )
    decoder = max_margin(decoder_margins(data, TOKENS))
    full = max_margin(prompt_margins(data, TOKENS))
    relaxed = max_margin(relaxed_margins(data, TOKENS, decoder.support))
    targets = {"full": full.W[:, 0], "relaxed": relaxed.W[:, 0]}
    columns = course(trajectory, targets)
    heads = np.swapaxes(trajectory.head, 0, 1)
    selected = data.tokens[:, 1]
    kept = 1.0 / (1.0 + np.exp(-columns["prompt"] @ selected.T))  # the other token is zero
    values = data.labels * kept * (heads @ selected.T)
    solved = {
        "full": full.W[:, 0],
        "relaxed": relaxed.W[:, 0],
        "decoder": decoder.W[:, 0],
        "dual": full.dual,
    }
    return {
        **columns,
        "head": heads,
        "head_length": _lengths(heads, trajectory.steps),
        "gap_head": _gap(heads, decoder.W[:, 0]),
        "kept": kept.mean(axis=-1),
        "logistic": (1.0 / (1.0 + np.exp(-values))).mean(axis=-1),
        "margins": (data.labels * (selected @ decoder.W[:, 0]))[None],
        "supporting": np.isin(np.arange(data.n), decoder.support)[None],
        **{name: value[None] for name, value in solved.items()},
    }


def path(problem: Toy, radii: Sequence[float], head_radii: Sequence[float]) -> Columns:
    """Angles of the joint regularisation path, one row per pair of radii."""
    found = regularization_path(
        problem.data,
        problem.reference["v"],
        radii=radii,
        head_radii=head_radii,
        parameterization="joint",
    )
    assert found.head is not None
    angle = np.degrees(np.arctan2(found.W[:, 1, 0], found.W[:, 0, 0]))
    head_angle = np.degrees(np.arctan2(found.head[:, 1], found.head[:, 0]))
    return {
        "radius": found.radii,
        "head_radius": np.asarray(head_radii, float),
        "angle": angle,
        "head_angle": head_angle,
    }


def drop(problem: Toy, samples: int, seed: int = 0) -> Columns:
    """Ratios of the margin-drop assumption at random prompts of sizes 0.1 to 20."""
    rng = np.random.default_rng(seed)
    prompts = rng.standard_normal((samples, 2))
    prompts *= (np.geomspace(0.1, 20.0, samples) / np.linalg.norm(prompts, axis=1))[:, None]
    return {"drop": margin_drop(problem.data, TOKENS, prompts).ratios}


def far(problem: Toy, count: int, lr: float = 1e4, steps: int = 1000) -> Columns:
    """Head and prompt of size a million in ``count`` directions: lengths of their steps; NaN where
    a number is not finite.
    """
    rows = []
    for angle in np.linspace(0.0, 2.0 * np.pi, count, endpoint=False) + 0.1:
        point = FAR * np.array([np.cos(angle), np.sin(angle)])
        trajectory = train_pair(problem, point, point[::-1], lr, steps, (1, steps - 1))
        heads = np.swapaxes(trajectory.head, 0, 1)
        rows.append(
            [*course(trajectory, {})["step_length"][0], *_lengths(heads, trajectory.steps)[0]]
        )
    return {"far_length": np.array(rows) / lr}


def _lengths(heads: NDArray[Any], steps: NDArray[Any]) -> NDArray[Any]:
    length = np.linalg.norm(np.diff(heads, axis=1), axis=-1)[:, np.diff(steps) == 1]
    return np.stack([length.min(axis=1), length.max(axis=1)], axis=1)


def _gap(heads: NDArray[Any], target: NDArray[Any]) -> NDArray[Any]:
    return direction_gap(heads[..., None], target[:, None])


def numerics(lr: float, limit: str) -> tuple[Claim, ...]:
    """The claims that no run stalls, for head and prompt; ``limit`` names the prompt's solution."""
    return (
        Claim(
            "X1",
            "No run produces NaN or stalls: every recorded step of head and prompt, the last too,"
            f" has length {lr:g}.",
            "ours",
            lambda e: np.abs(
                np.concatenate(
                    [of(e, "descent")[name] for name in ("step_length", "head_length")], axis=1
                )
                / lr
                - 1
            ).max(axis=1),
            at_most(1e-9, "relative; rounding of prompts of norm 1e4 is 2e-11 of a step"),
        ),
        Claim(
            "X2",
            "The directions of head and prompt after 100000 steps are closer to their limits than"
            " after 10000.",
            "ours",
            lambda e: np.concatenate(
                [
                    at(of(e, "descent"), name, 100_000) / at(of(e, "descent"), name, 10_000)
                    for name in (limit, "gap_head")
                ]
            ),
            at_most(0.02, "the angles fall as 1/k, so the gaps to 0.01 of themselves"),
        ),
        Claim(
            "X3",
            "From heads and prompts of norm a million every number is finite and every step of the"
            " prompt has its length.",
            "ours",
            lambda e: np.abs(of(e, "far")["far_length"][:, :2] - 1.0).max(axis=1),
            at_most(1e-9, "relative; rounding of prompts of norm 1e7 is 2e-13 of a step of 1e4"),
        ),
        Claim(
            "X3b",
            "There every step of the head has its length too.",
            "ours",
            lambda e: np.abs(of(e, "far")["far_length"][:, 2:] - 1.0).max(axis=1),
            at_most(1e-9, "relative; rounding of heads of norm 1e7 is 2e-13 of a step of 1e4"),
        ),
    )
