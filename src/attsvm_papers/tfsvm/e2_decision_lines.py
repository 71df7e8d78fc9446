"""Two sequences in the plane with their tokens and decision lines, for W and for factors
(specification E2.2).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from attsvm.claims import Claim, Evidence, at_least, at_most, between, close_to
from attsvm_papers.kit import Cell, Experiment
from attsvm_papers.tfsvm.plane import (
    PUBLISHED,
    SEPARATE,
    TOGETHER,
    W,
    at,
    draw_courses,
    draw_gaps,
    draw_rays,
    trajectories,
)

if TYPE_CHECKING:
    from attsvm.report.style import Picture


@dataclass(frozen=True)
class Parameters:
    """The toy ``tfsvm-2``: n = 2 sequences of T = 5 tokens in the plane."""

    starts: int = 4
    steps: int = 100_000
    lr: float = 0.1


QUICK = Parameters()

# Measured for the specification. The literal data has six digits, which is what the solutions are
# good to.
W_COSINES = {500: 0.9992, 1000: 0.9998, 2000: 0.9999}
SOLUTION_DIGITS = 2e-5
NUCLEAR_NORM, FROBENIUS_NORM = 1.8726, 1.52636
FROZEN_K, FROZEN_SIZE = 8.05, 65.0
MISMATCHED = 0.9362


def cells(parameters: Parameters) -> Iterator[Cell]:
    for method in (W, PUBLISHED, SEPARATE, TOGETHER):
        yield {
            "method": method,
            "starts": parameters.starts,
            "steps": parameters.steps,
            "lr": parameters.lr,
        }


def run(method: int, starts: int, steps: int, lr: float) -> dict[str, Any]:
    return trajectories("plane_margins", method, starts, steps, lr)


CLAIMS = (
    Claim(
        "E2.2a",
        "Both max-margin solutions are the reference ones.",
        "ours",
        lambda e: np.concatenate([e["error_frobenius"][:1], e["error_nuclear"][:1]]),
        at_most(SOLUTION_DIGITS, "largest entry; five digits are given"),
    ),
    Claim(
        "E2.2b",
        "Their norms are 1.52636 (Frobenius) and 1.8726 (nuclear), and their cosine is .9362.",
        "ours",
        lambda e: [
            e["frobenius_norm"][0] - FROBENIUS_NORM,
            e["nuclear_norm"][0] - NUCLEAR_NORM,
            np.vdot(e["solved_frobenius"][0], e["solved_nuclear"][0])
            / e["frobenius_norm"][0]
            / np.linalg.norm(e["solved_nuclear"][0])
            - MISMATCHED,
        ],
        close_to(0.0, 1e-4, "four digits are given"),
    ),
    Claim(
        "T23",
        "W converges to the direction of the Frobenius solution: cosine at least .9992, .9998,"
        " .9999 at 500, 1000, 2000 steps.",
        "seen",
        lambda e: [
            1.0 - at(e.where(method=W), "frobenius", step)[0] - cosine
            for step, cosine in W_COSINES.items()
        ],
        at_least(-5e-5, "four digits are given"),
        reference=(
            "P2, second figure of trajectories (number recalled); numbers of the specification"
        ),
    ),
    Claim(
        "T23b",
        "Factors trained as published converge to the direction of the nuclear solution.",
        "seen",
        lambda e: 1.0 - at(e.where(method=PUBLISHED), "nuclear", 2000),
        at_least(0.9998, "the specification's measurement at 2000 steps, for every start"),
        reference="P2, second figure of trajectories (number recalled)",
    ),
    Claim(
        "E2.2c",
        "There the norm of K freezes at 8.05 and the nuclear norm of the product at 65.",
        "ours",
        lambda e: np.concatenate(
            [
                at(e.where(method=PUBLISHED), "K", 2000) / FROZEN_K,
                at(e.where(method=PUBLISHED), "size", 2000) / FROZEN_SIZE,
            ]
        ),
        between(
            0.995,
            1.005,
            "the balance of ridge and data, where the guard brings every start to rest",
        ),
    ),
    Claim(
        "E2.2d",
        "Normalised separately and without ridge, factors reach the nuclear direction slowly: not"
        " every start is at .9998 by step 2000.",
        "ours",
        lambda e: 1.0 - at(e.where(method=SEPARATE), "nuclear", 2000).max(),
        at_most(
            0.9998,
            "the specification saw one of four starts at .970; which start is slow depends on the"
            " draw",
        ),
    ),
    Claim(
        "E2.2e",
        "Normalised together, factors are closer at 1e5 steps than at 1e4.",
        "ours",
        lambda e: (
            at(e.where(method=TOGETHER), "nuclear", 100_000)
            / at(e.where(method=TOGETHER), "nuclear", 10_000)
        ),
        at_most(1.0, "no run stalls"),
    ),
    Claim(
        "E2.2g",
        "So are factors that are normalised separately.",
        "ours",
        lambda e: (
            at(e.where(method=SEPARATE), "nuclear", 100_000)
            / at(e.where(method=SEPARATE), "nuclear", 10_000)
        ),
        at_most(1.0, "no run should stall"),
        explanation=(
            "Separate norms bias the limit by about 1e-5 here, and one start is closer than that"
            " already at 1e4 steps; see E2.1i."
        ),
    ),
    Claim(
        "E2.2f",
        "W is closer at 1e5 steps than at 1e4.",
        "ours",
        lambda e: (
            at(e.where(method=W), "frobenius", 100_000) / at(e.where(method=W), "frobenius", 10_000)
        ),
        at_most(1.0, "no run stalls"),
    ),
)


def plot(evidence: Evidence) -> Iterator[Picture]:
    yield _plot_plane(evidence)
    from attsvm.report.style import canvas, render

    with canvas(3.0, width=6.0) as (figure, axes):
        draw_gaps(axes[0], evidence)
        yield render(
            figure,
            "direction",
            "Convergence beyond the published steps",
            "Direction gap to the own solution, one line per start. The released code stops at 2000"
            " steps, where its ridge has frozen it.",
            "The gap falls as a power of the step for W; factors as published stop near 1e-4.",
        )


def _plot_plane(evidence: Evidence) -> Picture:
    from attsvm.datasets import toy
    from attsvm.report.style import ATTENTION, BEST, FAINT, INK, TRAINED, canvas, render

    data = toy("plane_margins").data
    solved = {W: evidence["solved_frobenius"][0], PUBLISHED: evidence["solved_nuclear"][0]}
    with canvas(4.3, 1, 2, width=8.2, sharey=True) as (figure, axes):
        for ax, method, title in zip(
            axes,
            solved,
            ("W and the Frobenius solution", "K and Q and the nuclear solution"),
            strict=True,
        ):
            ax.set_xlim(-2, 10)
            ax.set_ylim(-5, 5)
            ax.set_aspect("equal")
            ax.set_title(title)
            ax.set_xlabel("first coordinate")
            rows = evidence.where(method=method)
            for i, (colour, marker) in enumerate(((TRAINED, "o"), (ATTENTION, "s"))):
                towards = solved[method] @ data.queries[i]
                tokens = data.tokens[i]
                ax.plot(*tokens[1:].T, marker, color=colour, markersize=4, alpha=0.55, linewidth=0)
                ax.plot(*tokens[0], "*", color=colour, markersize=11, linewidth=0)
                draw_rays(ax, [towards], "-", BEST)
                draw_courses(ax, rows, data.queries[i : i + 1], 200 if method == W else 20, colour)
                size = np.linalg.norm(towards)
                middle = tokens[0] - 0.5 * towards / size**2
                along = np.array([-towards[1], towards[0]]) / size
                ax.plot(
                    *np.stack([middle - 20 * along, middle + 20 * along]).T,
                    ":",
                    color=colour,
                    linewidth=1.1,
                )
        axes[0].set_ylabel("second coordinate")
        for style, colour, label in (
            ("-", TRAINED, "W z, sequence 1"),
            ("-", ATTENTION, "W z, sequence 2"),
            ("-", BEST, "solution"),
            (":", FAINT, "decision line"),
        ):
            axes[0].plot([], [], style, color=colour, label=label)
        axes[0].plot([], [], "*", color=INK, markersize=9, label="optimal token")
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(
            handles,
            labels,
            loc="outside lower center",
            ncols=5,
            frameon=False,
            fontsize=8.5,
            labelcolor=FAINT,
        )
        return render(
            figure,
            "plane",
            "Queries turn until the optimal token stands alone",
            "Tokens of both sequences (stars: optimal), the curves W(k) z of both queries, and"
            " where the solution sends them. Dotted lines are orthogonal to the solution, half a"
            " margin behind the optimal token: all other tokens of that sequence lie behind them.",
            "Two curves leave the origin to the right and follow the rays of the solution; dotted"
            " lines separate stars from other tokens.",
        )


EXPERIMENT = Experiment(
    id="tfsvm-2",
    title="Two sequences in the plane with their decision lines",
    reference=(
        "Transformers as Support Vector Machines, second figure of trajectories (number recalled);"
        " specification E2.2"
    ),
    protocol=(
        "n = 2, T = 5, d = 2 with the literal data of the released code; normalised gradient"
        " descent with step 0.1 on the logistic loss. W starts at zero; Q at zero and K at small"
        " random matrices (four starts; the first is drawn)."
    ),
    parameters=Parameters(),
    quick=QUICK,
    cells=cells,
    run=run,
    claims=CLAIMS,
    plot=plot,
)
