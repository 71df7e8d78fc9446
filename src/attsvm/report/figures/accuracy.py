"""Accuracy of the attention layer beside its baselines."""

from __future__ import annotations

import textwrap
from typing import Any

from attsvm.report.folder import Run
from attsvm.report.numbers import finite, percent
from attsvm.report.style import FAINT, INK, PAPER, RULE, TRAINED, Picture, canvas, render

ATTENTION_NAMES = ("soft", "soft_final", "hard", "margin")


def rows(run: Run) -> list[dict[str, Any]]:
    """The entries of ``results.accuracy`` with a test accuracy, best first."""
    listed = run.at("results.accuracy")
    entries = (
        [entry for entry in listed if isinstance(entry, dict)] if isinstance(listed, list) else []
    )
    known = [entry for entry in entries if finite(entry.get("test")) is not None]
    return sorted(known, key=lambda entry: -float(entry["test"]))


def accuracy(run: Run) -> Picture | None:
    """One line per method: test accuracy filled, training accuracy open, the rest as a faint
    tick.
    """
    entries = rows(run)
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
        for place, entry in enumerate(entries):
            ours = entry.get("name") in ATTENTION_NAMES
            colour = TRAINED if ours else FAINT
            test, train = float(entry["test"]), finite(entry.get("train"))
            axes.axhline(place, color=RULE, linewidth=0.7, zorder=0)
            spread = finite(entry.get("std")) or 0.0
            if spread > 0:
                axes.plot(
                    [max(0, test - spread), min(1, test + spread)],
                    [place, place],
                    color=colour,
                    linewidth=3,
                    alpha=0.45,
                )
            if train is not None:
                axes.plot(
                    train,
                    place,
                    "o",
                    markersize=6,
                    color=colour,
                    markerfacecolor=PAPER,
                    markeredgewidth=1.1,
                    zorder=2,
                )
            axes.plot(test, place, "o", markersize=6.5, color=colour, zorder=3)
            lowest = min(lowest, test - spread, test if train is None else train)
            axes.text(
                1.03,
                place,
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
