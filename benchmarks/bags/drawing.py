"""The picture of the slides: every method's accuracy on new slides and the AUC of their patches."""

from __future__ import annotations

from pathlib import Path

import graded
import numpy as np

from attsvm.report import style

LABELS = {
    "attsvm standard, linear": "WitnessSVC",
    "attsvm collective": "AttentionSVC",
    "attsvm mean": "mean of the patches",
    "null: attsvm standard, shuffled labels": "WitnessSVC, shuffled labels",
    "gated attention, tuned": "gated attention",
    "linear top-8, tuned": "linear top-8",
}
"""Of methods, as readers of the documentation know them."""


def draw_slides(folder: Path, task: str, to: Path) -> None:
    """Write an SVG with a row for each method that ``folder`` holds, the most accurate on top: a
    dot for each draw of slides, a line at their mean.
    """
    home = folder / "slides"
    methods = sorted({path.stem for path in home.glob("*/*.json")})
    answers = {name: list(graded.answers(folder, "slides", task, name)) for name in methods}
    answers = {name: draws for name, draws in answers.items() if draws}
    order = sorted(answers, key=lambda name: np.mean([draw["accuracy"] for draw in answers[name]]))
    panels = {"accuracy": "Accuracy on new slides", "instance_auc": "AUC of tumour patches"}
    height = 0.8 + 0.32 * len(order)  # inches
    with style.canvas(height, columns=2, width=7.4, sharey=True) as (figure, axes):
        for ax, (key, title) in zip(axes, panels.items(), strict=True):
            for row, name in enumerate(order):
                values = [draw[key] for draw in answers[name] if draw.get(key) is not None]
                colour = style.TRAINED if name.startswith("attsvm") else style.FAINT
                ax.plot(values, [row] * len(values), "o", color=colour, alpha=0.6)
                if values:
                    ax.plot([np.mean(values)] * 2, [row - 0.3, row + 0.3], color=colour)
            ax.axvline(0.5, color=style.FAINT, linewidth=0.7, linestyle=":")
            ax.set(title=title, xlim=(min(ax.get_xlim()[0], 0.4), 1.02))
        axes[0].set_yticks(range(len(order)), [LABELS.get(name, name) for name in order])
        picture = style.render(figure, to.stem, "Slides", "", "accuracy and AUC by method")
    to.write_bytes(picture.svg)
