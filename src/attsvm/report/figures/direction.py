"""Distance between the trained weights and the max-margin weights, in the measure of the norm."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from attsvm.report.folder import Run
from attsvm.report.numbers import MINUS, count, degrees, finite, number
from attsvm.report.plots import course
from attsvm.report.style import (
    FAINT,
    TRAINED,
    Picture,
    canvas,
    label_ends,
    logarithmic,
    render,
)


def slope(steps: np.ndarray, gaps: np.ndarray) -> float | None:
    """Least-squares slope of log gap against log step over the last decade of steps; None with
    fewer than four records there.
    """
    late = steps >= steps[-1] / 10
    if late.sum() < 4:
        return None
    x, y = np.log(steps[late]), np.log(gaps[late])
    x = x - x.mean()
    spread = float(x @ x)
    return float(x @ (y - y.mean())) / spread if spread > 0 else None


@dataclass(frozen=True)
class _Words:
    """What a measure is called."""

    heading: str
    title: str
    zero: str
    name: str


_WORDS = {
    "cosine": _Words(
        "Direction gap",
        "direction gap, 1 − cosine to the max-margin weights",
        "Zero would mean that training points exactly where the margin programme says.",
        "direction gap",
    ),
    "divergence": _Words(
        "Direction gap",
        "Bregman divergence to the max-margin direction",
        "Zero would mean that training points exactly where the margin programme says.",
        "divergence",
    ),
    "margin": _Words(
        "Margin short of the best",
        "shortfall, 1 − margin over best margin",
        "Zero would mean that no weights of the same norm have a larger margin; several directions"
        " may.",
        "shortfall",
    ),
}


def direction(run: Run) -> Picture | None:
    """Distance against iterations, both logarithmic; for angles with the one to which the solver
    knows the target.
    """
    measure = run.at("results.direction.measure") or "cosine"
    words = _WORDS[measure]
    columns = run.series(
        "trajectory_step",
        "trajectory_direction_gap" if measure == "cosine" else "trajectory_distance",
    )
    if columns is None:
        return None
    with canvas(2.75) as (figure, panels):
        axes = panels[0]
        shown = course(axes, columns[0], columns[1], logarithmic_values=True)
        if not shown.any():
            return None
        steps, gaps = (column[shown] for column in columns)
        axes.set_title(words.title)
        axes.set_xlabel("step of the selection stage")
        angle = math.degrees(math.acos(max(-1.0, min(1.0, 1.0 - float(gaps[-1])))))
        label_ends(
            axes,
            [
                (
                    gaps[-1],
                    number(gaps[-1], 2) + (f"\n{degrees(angle)}" if measure == "cosine" else ""),
                    TRAINED,
                )
            ],
        )
        caption = words.zero
        resolution = finite(run.at("results.direction.certified_angle_degrees"))
        if resolution:
            floor = 1.0 - math.cos(math.radians(resolution))
            if gaps.min() / 100 < floor:
                axes.axhline(floor, color=FAINT, linewidth=0.9, linestyle=(0, (3, 2)))
                axes.annotate(
                    "known to this",
                    (0.02, floor),
                    xycoords=("axes fraction", "data"),
                    xytext=(0, 2),
                    textcoords="offset points",
                    color=FAINT,
                )
                logarithmic(axes.yaxis, np.append(gaps, floor))
            caption += (
                f" The certificate places the max-margin direction within {degrees(resolution)} of"
                " its true place."
            )
        late = slope(steps, gaps)
        alt = (
            f"The {words.name} goes from {number(gaps[0], 2)} to {number(gaps[-1], 2)} over"
            f" {count(steps[-1])} steps."
        )
        if late is not None and abs(late) >= 0.005:
            power = f"{MINUS if late < 0 else ''}{abs(late):.2f}"
            caption += (
                f" Over the last factor of ten in steps the {words.name} changes like steps to the"
                f" power {power}."
            )
        return render(figure, "direction", words.heading, caption, alt)
