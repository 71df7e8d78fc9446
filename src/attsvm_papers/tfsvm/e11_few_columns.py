r"""Factors with fewer columns than the nuclear solution has singular values.

Tokens, queries and head on the unit sphere, n = 6, T = 8, d = 10; factors W = KQᵀ of one,
two, three and ten columns from uniform random entries, normalised gradient descent with step 0.1 in
their joint norm, 20 000 steps. Of the tokens that each run selects the nuclear solution is
certified. A stationary point of the programme of that many columns is computed from the trained
factors. Margins are over the nuclear norm, relative to that of the nuclear solution, which no width
surpasses.

Source: Transformers as Support Vector Machines, programme of the factors with m columns

Notes: The theorems ask for as many columns as the solution has rank. Below that the programme is
not convex, so that its value is known from two sides only.
"""

import numpy as np

from attsvm import Nuclear, max_margin_batch, selection_margins, train
from attsvm.attention import Attention
from attsvm.datasets import unit_sphere
from attsvm.optim import SteepestDescent
from attsvm.training import AtSteps
from attsvm_papers import kit
from attsvm_papers.tfsvm.rank_bound import nearest_factors, stationary_points

WIDTHS, FULL_WIDTH = (1, 2, 3, 10), 10
EARLY = 0.1  # share of the steps of an early record


@kit.run(width=WIDTHS, seeds=kit.seeds(60, by=30), quick={"seeds": 4, "steps": 3000})
def run(width, seeds, n=6, T=8, d=10, steps=20_000):
    data, heads = unit_sphere(n, T, d, seeds)
    model = Attention.cross(
        data,
        heads,
        init=("uniform", seeds[0]),
        parameterization="KQ",
        inner=width,
        stacked=True,
    )
    descent = SteepestDescent(model.parameters(), lr=0.1)
    trajectory = train(model, data, descent, steps, AtSteps([round(EARLY * steps)]))
    programmes = [
        selection_margins(data.instance(k), tokens)
        for k, tokens in enumerate(trajectory.selected[-1])
    ]
    nuclear = max_margin_batch(programmes, Nuclear())
    ends = [
        nearest_factors(programme, W, width)
        for programme, W in zip(programmes, trajectory.W[-1], strict=True)
    ]
    points = stationary_points(programmes, ends)
    cut = [
        nearest_factors(programme, best.W, width)
        for programme, best in zip(programmes, nuclear, strict=True)
    ]
    values = {"trained": ends, "own": points, "cut": cut}
    return {
        "certified": nuclear.optimal
        & (trajectory.selected[-2] == trajectory.selected[-1]).all(axis=-1),
        "rank": np.array([solution.rank or 0 for solution in nuclear]),
        "gap": trajectory.direction_gap(np.stack([point.W for point in points]))[-1],
        "gap_nuclear": trajectory.direction_gap(nuclear)[-1],
        **{
            f"margin_{name}": nuclear.norm
            / np.array([factors_of_run.value for factors_of_run in factors_of_runs])
            for name, factors_of_runs in values.items()
        },
    }


NARROW = {"certified runs of fewer columns": lambda e: e["certified"] & (e["rank"] > e["width"])}


@kit.claim(
    kit.at_most(1e-3, "2.6 degrees", share=kit.MOST),
    assumes="certified",
    where={"width": 1},
    null=kit.replaced("the nuclear solution", gap="gap_nuclear"),
)
def FC1(e):
    """A single column each: the trained product ends in the direction of a stationary point of the
    programme of rank one.
    """
    return e["gap"]


@kit.claim(
    kit.at_least(0.9, "of that of the stationary point reached from there", share=kit.MOST),
    assumes=NARROW,
    trials="width seed",
    null=kit.replaced("the nuclear solution cut to as many columns", margin_trained="margin_cut"),
)
def FC2(e):
    """Where the nuclear solution has more singular values than the factors have columns, training
    ends near the margin of the programme of that many columns: ratio.
    """
    return e["margin_trained"] / e["margin_own"]


@kit.claim(
    kit.at_most(1e-6, "the accuracy of the nuclear solution's certificate"),
    assumes="certified",
    where={"width": FULL_WIDTH},
    null=kit.exchanged("two columns", "width", FULL_WIDTH, 2),
)
def FC3(e):
    """With as many columns as dimensions no stationary point that training leads to is worse than
    the nuclear solution: what its margin lacks.
    """
    return 1.0 - e["margin_own"]


@kit.picture(
    "Fewer columns than the nuclear solution has singular values",
    "One column keeps the least of the margin, two columns most of it, ten all of it; the"
    " gaps of one column to its own programme are far below those to the nuclear solution.",
    3.0,
    1,
    2,
    width=8.0,
)
def few_columns(evidence, axes):
    """One dot per run, by columns of the factors. Left: margin of the stationary point reached
    from training, of that of the nuclear solution, the largest one. Right: gap of the trained
    product to that point, and to the nuclear solution.
    """
    by_width = [evidence.where(certified=True, width=width) for width in WIDTHS]
    positions = range(len(WIDTHS))
    for ax, column, colour, label in (
        (axes[0], "margin_own", kit.TRAINED, ""),
        (axes[1], "gap_nuclear", kit.FAINT, "nuclear solution"),
        (axes[1], "gap", kit.TRAINED, "its own programme"),
    ):
        values = [np.sort(rows[column]) for rows in by_width]
        kit.dots(ax, positions, values, label=label, color=colour, ms=2.5)
    axes[0].set(ylim=(0.0, 1.05), title="margin, of the largest one")
    axes[1].set(yscale="log", title="1 - cosine of the trained product")
    for ax in axes:
        ax.set(xticks=positions, xticklabels=WIDTHS, xlabel="columns of K and of Q")
    kit.legend_below(axes[1], 2)
