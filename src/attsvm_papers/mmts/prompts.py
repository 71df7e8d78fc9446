"""Prompts trained on the papers' points in the plane: measures and drawings of every such
experiment.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import ArrayLike, NDArray

from attsvm import (
    Cone,
    MarginSolution,
    Trajectory,
    locally_optimal,
    max_margin,
    prompt_margins,
    regularization_path,
    train,
)
from attsvm.datasets import Toy
from attsvm.dynamics import AtSteps
from attsvm.models import Attention
from attsvm.optim import SteepestDescent

Columns = dict[str, NDArray[Any]]
SHOWN = 200  # steps that the papers draw
RAYS = ((30.0, 100.0), (-5.0, -2.5, 0.0, 2.5, 5.0))
"""Norms of starts near a ray, and their degrees to it. Of ``single_local``, where the attention of
token 3 pulls nine times as strongly as that of token 1, starts at 5 degrees are in the theorem's
cone from a norm of 17 on.
"""


def recorded_steps(steps: int) -> list[int]:
    """Every step that is drawn, then ten in every decade, and a neighbour of each power of ten, to
    see the length of a single step.
    """
    late_steps = (
        np.rint(np.geomspace(SHOWN, 1e9, 1 + round(10 * np.log10(1e9 / SHOWN))))
        .astype(np.int64)
        .tolist()
    )
    pairs = [mark for power in range(3, 9) for mark in (10**power - 1, 10**power)]
    return [mark for mark in (*range(SHOWN + 1), *late_steps, *pairs) if mark <= steps]


def train_prompts(
    problem: Toy, starts: ArrayLike, steps: int, lr: float, *, normalize: bool = True
) -> Trajectory:
    """Gradient descent from every start, recorded at :func:`recorded_steps`."""
    assert problem.lifted is not None
    points = np.asarray(starts, dtype=np.float64)
    model = Attention.prompt(
        problem.lifted, problem.value_head, keys=problem.keys, runs=len(points), init=points
    )
    optimizer = SteepestDescent(model.parameters(), lr=lr, normalize=normalize)
    return train(model, problem.lifted, optimizer, steps, AtSteps(recorded_steps(steps)))


def columns_of_runs(trajectory: Trajectory, targets: Mapping[str, ArrayLike]) -> Columns:
    """One row per run: its steps, prompts, and the direction gap to every target as
    ``gap_<name>``.
    """
    gaps = {
        f"gap_{name}": trajectory.direction_gap(np.asarray(target)[:, None]).T
        for name, target in targets.items()
    }
    prompts = np.swapaxes(trajectory.W[..., 0], 0, 1)
    return {"step": np.tile(trajectory.steps, (len(prompts), 1)), "prompt": prompts, **gaps}


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
        "angle": angles_in_degrees(path.W[..., 0]),
        "path_gap": path.direction_gap(solution),
    }


def descend_near_rays(problem: Toy, token: int, lr: float = 0.1, steps: int = 10_000) -> Columns:
    """Normalised descent from prompts near the max-margin direction of one token of a sequence, see
    :data:`RAYS`: whether that token is locally optimal, whether descent keeps it, and the gap to
    its direction that is left.
    """
    solution = max_margin(prompt_margins(problem.data, [token]))
    x, y = solution.W[:, 0] / solution.norm
    turns = np.radians(RAYS[1])
    units = np.stack(
        [x * np.cos(turns) - y * np.sin(turns), x * np.sin(turns) + y * np.cos(turns)], axis=1
    )
    starts = np.concatenate([size * units for size in RAYS[0]])
    end = train_prompts(problem, starts, steps, lr)
    assert problem.scores is not None
    return {
        "locally": np.full(len(starts), locally_optimal(solution, problem.scores).all()),
        "optimal": end.selected[-1, :, 0] == problem.scores[0].argmax(),
        "ray_gap": end.direction_gap(solution)[-1],
    }


def angles_in_degrees(points: ArrayLike) -> NDArray[np.float64]:
    """Angles of points ``(..., 2)`` to the first axis."""
    x, y = np.moveaxis(np.asarray(points), -1, 0)
    return np.degrees(np.arctan2(y, x))


def draw_prompts(ax: Axes, paths: NDArray[Any], colours: Any, last: int = SHOWN) -> None:
    """Trajectories ``(runs, records, 2)`` with a dot at every tenth step, as in the papers."""
    for path, colour in zip(paths, colours, strict=True):
        ax.plot(*path[: last + 1].T, "o-", color=colour, linewidth=1.1, ms=2.4, markevery=10)


def draw_ray(ax: Axes, direction: ArrayLike, colour: str, **style: Any) -> None:
    """The ray of a direction from the origin, out of the picture."""
    unit = np.asarray(direction) / np.linalg.norm(direction)
    ax.plot(
        *np.stack([np.zeros(2), 1e3 * unit], axis=1),
        color=colour,
        **{"linestyle": "--", "linewidth": 1.2, **style},
    )


def set_window(ax: Axes, horizontal: tuple[float, float], vertical: tuple[float, float]) -> None:
    """The papers' axes: prompt coordinates with the same scale."""
    ax.set(xlim=horizontal, ylim=vertical, aspect="equal", xlabel="p₁")
    ax.set_ylabel("p₂", rotation=0, labelpad=10)


def draw_gaps(ax: Axes, x: NDArray[Any], gaps: NDArray[Any], colour: str, **style: Any) -> None:
    """One line per run; gaps below 1e-18 are drawn there."""
    ax.plot(x.T, np.maximum(gaps, 1e-18).T, color=colour, linewidth=1.1, **style)
