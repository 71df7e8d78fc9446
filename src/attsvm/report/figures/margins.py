"""Margins of the sequences, and how few constraints decide the solution."""

from __future__ import annotations

import numpy as np

from attsvm.report.folder import Run
from attsvm.report.numbers import count, number, percent
from attsvm.report.plots import histogram
from attsvm.report.style import (
    BEST,
    FAINT,
    INK,
    RULE,
    TRAINED,
    Picture,
    canvas,
    logarithmic,
    render,
)


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


def concentration(run: Run) -> Picture | None:
    """Cumulative share of the dual over the constraints, largest first: how few of them decide the
    solution.
    """
    columns = run.series("dual")
    if columns is None:
        return None
    dual = np.sort(columns[0][columns[0] > 0])[::-1]
    if len(dual) < 2:
        return None
    share = np.cumsum(dual) / dual.sum()
    rank = np.arange(1, len(dual) + 1)
    half = int(np.searchsorted(share, 0.5)) + 1
    with canvas(2.5) as (figure, panels):
        axes = panels[0]
        axes.plot(rank, 100 * share, color=BEST, marker="o" if len(dual) <= 12 else "")
        logarithmic(axes.xaxis, rank.astype(np.float64))
        axes.set_ylim(0, 104)
        axes.set_yticks([0, 25, 50, 75, 100])
        axes.set_title("% of the dual, largest first")
        axes.set_xlabel("constraints")
        axes.plot(
            [half, half, rank[0]],
            [0, 50, 50],
            color=FAINT,
            linewidth=0.9,
            linestyle=(0, (3, 2)),
            zorder=0,
        )
        axes.plot(half, 50, "o", color=BEST)
        axes.annotate(
            f"half on {count(half)}",
            (half, 50),
            xytext=(7, -9),
            textcoords="offset points",
            color=INK,
        )
        whole = (
            "The max-margin weights are"
            if run.frobenius
            else f"A subgradient of the {run.norm_title} at the max-margin weights is"
        )
        caption = (
            f"{whole} a weighted sum of constraints. {count(len(dual))} of {count(len(columns[0]))}"
            f" have a dual above zero, and {count(half)} of them carry half of it."
        )
        alt = (
            f"{count(half)} constraints carry half of the dual, all {count(len(dual))} carry"
            f" {percent(1.0)}."
        )
        return render(figure, "concentration", "How many constraints decide", caption, alt)
