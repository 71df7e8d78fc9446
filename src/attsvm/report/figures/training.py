"""The course of training: the joint stage, then the selection stage with its loss, attention and
norm.
"""

from __future__ import annotations

import numpy as np

from attsvm.report.folder import Run
from attsvm.report.numbers import count, finite, number, percent, threshold
from attsvm.report.plots import course
from attsvm.report.style import (
    ATTENTION,
    FAINT,
    INK,
    RULE,
    TRAINED,
    Picture,
    canvas,
    label_ends,
    logarithmic,
    markers,
    render,
)

_HEIGHT = 2.5


def _from_step_one(steps: np.ndarray) -> np.ndarray:
    """The records that a logarithmic axis can show."""
    return np.flatnonzero(np.isfinite(steps) & (steps > 0))


def joint(run: Run) -> Picture | None:
    """Training and validation loss while head and attention are trained together, with the step
    that was kept.
    """
    columns = run.series("joint_step", "joint_loss", "joint_validation_loss")
    if columns is None:
        return None
    steps, training, validation = columns
    with canvas(_HEIGHT) as (figure, panels):
        axes = panels[0]
        dots = markers(len(steps))
        axes.plot(steps, training, color=TRAINED, marker=dots)
        axes.plot(steps, validation, color=ATTENTION, marker=dots)
        axes.set_title("logistic loss, mean per sequence")
        axes.set_xlabel("step of joint training")
        axes.set_ylim(bottom=0)
        axes.xaxis.set_major_formatter(lambda value, _: count(value))
        axes.locator_params(axis="x", nbins=4, integer=True)
        best = finite(run.at("results.training.best_joint_step"))
        if best is not None:
            axes.axvline(best, color=FAINT, linewidth=0.9, linestyle=(0, (3, 2)))
            low, high = axes.get_xlim()
            left = best > (low + high) / 2
            axes.annotate(
                f"kept: {count(best)}",
                (best, 1.0),
                xycoords=("data", "axes fraction"),
                xytext=(-4 if left else 4, -2),
                textcoords="offset points",
                ha="right" if left else "left",
                va="top",
                color=FAINT,
            )
        label_ends(
            axes, [(training[-1], "training", TRAINED), (validation[-1], "validation", ATTENTION)]
        )
        kept = (
            ""
            if best is None
            else (
                f" The weights of step {count(best)}, where the validation loss is lowest, are the"
                " soft classifier."
            )
        )
        alt = (
            f"Training loss falls from {number(training[0])} to {number(training[-1])}, validation"
            f" loss ends at {number(validation[-1])}."
        )
        return render(
            figure,
            "joint",
            "Joint training",
            "Head and attention are trained together on the training part." + kept,
            alt,
        )


def loss(run: Run) -> Picture | None:
    """Training loss of the selection stage, in which the head is fixed and only the attention
    weights move.
    """
    columns = run.series("trajectory_step", "trajectory_loss")
    if columns is None:
        return None
    steps, values = columns
    with canvas(_HEIGHT) as (figure, panels):
        axes = panels[0]
        shown = course(axes, steps, values)
        if not shown.any():
            return None
        axes.set_title("training loss, mean per sequence")
        axes.set_xlabel("step of the selection stage")
        last = values[shown][-1]
        label_ends(axes, [(last, number(last), TRAINED)])
        caption = (
            "With the head fixed, the loss can only fall by moving attention between tokens; it"
            " levels off at the value of hard selection."
        )
        alt = (
            f"The training loss goes from {number(values[shown][0])} to {number(last)} over"
            f" {count(steps[shown][-1])} steps."
        )
        return render(figure, "loss", "Loss", caption, alt)


def selection(run: Run) -> Picture | None:
    """Mean probability of the selected token, share of saturated sequences, share that selects its
    best token.
    """
    columns = run.series(
        "trajectory_step", "trajectory_probability", "trajectory_saturated", "trajectory_optimal"
    )
    if columns is None:
        return None
    shown = _from_step_one(columns[0])
    if not len(shown):
        return None
    steps, mean, saturated, optimal = (column[shown] for column in columns)
    least = run.at("results.selection.threshold")
    over = "saturated" if finite(least) is None else f"above\n{threshold(least)}"
    with canvas(_HEIGHT) as (figure, panels):
        axes = panels[0]
        axes.axhline(100, color=RULE, linewidth=0.7, zorder=0)
        dots = markers(len(shown))
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


def norm(run: Run) -> Picture | None:
    """Norm of the attention weights, which the theory says grows without bound."""
    columns = run.series("trajectory_step", "trajectory_norm")
    if columns is None:
        return None
    with canvas(_HEIGHT) as (figure, panels):
        axes = panels[0]
        shown = course(axes, columns[0], columns[1], INK, logarithmic_values=True)
        if not shown.any():
            return None
        values = columns[1][shown]
        axes.set_title(f"{run.norm_title} of the weights")
        axes.set_xlabel("step of the selection stage")
        label_ends(axes, [(values[-1], number(values[-1]), INK)])
        alt = f"The norm goes from {number(values[0])} to {number(values[-1])}."
        caption = (
            "In theory the weights grow without limit while their direction converges; "
            "the larger they are, the closer softmax is to picking one token."
        )
        return render(figure, "norm", "Norm of the weights", caption, alt)
