r"""Pictures of data, solutions and trajectories in axes of matplotlib: what ``data.plot()``,
``solution.plot()`` and ``trajectory.plot()`` draw, and what the figures of a report are made of.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attsvm.base.errors import InputError
from attsvm.datasets.attention_data import AttentionData
from attsvm.report.style import (
    BEST,
    FAINT,
    INK,
    PAPER,
    RULE,
    TRAINED,
    course,
    histogram,
)
from attsvm.solvers import MarginSolution

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SEQUENCES = ("#b84a00", "#7a3fa0", "#6b6300", "#b0235f", "#4a5a78")
"""Colours of sequences, the explorer's."""


def axes_of(ax: Axes | None) -> Axes:
    """These axes, or new ones of pyplot."""
    if ax is not None:
        return ax
    import matplotlib.pyplot as plt

    return plt.subplots()[1]


def label_line_ends(axes: Axes, apart: float = 11.0) -> None:
    """The label of every line right of its last point, within the limits of ``y`` and at least
    ``apart`` points below the one above, with a thin line between the two where it had to move.
    """
    from scipy.optimize import isotonic_regression

    ends = [
        (*np.asarray(line.get_xydata(), dtype=float)[-1], line)
        for line in axes.lines
        if not str(line.get_label()).startswith("_")
    ]
    ends = sorted((end for end in ends if np.isfinite(end[1])), key=lambda end: end[1])
    if not ends:
        return
    points = axes.bbox.height / axes.figure.dpi * 72.0
    low, high = axes.get_ylim()
    gap = min(apart * (high - low) / points, (high - low) / len(ends))
    at = np.clip([y for _, y, _ in ends], low, high)
    # the heights nearest to the ends, in squares, that are a gap apart
    steps = gap * np.arange(len(ends))
    heights = np.clip(isotonic_regression(at - steps).x, low, high - steps[-1]) + steps
    moves = np.abs(heights - at) > gap / 4
    right = 14 if moves.any() else 4
    for (x, _, line), y, height, moved in zip(ends, at, heights, moves, strict=True):
        arrow = {
            "arrowstyle": "-",
            "color": line.get_color(),
            "linewidth": 0.5,
            "shrinkA": 0,
            "shrinkB": 0,
            "relpos": (0, 0.5),
        }
        axes.annotate(
            str(line.get_label()),
            (x, y),
            xytext=(right, (height - y) / (high - low) * points),
            textcoords="offset points",
            va="center",
            color=line.get_color(),
            arrowprops=arrow if moved else None,
        )


def _planar(what: str, shape: tuple[int, ...]) -> None:
    if shape[-1] != 2:
        raise InputError(
            f"{what} has {shape[-1]} features per token, and a picture of the plane needs two;"
            " project it to two features first"
        )


def _square(axes: Axes, points: NDArray[Any], names: str) -> None:
    reach = 1.15 * float(np.abs(points).max(initial=0.0)) or 1.0
    axes.set_xlim(-reach, reach)
    axes.set_ylim(-reach, reach)
    axes.set_aspect("equal")
    axes.set_xlabel(f"{names}₁")
    axes.set_ylabel(f"{names}₂", rotation=0)


def data(axes: Axes, data: AttentionData, tokens: ArrayLike | None = None) -> None:
    """Tokens in the plane, one colour per sequence, the selected ones filled and joined to their
    rivals.
    """
    _planar("the data", data.tokens.shape)
    if data.tokens.ndim != 3:
        raise InputError(
            f"the data have shape {data.tokens.shape}; choose one of the instances to draw it"
        )
    selected = None if tokens is None else np.asarray(tokens)
    if selected is not None and (
        selected.shape != (data.n,)
        or not data.mask[np.arange(data.n), np.clip(selected, 0, data.T - 1)].all()
        or (selected != np.clip(selected, 0, data.T - 1)).any()
    ):
        raise InputError(
            f"tokens must be {data.n} positions of visible tokens, one per sequence, and they are"
            f" {selected.tolist()}"
        )
    for i in range(data.n):
        colour = SEQUENCES[i % len(SEQUENCES)]
        points = data.tokens[i][data.mask[i]]
        if selected is not None:
            best = data.tokens[i, int(selected[i])]
            for point in points:
                axes.plot(*np.stack([best, point], axis=1), color=colour, linewidth=0.7, alpha=0.5)
        axes.plot(
            *points.T, "o", color=colour, markerfacecolor=PAPER, markersize=6, markeredgewidth=1.3
        )
        if selected is not None:
            axes.plot(*best, "o", color=colour, markersize=7)
    _square(axes, data.tokens[data.mask], "x")
    axes.set_title("tokens" + (", selected ones filled" if selected is not None else ""))


def solution(axes: Axes, solution: MarginSolution) -> None:
    """The half-planes of a prompt in the plane; for other weights the smallest margin of every
    sequence.
    """
    if solution.margins.shape == (2, 1):
        _half_planes(axes, solution)
        return
    if np.isinf(solution.norm):
        raise InputError(
            "an infeasible programme has no margins to draw; solution.conflict() names the tokens"
            " that contradict each other"
        )
    margins, scale = solution.margins, solution.margin or 1.0
    values = margins(solution.W) * scale
    filled = np.diff(margins.offsets) > 0
    smallest = np.minimum.reduceat(values, margins.offsets[:-1][filled]) / scale
    high = max(float(np.quantile(smallest, 0.98)), 1.0)
    histogram(axes, smallest, min(float(smallest.min()), 0.0), high)
    axes.axvline(1.0, color=INK, linewidth=0.9, linestyle=(0, (3, 2)))
    axes.set_xlabel("smallest margin of a sequence, best margin = 1")
    axes.set_ylabel("sequences")
    axes.set_title("margins at the max-margin weights")


