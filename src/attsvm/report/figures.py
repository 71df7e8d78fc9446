"""The figures of a report, one function each; a function returns None when the run has nothing to
draw in it.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable
from typing import Any

import numpy as np

from attsvm.report.printing import MINUS, count, degrees, finite, number, percent, threshold
from attsvm.report.run_contents import Run
from attsvm.report.style import (
    ATTENTION,
    BEST,
    FAINT,
    INK,
    PAPER,
    RULE,
    TRAINED,
    Picture,
    canvas,
    course,
    histogram,
    label_ends,
    logarithmic,
    markers,
    render,
)
from attsvm.report.token_sequences import view_of

ATTENTION_NAMES = ("soft", "hard", "margin")


def accuracy_rows(run: Run) -> list[dict[str, Any]]:
    """The entries of ``results.accuracy`` with a test accuracy, best first."""
    entries = run.objects("results.accuracy")
    known = [entry for entry in entries if finite(entry.get("test")) is not None]
    return sorted(known, key=lambda entry: -float(entry["test"]))


def accuracy(run: Run) -> Picture | None:
    """One line per method: test accuracy filled, training accuracy open, the rest as a faint
    tick.
    """
    entries = accuracy_rows(run)
    if not entries:
        return None
    titles = [
        textwrap.fill(
            str(entry.get("title") or entry.get("name")), 20, max_lines=2, placeholder=" …"
        )
        for entry in entries
    ]
    lines = sum(1 + title.count("\n") for title in titles)
    with canvas(0.95 + 0.2 * lines + 0.13 * len(entries)) as (figure, panels):
        axes = panels[0]
        lowest = 1.0
        for row, entry in enumerate(entries):
            ours = entry.get("name") in ATTENTION_NAMES
            colour = TRAINED if ours else FAINT
            test, train = float(entry["test"]), finite(entry.get("train"))
            axes.axhline(row, color=RULE, linewidth=0.7, zorder=0)
            spread = finite(entry.get("std")) or 0.0
            if spread > 0:
                axes.plot(
                    [max(0, test - spread), min(1, test + spread)],
                    [row, row],
                    color=colour,
                    linewidth=3,
                    alpha=0.45,
                )
            if train is not None:
                axes.plot(
                    train,
                    row,
                    "o",
                    markersize=6,
                    color=colour,
                    markerfacecolor=PAPER,
                    markeredgewidth=1.1,
                    zorder=2,
                )
            axes.plot(test, row, "o", markersize=6.5, color=colour, zorder=3)
            lowest = min(lowest, test - spread, test if train is None else train)
            axes.text(
                1.03,
                row,
                percent(test),
                transform=axes.get_yaxis_transform(),
                va="center",
                color=TRAINED if ours else INK,
                weight="bold" if ours else "normal",
            )
        floor = max(0.0, min(0.5, int(lowest * 10) / 10))
        axes.set_xlim(floor - 0.015, 1.015)
        step = 0.1 if floor >= 0.4 else 0.2 if floor >= 0.2 else 0.25
        ticks = [1 - k * step for k in range(int((1 - floor) / step + 1e-9) + 1)]
        axes.set_xticks(ticks, [f"{100 * value:.0f}" for value in ticks])
        axes.set_yticks(range(len(entries)), titles)
        axes.set_ylim(len(entries) - 0.45, -0.55)
        axes.tick_params(axis="y", length=0, labelcolor=INK)
        axes.spines["left"].set_visible(False)
        axes.set_xlabel("accuracy, % of sequences")
        axes.set_title("● test\u2003○ training", color=FAINT)
        caption = (
            "Share of sequences whose label is predicted correctly. The test part takes no part in"
            " training or in choosing weights."
        )
        if any(finite(entry.get("std")) for entry in entries):
            caption += " Bars: one standard deviation over repetitions."
        alt = (
            "Test accuracy: "
            + "; ".join(
                f"{entry.get('title') or entry.get('name')} {percent(entry['test'])}"
                for entry in entries
            )
            + "."
        )
        return render(figure, "accuracy", "Accuracy beside the baselines", caption, alt)


_HEIGHT = 2.5  # inches of one panel, at the width of the page


def loss(run: Run) -> Picture | None:
    """Training loss of the selection stage, in which the head is fixed and only the attention
    weights move.
    """
    caption = (
        "With the head fixed, the loss can only fall by moving attention between tokens; it levels"
        " off at the value of the selected tokens alone."
    )
    return _course(run, "loss", "Loss", "training loss, mean per sequence", TRAINED, caption)


def norm(run: Run) -> Picture | None:
    """Norm of the attention weights, which the theory says grows without bound."""
    caption = (
        "In theory the weights grow without limit while their direction converges; "
        "the larger they are, the closer softmax is to picking one token."
    )
    title = f"{run.norm_title} of the weights"
    return _course(run, "norm", "Norm of the weights", title, INK, caption, logarithmic_values=True)


def _course(
    run: Run,
    name: str,
    heading: str,
    title: str,
    colour: str,
    caption: str,
    logarithmic_values: bool = False,
) -> Picture | None:
    """One recorded number of the selection stage against its steps."""
    columns = run.series("trajectory_step", f"trajectory_{name}")
    if columns is None:
        return None
    with canvas(_HEIGHT) as (figure, panels):
        is_drawn = course(
            panels[0], columns[0], columns[1], colour, logarithmic_values=logarithmic_values
        )
        if not is_drawn.any():
            return None
        steps, values = (column[is_drawn] for column in columns)
        panels[0].set_title(title)
        panels[0].set_xlabel("step of the selection stage")
        label_ends(panels[0], [(values[-1], number(values[-1]), colour)])
        alt = (
            f"{title}: from {number(values[0])} to {number(values[-1])} over {count(steps[-1])}"
            " steps."
        )
        return render(figure, name, heading, caption, alt)


def selection(run: Run) -> Picture | None:
    """Mean probability of the selected token, share of saturated sequences, share that selects its
    best token.
    """
    columns = run.series(
        "trajectory_step", "trajectory_probability", "trajectory_saturated", "trajectory_optimal"
    )
    if columns is None:
        return None
    # the records that a logarithmic axis can show
    finite_rows = np.flatnonzero(np.isfinite(columns[0]) & (columns[0] > 0))
    if not len(finite_rows):
        return None
    steps, mean, saturated, optimal = (column[finite_rows] for column in columns)
    least = run.at("results.selection.threshold")
    over = "saturated" if finite(least) is None else f"above\n{threshold(least)}"
    with canvas(_HEIGHT) as (figure, panels):
        axes = panels[0]
        axes.axhline(100, color=RULE, linewidth=0.7, zorder=0)
        dots = markers(len(finite_rows))
        axes.plot(
            steps, 100 * optimal, color=FAINT, linewidth=1.1, linestyle=(0, (4, 2)), marker=dots
        )
        axes.plot(steps, 100 * saturated, color=TRAINED, marker=dots)
        axes.plot(steps, 100 * mean, color=ATTENTION, marker=dots)
        axes.set_ylim(-2, 104)
        axes.set_yticks([0, 25, 50, 75, 100])
        axes.set_title("%, over training sequences")
        axes.set_xlabel("step of the selection stage")
        logarithmic(axes.xaxis, steps)
        ends = [
            (100 * mean[-1], "mean\nprobability", ATTENTION),
            (100 * saturated[-1], over, TRAINED),
            (100 * optimal[-1], "highest\nscore", FAINT),
        ]
        label_ends(axes, ends, spacing=0.095)
        caption = (
            "Mean softmax probability of the selected token; share of sequences that give it at"
            f" least {threshold(least)}; share whose selected token has the highest score under the"
            " head (dashed)."
        )
        alt = (
            f"At the end: mean probability {percent(mean[-1])}, saturated {percent(saturated[-1])},"
            f" highest score {percent(optimal[-1])}."
        )
        return render(figure, "selection", "Attention on the selected token", caption, alt)


def slope(steps: np.ndarray, gaps: np.ndarray) -> float | None:
    """Least-squares slope of log gap against log step over the last decade of steps; None with
    fewer than four records there.
    """
    late = steps >= steps[-1] / 10
    if late.sum() < 4:
        return None
    return float(np.polyfit(np.log(steps[late]), np.log(gaps[late]), 1)[0])


_EXACT = "Zero would mean that training points exactly where the margin programme says."
_MEASURES = {
    "cosine": (
        "Direction gap",
        "direction gap, 1 − cosine to the max-margin weights",
        _EXACT,
        "direction gap",
    ),
    "divergence": (
        "Direction gap",
        "Bregman divergence to the max-margin direction",
        _EXACT,
        "divergence",
    ),
    "margin": (
        "Margin short of the best",
        "shortfall, 1 − margin over best margin",
        "Zero would mean that no weights of the same norm have a larger margin; several directions"
        " may.",
        "shortfall",
    ),
}
"""What a measure is called: heading, title, what zero means, and its name in a sentence."""


def direction(run: Run) -> Picture | None:
    """Distance against iterations, both logarithmic; for angles with the one to which the solver
    knows the target.
    """
    measure = run.at("results.direction.measure") or "cosine"
    heading, title, zero, name = _MEASURES[measure]
    columns = run.series(
        "trajectory_step",
        "trajectory_direction_gap" if measure == "cosine" else "trajectory_distance",
    )
    if columns is None:
        return None
    with canvas(2.75) as (figure, panels):
        axes = panels[0]
        is_drawn = course(axes, columns[0], columns[1], logarithmic_values=True)
        if not is_drawn.any():
            return None
        steps, gaps = (column[is_drawn] for column in columns)
        axes.set_title(title)
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
        caption = zero
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
            f"The {name} goes from {number(gaps[0], 2)} to {number(gaps[-1], 2)} over"
            f" {count(steps[-1])} steps."
        )
        if late is not None and abs(late) >= 0.005:
            power = f"{MINUS if late < 0 else ''}{abs(late):.2f}"
            caption += (
                f" Over the last factor of ten in steps the {name} changes like steps to the"
                f" power {power}."
            )
        return render(figure, "direction", heading, caption, alt)


def margins(run: Run) -> Picture | None:
    """Histograms of the smallest margin of each sequence: at the best direction above, at the
    trained direction below.
    """
    columns = run.series("best_margins", "trained_margins")
    if columns is None:
        return None
    unit = run.margin or 1.0
    best, trained = (column[np.isfinite(column)] / unit for column in columns)
    both = np.concatenate([best, trained])
    if not len(best) or not len(trained):
        return None
    low, high = (
        min(float(both.min()), 0.0),
        max(float(np.quantile(both, 0.98)), 1.0 if run.margin else 0.0),
    )
    high = high if high > low else low + 1.0
    beyond = int((both > high).sum())
    with canvas(3.1, rows=2, sharex=True) as (figure, panels):
        for axes, values, colour, name in (
            (panels[0], best, BEST, "max-margin direction"),
            (panels[1], trained, TRAINED, "trained direction"),
        ):
            histogram(axes, values, low, high, colour)
            axes.set_title(name, color=colour)
            if run.margin:
                axes.axvline(1.0, color=INK, linewidth=0.9, linestyle=(0, (3, 2)))
            if low < 0:
                axes.axvline(0.0, color=RULE, linewidth=0.9, zorder=0)
        if run.margin:
            panels[0].annotate(
                "certified best" if run.at("results.margin.hard") is not False else "1 / norm",
                (1.0, 1.0),
                xycoords=("data", "axes fraction"),
                xytext=(4, -1),
                textcoords="offset points",
                va="top",
                color=INK,
            )
        panels[1].set_xlabel(
            "smallest margin of a sequence" + (", best margin = 1" if run.margin else "")
        )
        figure.supylabel("training sequences", color=FAINT, fontsize=9.5)
        hard = run.at("results.margin.hard") is not False
        elsewhere = (
            "no direction has it farther"
            if run.at("results.direction.measure") == "margin"
            else "at any other direction the smallest lies below"
        )
        caption = (
            f"The best direction pushes the smallest margin as far right as it can go; {elsewhere}."
            if run.margin and hard
            else f"Margins at weights of {run.norm_title} one."
        )
        below = int((trained < 0).sum())
        if below:
            caption += (
                f" At the trained direction {count(below)} of {count(len(trained))} lie below zero,"
                " where a rival leads."
            )
        if beyond:
            caption += f" The last bar gathers all values above {number(high, 2)}."
        alone = len(columns[0]) - len(best)
        if alone:
            caption += (
                f" {count(alone)} sequences with a single token have no margin and are left out."
            )
        smallest = (
            f"the smallest is {number(float(best.min()))} at the best and"
            f" {number(float(trained.min()))} at the trained direction"
        )
        alt = (
            f"Two histograms over {count(len(best))} sequences; in units of the best margin"
            f" {smallest}."
        )
        return render(figure, "margins", "Margins, sequence by sequence", caption, alt)


def token_shape(run: Run) -> tuple[int, ...] | None:
    """``(height, width)`` when a token has one feature per pixel, of the whole image or of patches
    of one size; else None.
    """
    features = len(run.arrays.get("head", ()))
    views = [view_of(example) for example in run.examples]
    images = [view for view in views if view.get("kind") == "image"]
    for sizes in (
        {np.shape(view["pixels"]) for view in images},
        {tuple(box[2:]) for view in images for box in view["boxes"]},
    ):
        size = sizes.pop() if len(sizes) == 1 else ()
        if len(size) == 2 and min(size) > 1 and features == size[0] * size[1]:
            return size
    return None


def shortened(name: str) -> str:
    """A class name that fits above a picture."""
    return name if len(name) <= 14 else f"{name[:13]}…"


def weights(run: Run) -> Picture | None:
    """The head, and what attention looks for in each class."""
    shape, by_class = token_shape(run), run.arrays.get("attention_mean")
    if shape is None or by_class is None:
        return None
    patterns = [("head", run.arrays["head"])]
    patterns += [
        (f"attention,\nclass {shortened(name)}", row)
        for name, row in zip(run.theory_classes, by_class, strict=True)
    ]
    with canvas(1.95, columns=len(patterns)) as (figure, panels):
        for axes, (name, pattern) in zip(panels, patterns, strict=True):
            size = float(np.abs(pattern).max()) or 1.0
            axes.imshow(
                pattern.reshape(shape), cmap="PuOr", vmin=-size, vmax=size, interpolation="nearest"
            )
            axes.set_title(name, fontsize=9)
            axes.set_xticks([])
            axes.set_yticks([])
            axes.spines[:].set_visible(False)
        caption = (
            "A token has one feature per pixel, so weights are pictures. Head: inked purple pixels"
            " speak for the positive class, orange ones for the negative. Attention: the mean of"
            " W z over the training sequences of a class. A token's logit is its inner product with"
            " such a picture, so purple pixels draw attention where they are inked and orange ones"
            " where they are not."
        )
        alt = f"Head and mean attention patterns as images of {shape[0]} by {shape[1]} pixels."
        return render(figure, "weights", "What the weights look for", caption, alt)


FIGURES: tuple[Callable[[Run], Picture | None], ...] = (
    accuracy,
    loss,
    selection,
    norm,
    direction,
    margins,
    weights,
)


def draw(run: Run) -> dict[str, Picture]:
    """Every figure that this run has the data for, by name."""
    pictures = (figure(run) for figure in FIGURES)
    return {picture.name: picture for picture in pictures if picture is not None}


__all__ = ["FIGURES", "draw"]
