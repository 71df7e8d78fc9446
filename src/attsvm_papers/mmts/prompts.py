"""Prompts trained on the papers' points in the plane: what every such experiment measures, and how
it draws it.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import ArrayLike, NDArray

from attsvm import Cone, MarginSolution, Trajectory, regularization_path, train
from attsvm.datasets import Toy
from attsvm.dynamics import AtSteps
from attsvm.models import Attention, LogScale
from attsvm.optim import SteepestDescent
from attsvm_papers.kit import Claim, Evidence, at_most, logarithmic

Columns = dict[str, NDArray[Any]]
SHOWN = 200  # steps that the papers draw
FAR = 1e6  # size of the weights of the far starts


def of(evidence: Evidence, name: str, **values: Any) -> Evidence:
    """The rows of one part."""
    return evidence.where(part=name, **values)


def marks(steps: int) -> list[int]:
    """Every step that is drawn, then ten in every decade, and a neighbour of each power of ten, to
    see the length of a single step.
    """
    late = (
        np.rint(np.geomspace(SHOWN, 1e9, 1 + round(10 * np.log10(1e9 / SHOWN))))
        .astype(np.int64)
        .tolist()
    )
    pairs = [mark for power in range(3, 9) for mark in (10**power - 1, 10**power)]
    return [mark for mark in (*range(SHOWN + 1), *late, *pairs) if mark <= steps]


def model(problem: Toy, starts: ArrayLike, **options: Any) -> Attention:
    """Prompt attention on a toy with a fixed head, one run per start."""
    assert problem.lifted is not None
    points = np.asarray(starts, dtype=np.float64)
    return Attention.prompt(
        problem.lifted,
        problem.value_head,
        keys=problem.keys,
        runs=len(points),
        init=points,
        **options,
    )


def descend(
    problem: Toy, starts: ArrayLike, steps: int, lr: float, *, normalize: bool = True
) -> Trajectory:
    """Gradient descent from every start, recorded at :func:`marks`."""
    assert problem.lifted is not None
    attention = model(problem, starts)
    optimizer = SteepestDescent(attention.parameters(), lr=lr, normalize=normalize)
    return train(attention, problem.lifted, optimizer, steps, AtSteps(marks(steps)))


def course(trajectory: Trajectory, targets: Mapping[str, ArrayLike]) -> Columns:
    """One row per run: its steps, prompts, probabilities, and the direction gap to every target as
    ``gap_<name>``.

    ``step_length`` is the least and largest length of the steps between neighbouring records; NaN
    where a number of the run is not finite.
    """
    runs = trajectory.loss.shape[1]
    chosen = np.swapaxes(trajectory.selected[-1:], 0, 1)[:, 0]
    columns = {
        "step": np.tile(trajectory.steps, (runs, 1)),
        "prompt": np.swapaxes(trajectory.W[..., 0], 0, 1),
        "norm": trajectory.norm.T,
        "loss": trajectory.loss.T,
        "log_gradient": trajectory.log_gradient_norm.T,
        "probability": np.swapaxes(trajectory.softmax_probability, 0, 1),
        "selected": chosen,
        "step_length": _step_length(trajectory),
    }
    gaps = {
        f"gap_{name}": trajectory.direction_gap(np.asarray(target)[:, None]).T
        for name, target in targets.items()
    }
    return {**columns, **gaps}


def _step_length(trajectory: Trajectory) -> NDArray[Any]:
    neighbours = np.flatnonzero(np.diff(trajectory.steps) == 1)
    length = np.linalg.norm(np.diff(trajectory.W, axis=0), axis=(-2, -1))[neighbours]
    numbers = (
        trajectory.W,
        trajectory.loss,
        trajectory.log_gradient_norm,
        trajectory.softmax_probability,
    )
    finite = np.logical_and.reduce(
        [
            np.isfinite(array).reshape(len(array), len(length[0]), -1).all(axis=(0, 2))
            for array in numbers
        ]
    )
    return np.where(
        finite[:, None], np.stack([length.min(axis=0), length.max(axis=0)], axis=1), np.nan
    )


def prompt_path(
    problem: Toy, radii: Sequence[float], solution: MarginSolution, cone: Cone | None = None
) -> Columns:
    """The regularisation path of the prompt, one row per radius: its angle in degrees, and the
    direction gap to a solution.
    """
    assert problem.lifted is not None
    path = regularization_path(
        problem.lifted,
        problem.value_head,
        radii=radii,
        parameterization="prompt",
        keys=problem.keys,
        cone=cone,
    )
    return {
        "radius": path.radii,
        "angle": np.degrees(np.arctan2(path.W[:, 1, 0], path.W[:, 0, 0])),
        "path_gap": path.direction_gap(solution),
        "below": np.isneginf(path.log_excess),
    }


def far_starts(
    problem: Toy, count: int, target: ArrayLike, lr: float = 1e4, steps: int = 2000
) -> Columns:
    """Normalised descent from ``count`` prompts of size a million, evenly around the plane, with
    steps in proportion.
    """
    assert problem.lifted is not None
    angles = np.linspace(0.0, 2.0 * np.pi, count, endpoint=False) + 0.1
    attention = model(problem, FAR * np.stack([np.cos(angles), np.sin(angles)], axis=1))
    trajectory = train(
        attention,
        problem.lifted,
        SteepestDescent(attention.parameters(), lr=lr),
        steps,
        AtSteps([1, steps - 1]),
    )
    columns = course(trajectory, {"far": target})
    return {"far_length": columns["step_length"] / lr, "far_gap": columns["gap_far"][:, -1]}


def ascent_cosines(problem: Toy, target: ArrayLike, points: int, seed: int = 0) -> Columns:
    r"""Cosines between :math:`-\nabla L(p)` and a prompt at random ``p``, of sizes 0.1 to 1000, and
    the bound of :func:`field_bound`.
    """
    rng = np.random.default_rng(seed)
    p = rng.standard_normal((points, 2))
    p *= (10.0 ** rng.uniform(-1, 3, points) / np.linalg.norm(p, axis=1))[:, None]
    attention = model(problem, p)
    assert problem.lifted is not None
    attention.loss(problem.lifted, LogScale()).sum().backward()
    gradient = attention.weights["p"].grad
    assert gradient is not None
    down = -gradient[..., 0].numpy()
    goal = np.asarray(target)
    cosine = down @ goal / (np.linalg.norm(down, axis=1) * np.linalg.norm(goal))
    return {"cosine": cosine, "bound": np.full(points, field_bound(problem, goal))}


def field_bound(problem: Toy, target: NDArray[Any]) -> float:
    r""":math:`1/(\|p^{mm}\|\max\|\delta_{it}\|)`, a lower bound on the cosine when all non-optimal
    scores of a sequence are equal.

    Then :math:`-\nabla L=\sum c_{it}\delta_{it}` with :math:`c\ge0`, whose product with
    :math:`p^{mm}` is at least :math:`\sum c_{it}` and whose norm is at most
    :math:`\sum c_{it}\max\|\delta_{it}\|`.
    """
    assert problem.scores is not None
    best = problem.scores.argmax(axis=1)
    rows = np.arange(problem.data.n)
    widest = np.linalg.norm(
        problem.data.tokens[rows, best][:, None] - problem.data.tokens, axis=-1
    ).max()
    return float(1.0 / (np.linalg.norm(target) * widest))


def at(evidence: Evidence, column: str, step: int) -> NDArray[Any]:
    """A column at one step; every run of the evidence has the same records."""
    (place,) = np.flatnonzero(evidence["step"][0] == step)
    return evidence[column][:, place]


def no_stall(lr: float) -> Claim:
    """No number is ever NaN or infinite, and every step has the length it should have, at a hundred
    thousand steps as at the first.
    """
    return Claim(
        "X1",
        "No run produces NaN or stalls: every recorded step of normalised descent, the last too,"
        f" has length {lr:g}.",
        "ours",
        lambda e: np.abs(of(e, "descent")["step_length"] / lr - 1.0).max(axis=1),
        at_most(1e-9, "relative; rounding of prompts of norm 1e4 is 2e-11 of a step"),
    )


def still_closer(column: str, early: int, late: int, part_name: str = "descent") -> Claim:
    """The gap at a late step against that at an earlier one."""
    return Claim(
        "X2",
        f"The direction after {late} steps is closer to its limit than after {early}.",
        "ours",
        lambda e: at(of(e, part_name), column, late) / at(of(e, part_name), column, early),
        at_most(
            0.02,
            f"the angle falls as 1/k, so the gap to {(early / late) ** 2:g} of itself; twice that"
            " for a logarithm",
        ),
    )


def harmless(gap: float, reason: str) -> tuple[Claim, Claim]:
    """Claims on the part of :func:`far_starts`."""
    return (
        Claim(
            "X3",
            "Prompts of norm a million are harmless: every number is finite and every step has its"
            " length.",
            "ours",
            lambda e: np.abs(of(e, "far")["far_length"] - 1.0).max(axis=1),
            at_most(1e-9, "relative; rounding of prompts of norm 1e7 is 2e-13 of a step of 1e4"),
        ),
        Claim(
            "X4",
            "From there descent with steps of 10000 still finds the max-margin direction.",
            "ours",
            lambda e: of(e, "far")["far_gap"],
            at_most(gap, reason),
        ),
    )


def draw_paths(ax: Axes, paths: NDArray[Any], colours: Sequence[str], last: int = SHOWN) -> None:
    """Trajectories ``(runs, records, 2)`` with a dot at every tenth step, as in the papers."""
    for path, colour in zip(paths, colours, strict=True):
        ax.plot(
            *path[: last + 1].T,
            color=colour,
            linewidth=1.1,
            marker="o",
            markersize=2.4,
            markevery=10,
        )


def draw_ray(ax: Axes, direction: ArrayLike, colour: str, **style: Any) -> None:
    """The ray of a direction from the origin, out of the picture."""
    unit = np.asarray(direction) / np.linalg.norm(direction)
    ax.plot(
        *np.stack([np.zeros(2), 1e3 * unit], axis=1),
        color=colour,
        **{"linestyle": "--", "linewidth": 1.2, **style},
    )


def window(ax: Axes, horizontal: tuple[float, float], vertical: tuple[float, float]) -> None:
    """The papers' axes: prompt coordinates with the same scale."""
    ax.set(xlim=horizontal, ylim=vertical, aspect="equal", xlabel="p₁")
    ax.set_ylabel("p₂", rotation=0)


def draw_gaps(ax: Axes, x: NDArray[Any], gaps: NDArray[Any], colour: str, **style: Any) -> None:
    """One line per run; gaps below 1e-18 are drawn there."""
    for line, gap in zip(np.atleast_2d(x), np.atleast_2d(gaps), strict=True):
        ax.plot(line, np.maximum(gap, 1e-18), color=colour, **{"linewidth": 1.1, **style})


def logarithmic_axes(ax: Axes, x: tuple[float, float], y: tuple[float, float]) -> None:
    """Both axes logarithmic, with these limits."""
    for axis, limits, set_limits in ((ax.xaxis, x, ax.set_xlim), (ax.yaxis, y, ax.set_ylim)):
        logarithmic(axis, np.array(limits))
        set_limits(*limits)
