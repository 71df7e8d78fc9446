"""The figure of nine pairs: divergences of every potential's descent from the solutions of every
norm.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from attsvm.claims import Evidence
from attsvm_papers.md.mirror_runs import EXACT, POTENTIALS, PUBLISHED

if TYPE_CHECKING:
    from attsvm.report.style import Picture


def plot_pairs(evidence: Evidence) -> Iterator[Picture]:
    """Both arithmetics; solutions of another run's tokens above, as published, and of the same
    tokens below.
    """
    from attsvm.report.style import ATTENTION, BEST, FAINT, TRAINED, canvas, logarithmic, render

    colours = dict(zip(POTENTIALS, (ATTENTION, TRAINED, BEST), strict=True))
    titles = {"code": "solution of the other run's tokens", "same": "solution of the same tokens"}
    with canvas(5.4, 2, 3, width=9.2, sharex="col", sharey="row") as (figure, axes):
        for row, protocol in enumerate(("code", "same")):
            for k, p in enumerate(POTENTIALS):
                ax = axes[row, k]
                seen = []
                for mode, style in ((EXACT, "-"), (PUBLISHED, "--")):
                    rows = evidence.where(mode=mode)
                    step, curves = rows["step"][0, k], rows[protocol][:, k]
                    for column, q in enumerate(POTENTIALS):
                        mean = curves[:, column].mean(axis=0)
                        ax.plot(
                            step, mean, style, color=colours[q], linewidth=1.9 if p == q else 1.0
                        )
                        seen.append(mean)
                        if p == q and mode == EXACT:
                            low, high = np.quantile(curves[:, column], (0.16, 0.84), axis=0)
                            ax.fill_between(
                                step, low, high, color=colours[q], alpha=0.12, linewidth=0
                            )
                logarithmic(ax.yaxis, np.concatenate(seen))
                ax.set_ylim(5e-4, 1.6)
                ax.set_xlim(0, None)
                ax.set_title(f"descent with p = {p:g}" if row == 0 else "")
                if row == 1:
                    ax.set_xlabel("step")
            axes[row, 0].set_ylabel(f"mean divergence from the\n{titles[protocol]}")
        for q in POTENTIALS:
            axes[0, 0].plot([], [], "-", color=colours[q], label=f"solution of p = {q:g}")
        axes[0, 1].plot([], [], "-", color=FAINT, label="exact arithmetic")
        axes[0, 1].plot([], [], "--", color=FAINT, label="published arithmetic")
        for ax in axes[0, :2]:
            ax.legend(frameon=False, fontsize=8, labelcolor=FAINT, loc="lower left")
        yield render(
            figure,
            "directional-divergence",
            "Every potential finds the solution of its own norm",
            "Mean over seeds; bands: the middle 68 % of the own pair (a few slow runs raise the"
            " mean). Dashed: with the epsilon and the textbook gradient of the released code, which"
            " stop the descent; solid: without. Above, as published, off-diagonal solutions belong"
            " to the tokens of another run; below, all belong to the same tokens.",
            "In all panels the curve of the own norm falls lowest. The dashed ones end in plateaus"
            " where the solid ones fall on.",
        )