def _half_planes(axes: Axes, solution: MarginSolution) -> None:
    margins = solution.margins
    edges = margins.differences * margins.queries[margins.sequence]
    decisive = np.zeros(margins.m, dtype=bool)
    decisive[solution.support] = True
    best = solution.W[:, 0]
    lengths = np.linalg.norm(edges, axis=1)
    near = edges / np.where(lengths > 0, lengths, 1.0)[:, None] ** 2 * margins.rhs[:, None]
    finite = near[(lengths > 0) & decisive] if decisive.any() else near[lengths > 0]
    _square(axes, 1.4 * np.vstack([finite, best[None]]), "w")
    reach = 3.0 * max(axes.get_xlim()[1], 1e-300)
    for edge, point, length, decides in zip(edges, near, lengths, decisive, strict=True):
        if length == 0:
            continue
        along, away = np.array([-edge[1], edge[0]]) / length, edge / length
        line = np.stack([point - reach * along, point + reach * along])
        colour, width = (BEST, 1.6) if decides else (FAINT, 0.7)
        axes.plot(*line.T, color=colour, linewidth=width)
        if decides:
            forbidden = np.vstack([line, line[::-1] - 2.0 * reach * away])
            axes.fill(*forbidden.T, color=colour, alpha=0.1, linewidth=0)
    axes.plot(0, 0, "+", color=FAINT)
    if np.isinf(solution.norm):
        axes.set_title("no prompt is in all of these half-planes")
        return
    axes.plot(*np.stack([np.zeros(2), best], axis=1), color=INK, linewidth=1.8)
    axes.plot(*best, "o", color=INK)
    axes.set_title(f"max-margin prompt, {solution.geometry.title}")


_QUANTITIES = {
    "loss": ("loss", False),
    "probability": ("softmax probability of the selected token, mean", False),
    "norm": ("Frobenius norm of the weights", True),
    "gap": ("direction gap, 1 − cosine to the target", True),
}


def trajectory(
    axes: Axes, trajectory: Any, quantity: str | None = None, target: Any = None
) -> None:
    """One quantity against the steps, one line per run, or the path of a prompt in the plane."""
    quantity = quantity or ("loss" if target is None else "gap")
    if quantity == "path":
        _path(axes, trajectory, target)
        return
    if quantity not in _QUANTITIES:
        raise InputError(
            f"there is no picture of {quantity!r}; choose one of"
            f" {', '.join((*_QUANTITIES, 'path'))}"
        )
    if quantity == "gap":
        if target is None:
            raise InputError(
                "the direction gap needs a target; give a solution or weights: target=solution"
            )
        if isinstance(target, MarginSolution) and not target.has_weights:
            raise InputError(f"the target has no weights to compare with ({target.status})")
        _require_snapshots(trajectory)
        values = trajectory.direction_gap(target)
    elif quantity == "probability":
        extra = tuple(range(trajectory.loss.ndim, trajectory.softmax_probability.ndim))
        values = trajectory.softmax_probability.mean(axis=extra)
    else:
        values = getattr(trajectory, quantity)
    title, over = _QUANTITIES[quantity]
    is_drawn = course(axes, trajectory.steps.astype(float), values, logarithmic_values=over)
    if not is_drawn.any():
        raise InputError(
            f"there is no record of the {quantity} that a logarithmic axis can show; train for at"
            " least one step"
        )
    axes.set_xlabel("step")
    axes.set_title(title)


def _path(axes: Axes, trajectory: Any, target: Any) -> None:
    _require_snapshots(trajectory)
    if trajectory.W.shape[-2:] != (2, 1):
        raise InputError(
            f"the weights have shape {trajectory.W.shape[-2:]}, and only prompts in the plane,"
            " (2, 1), have a path to draw; choose another quantity"
        )
    points = trajectory.W[..., 0].reshape(len(trajectory.W), -1, 2)
    for run in np.swapaxes(points, 0, 1):
        axes.plot(*run.T, color=TRAINED)
        axes.plot(*run[0], "o", color=INK, markersize=4)
    axes.set_aspect("equal", adjustable="datalim")
    axes.set_xlabel("w₁")
    axes.set_ylabel("w₂", rotation=0)
    if target is not None:
        goal = np.asarray(getattr(target, "W", target), dtype=float).reshape(2)
        longest = float(np.linalg.norm(points, axis=-1).max())
        reach = longest / (math.hypot(*goal) or 1.0)
        axes.plot(*np.stack([np.zeros(2), reach * goal], axis=1), "--", color=BEST, linewidth=1.2)
    axes.axhline(0, color=RULE, linewidth=0.7, zorder=0)
    axes.axvline(0, color=RULE, linewidth=0.7, zorder=0)
    axes.set_title("path of the prompt")


def _require_snapshots(trajectory: Any) -> None:
    if len(trajectory.W) != len(trajectory.steps):
        raise InputError(
            "the trajectory holds the final weights only; train with snapshots of the weights to"
            " draw their course"
        )
