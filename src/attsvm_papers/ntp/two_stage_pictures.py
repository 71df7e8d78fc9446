"""Pictures of both stages of two-stage training: the six panels of the paper, and the rates of
stage 2.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from attsvm.claims import Evidence
from attsvm.report.style import FAINT, Picture, canvas, logarithmic, render
from attsvm_papers.ntp.two_stages import PUBLISHED, band

COLOURS = ("#00639c", "#b84a00")
WORDS = ("no confused tokens", "confused tokens")


def plot(evidence: Evidence) -> Iterator[Picture]:
    """Both pictures, of evidence with the columns of ntp-3."""
    yield _published(evidence)
    yield _rates(evidence)


def _published(evidence: Evidence) -> Picture:
    """The six panels of the paper's figure, over the number of steps on a linear axis."""
    with canvas(4.9, 2, 3, width=8.6) as (figure, axes):
        for index in evidence.levels("kind"):
            rows, colour = evidence.where(kind=index), COLOURS[int(index)]
            step, first = rows["step"][0], rows["output_step"][0]
            seen, early = step <= PUBLISHED, first > 0
            band(axes[0, 0], first, rows["output_loss"], colour)
            band(
                axes[0, 1], first[early], np.maximum(rows["output_error"][:, early], 1e-17), colour
            )
            band(axes[0, 2], first, rows["output_norm"], colour)
            band(axes[1, 0], step[seen], rows["loss"][:, seen], colour)
            band(axes[1, 1], step[seen], rows["error"][:, seen], colour)
            band(axes[1, 2], step[seen], rows["norm"][:, seen], colour)
            axes[1, 0].plot([], [], color=colour, label=WORDS[int(index)])
        logarithmic(axes[0, 0].yaxis, evidence["output_loss"])
        logarithmic(axes[0, 1].yaxis, np.array([1e-17, 1.0]))
        axes[0, 1].set_ylim(1e-17, 1.0)
        axes[0, 1].text(
            0.5,
            0.55,
            "on the solution's ray\nfrom the first step on",
            transform=axes[0, 1].transAxes,
            ha="center",
            color=FAINT,
        )
        logarithmic(axes[1, 0].yaxis, evidence["loss"])
        axes[1, 0].legend(frameon=False, fontsize=8.5, labelcolor=FAINT)
        axes[1, 1].set_ylim(0, None)
        for row, (stage, matrix) in enumerate((("Stage 1", "output"), ("Stage 2", "query-key"))):
            for ax, title in zip(
                axes[row],
                (f"{stage}: loss", f"{stage}: direction error", f"Norm of the {matrix} matrix"),
                strict=True,
            ):
                ax.set_title(title)
                ax.set_xlabel("step")
        for ax in axes[1]:
            ax.set_xticks([0, 5000, 10_000], ["0", "5000", "10 000"])
        return render(
            figure,
            "both-stages",
            "Two-stage training, as the paper draws it",
            "Loss, direction error and norm of both stages; medians and ranges over seeds. The loss"
            " of stage 2 falls to what stage 1 left.",
            "In both stages the loss falls, the direction error goes to zero and the norm grows"
            " along a line.",
        )


def _rates(evidence: Evidence) -> Picture:
    with canvas(3.0, 1, 3, width=8.6) as (figure, axes):
        for index in evidence.levels("kind"):
            rows, colour = evidence.where(kind=index), COLOURS[int(index)]
            step = rows["step"][0]
            seen, late = step <= PUBLISHED, step >= 10
            band(axes[0], step[late], rows["error"][:, late], colour)
            unit = rows["eta"][:, None] * step[seen] / rows["solution_norm"][:, None]
            for u, gap in zip(unit, rows["log_gap"][:, seen], strict=True):
                axes[1].plot(u, np.exp(gap), color=colour, linewidth=0.8, alpha=0.7)
            band(axes[2], step[late], rows["alignment"][:, late], colour)
            axes[2].plot([], [], color=colour, label=WORDS[int(index)])
        last = float(evidence["step"].max())
        x = np.geomspace(1000, last, 20)
        axes[0].plot(x, 0.6 * (x / 1000.0) ** -0.5, "--", color=FAINT, linewidth=1)
        axes[0].text(
            x[6],
            0.63 * (x[6] / 1000.0) ** -0.5,
            "slope −1/2",
            color=FAINT,
            fontsize=8.5,
            va="bottom",
        )
        logarithmic(axes[0].xaxis, np.array([10.0, last]))
        logarithmic(axes[0].yaxis, np.array([1e-3, 2.0]))
        u = np.array([4.0, 22.0])
        axes[1].plot(u, 3e-3 * np.exp(-u), "--", color=FAINT, linewidth=1)
        axes[1].text(
            10.5, 3e-8, "predicted\nslope", color=FAINT, fontsize=8.5, ha="right", va="top"
        )
        logarithmic(axes[1].yaxis, np.exp(evidence["log_gap"][:, evidence["step"][0] <= PUBLISHED]))
        logarithmic(axes[2].xaxis, np.array([10.0, last]))
        axes[2].set_ylim(0, 1.02)
        axes[2].legend(frameon=False, fontsize=8.5, labelcolor=FAINT, loc="lower right")
        titles = (
            "Direction error",
            "Loss over its floor, every seed",
            "Cosine of −gradient and solution",
        )
        for ax, title, label in zip(
            axes, titles, ("step", "step × step size / |W*|", "step"), strict=True
        ):
            ax.set_title(title)
            ax.set_xlabel(label)
        return render(
            figure,
            "rates",
            "The rates of stage 2",
            "The direction error falls like t to the power -1/2 and then faster; over its floor the"
            " loss falls at the predicted rate.",
            "On log axes the error falls ever more steeply; the loss gaps of all seeds run parallel"
            " to the predicted line.",
        )
