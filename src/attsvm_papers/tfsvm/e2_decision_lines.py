"""Two sequences in the plane with their decision lines.

n = 2, T = 5, d = 2 with the literal data of the released code; normalised gradient descent with
step 0.1 on the logistic loss. W starts at zero; Q at zero and K at small random matrices (four
starts; the first is drawn).

Source: Transformers as Support Vector Machines, second figure of trajectories (number recalled)
"""

import numpy as np

from attsvm.datasets import toy
from attsvm_papers.kit import (
    ATTENTION,
    BEST,
    FAINT,
    INK,
    TRAINED,
    at,
    at_least,
    at_most,
    claim,
    exchanged,
    grid,
    legend_below,
    mixed_records,
    picture,
    replaced,
    scales,
)
from attsvm_papers.tfsvm.plane import (
    PUBLISHED,
    SEPARATE,
    SWAPPED,
    TOGETHER,
    W,
    draw_courses,
    draw_gaps,
    draw_rays,
    trajectories,
)

# The toy ``tfsvm-2``: n = 2 sequences of T = 5 tokens in the plane.
SCALES = scales(
    starts=4,
    steps=100_000,
    lr=0.1,
)

SOLUTION_DIGITS = 2e-5


@grid(method=[W, PUBLISHED, SEPARATE, TOGETHER])
def run(method, starts, steps, lr):
    return trajectories("plane_margins", method, starts, steps, lr)


@claim(
    at_most(SOLUTION_DIGITS, "largest entry; five digits are given"),
    null=SWAPPED,
)
def E2_2a(e):
    """Both max-margin solutions are the reference ones."""
    return np.concatenate([e["error_frobenius"][:1], e["error_nuclear"][:1]])


@claim(
    at_least(0.9998, "for every start; measured by an independent program of this project"),
    "authors' code",
    "P2, second figure of trajectories (number recalled)",
    null=replaced("the Frobenius solution in its place", nuclear="frobenius"),
)
def T23b(e):
    """Factors trained as published converge to the direction of the nuclear solution."""
    return 1.0 - at(e.where(method=PUBLISHED), "nuclear", 2000)


@claim(
    at_most(
        0.9998,
        "an independent program has one of four starts at .970; the draw decides which is slow",
    ),
    null=exchanged("as published", "method", SEPARATE, PUBLISHED),
)
def E2_2d(e):
    """Normalised separately and without ridge, factors reach the nuclear direction slowly: not
    every start is at .9998 by step 2000.
    """
    return 1.0 - at(e.where(method=SEPARATE), "nuclear", 2000).max()


@claim(
    at_most(1.0, "no run stalls"),
    null=exchanged("normalised separately", "method", TOGETHER, SEPARATE),
)
def E2_2e(e):
    """Normalised together, factors are closer at 1e5 steps than at 1e4."""
    return at(e.where(method=TOGETHER), "nuclear", 100_000) / at(
        e.where(method=TOGETHER), "nuclear", 10_000
    )


@claim(
    at_most(1.0, "no run should stall"),
    explanation=(
        "Separate norms bias the limit by about 1e-5 here, and one start is closer than that"
        " already at 1e4 steps; see E2.1i."
    ),
    null=mixed_records("nuclear"),
)
def E2_2g(e):
    """So are factors that are normalised separately."""
    return at(e.where(method=SEPARATE), "nuclear", 100_000) / at(
        e.where(method=SEPARATE), "nuclear", 10_000
    )


@claim(
    at_most(0.1, "it falls as the square of the steps does: by a hundred, within a factor ten"),
    null=replaced("the nuclear solution in its place", frobenius="nuclear"),
)
def E2_2f(e):
    """W is at least ten times closer at 1e5 steps than at 1e4."""
    return at(e.where(method=W), "frobenius", 100_000) / at(e.where(method=W), "frobenius", 10_000)


@picture(
    "Queries turn until the optimal token stands alone",
    "Two curves leave the origin to the right and follow the rays of the solution; dotted"
    " lines separate stars from other tokens.",
    4.3,
    1,
    2,
    width=8.2,
    sharey=True,
)
def plane(evidence, axes):
    """Tokens of both sequences (stars: optimal), the curves W(k) z of both queries, and where the
    solution sends them. Dotted lines are orthogonal to the solution, half a margin behind the
    optimal token: all other tokens of that sequence lie behind them.
    """
    data = toy("plane_margins").data
    solved = {W: evidence["solved_frobenius"][0], PUBLISHED: evidence["solved_nuclear"][0]}
    for ax, method, title in zip(
        axes,
        solved,
        ("W and the Frobenius solution", "K and Q and the nuclear solution"),
        strict=True,
    ):
        ax.set(xlim=(-2, 10), ylim=(-5, 5), aspect="equal", title=title, xlabel="first coordinate")
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
    legend_below(axes[0], 5)


@picture(
    "Convergence beyond the published steps",
    "The gap falls as a power of the step for W; factors as published stop near 1e-4.",
    3.0,
    width=6.0,
)
def direction(evidence, axes):
    """Direction gap to the own solution, one line per start. The released code stops at 2000 steps,
    where its ridge has frozen it.
    """
    draw_gaps(axes[0], evidence)
