"""Local convergence: W to the Frobenius, factors to the nuclear solution.

Random tokens, queries and head on the unit sphere, n = 6, T = 8, d = 10; normalised gradient
descent with step 0.1 from uniform random weights, 2000 steps (1000 drawn). W, factors with the
published ridge of 2.2e-16, and factors without it; W and the former also for self-attention, where
the first token is the query. Both max-margin solutions of the tokens selected at the end are
certified.

Source: Transformers as Support Vector Machines, figure of local convergence (number uncertain)

Notes: The released code does not seed its starts, so only averages can be compared. Its ridge
exists because gradients underflow; those in log space do not. The second figure shows both.
"""

import numpy as np

from attsvm_papers import kit
from attsvm_papers.tfsvm.local_cones import POINTS
from attsvm_papers.tfsvm.local_runs import local_runs

# weight of the penalty on K and Q in the released code: the spacing of float64 numbers at 1
RIDGE = 2.2e-16
# Means over 100 seeds of an independent program: probability of the selected tokens, and the
# cosines to the Frobenius and the nuclear solution of the trained selection, of W, then of factors
# with the ridge. The stored plots agree by eye.
MARKS = (0, 100, 200, 400, 1000, 1980)
REFERENCE = {
    ("probability", False): (0.159, 0.727, 0.962, 0.999, 0.9995, np.nan),
    ("probability", True): (0.143, 0.9975, 0.9996, 1.0, 1.0, np.nan),
    ("frobenius", False): (0.03, 0.741, 0.880, 0.956, 0.989, 0.998),
    ("nuclear", False): (0.04, 0.690, 0.793, 0.842, 0.855, 0.857),
    ("nuclear", True): (0.06, 0.864, 0.939, 0.971, 0.990, 0.996),
    ("frobenius", True): (0.06, 0.768, 0.819, 0.838, 0.847, 0.847),
}


@kit.run(
    kit.rows(
        "own factors ridge",
        [
            (False, False, 0.0),
            (False, True, RIDGE),
            (False, True, 0.0),
            (True, False, 0.0),
            (True, True, RIDGE),
        ],
    ),
    seeds=kit.seeds(100, by=25),
    quick={"seeds": 25},
)
def run(own, factors, ridge, seeds, n=6, T=8, d=10, steps=2000, lr=0.1):
    return local_runs(n, T, d, steps, lr, seeds, factors, ridge, self_attention=own)


def runs_of_factors(e, ridge=RIDGE, self_attention=False):
    return e.where(factors=True, ridge=ridge, own=self_attention)


@kit.claim(
    kit.at_least(
        1e-6,
        f"positive at {POINTS} random weights at the edge of the derived cone, by more than"
        " rounding",
    ),
    "recalled",
    "tfsvm, local convergence (number recalled); opening and size of the cone are derived",
    assumes={"a run for W at a locally optimal selection": lambda e: np.isfinite(e["cone_ascent"])},
    null=kit.replaced("the solution of another instance", cone_ascent="cone_ascent_other"),
    trials="own seed",
)
def T16(e):
    """Far out in a narrow cone around a locally optimal direction, minus the gradient points along
    it: no stationary points.
    """
    return e["cone_ascent"]


@kit.claim(
    kit.at_most(
        0.5,
        "0.1 radians is wider than the cone of the theorem, so a few runs may leave; the gap of"
        " 0.005 must halve",
        share=kit.MOST,
    ),
    "recalled",
    "tfsvm, local convergence (number recalled)",
    assumes={"a run for W at a locally optimal selection": lambda e: np.isfinite(e["cone_before"])},
    null=kit.replaced("the nuclear solution of the same tokens", cone_after="cone_after_nuclear"),
    trials="own seed",
)
def T16b(e):
    """A run that starts near a locally optimal direction keeps its selection and converges to that
    direction.
    """
    return np.where(e["cone_kept"] == 1, e["cone_after"] / e["cone_before"], np.inf)


@kit.claim(
    kit.at_least(0.1, "matched pairs beat mismatched ones by more than 0.1, on average over seeds"),
    "authors' code",
    "tfsvm, figure of local convergence",
    by="own",
    null=kit.at_start("frobenius", "nuclear"),
)
def T23(e):
    """W ends closer to the Frobenius solution of its selection, factors closer to the nuclear one,
    with cross- and with self-attention.
    """
    W, KQ = e.where(factors=False), e.where(factors=True, ridge=RIDGE)
    return [
        np.mean(W.end("frobenius") - W.end("nuclear")),
        np.mean(KQ.end("nuclear") - KQ.end("frobenius")),
    ]


@kit.claim(
    kit.true("98 of 100 in an independent program; the rest are still moving", share=kit.MOST),
    "recalled",
    null=kit.replaced("random tokens", local="local_random"),
)
def E2_3g(e):
    """The selection that descent on W ends with is locally optimal."""
    return e.where(factors=False, own=False)["local"]


SOLUTIONS = {
    "frobenius": (kit.TRAINED, "Frobenius solution"),
    "nuclear": (kit.BEST, "nuclear solution"),
}


def draw_mean(ax, rows, column, colour, label):
    """Mean and standard deviation over seeds, and those of an independent program as crosses."""
    step, values = rows["step"][0], rows[column]
    mean, spread = values.mean(axis=0), values.std(axis=0)
    high = np.minimum(mean + spread, 1.0)
    ax.fill_between(step, mean - spread, high, color=colour, alpha=0.13, linewidth=0)
    ax.plot(step, mean, "-", color=colour, label=label)
    if not rows["own"][0]:
        ax.plot(MARKS, REFERENCE[column, bool(rows["factors"][0])], "x", color=colour, markersize=6)


@kit.picture(
    "Every parameterisation finds its own norm",
    "The cosine of W to the Frobenius solution tends to one and stays below it to the"
    " nuclear one; for factors it is the reverse; so it is in the lower row.",
    5.4,
    2,
    3,
    width=8.6,
    sharex=True,
    name="local-convergence",
)
def local_convergence(e, axes):
    """Mean and standard deviation over seeds; crosses: an independent program. Solutions are
    those of the tokens selected at the end. Factors are trained with the published ridge. Above:
    cross-attention, below: self-attention.
    """
    titles = ("Probability of selected tokens", "W: cosine to ...", "K and Q: cosine to ...")
    for row, self_attention in zip(axes, (False, True), strict=True):
        kinds = (
            (e.where(factors=False, own=self_attention), kit.TRAINED, "W"),
            (runs_of_factors(e, self_attention=self_attention), kit.ATTENTION, "K and Q"),
        )
        for k, (rows, colour, label) in enumerate(kinds):
            draw_mean(row[0], rows, "probability", colour, label)
            for column, style in SOLUTIONS.items():
                draw_mean(row[1 + k], rows, column, *style)
        for ax, title in zip(row, titles, strict=True):
            ax.set(title=title, xlim=(0, 1000), ylim=(0, 1.03), xlabel="step")
            kit.legend(ax, loc="lower right")


@kit.picture(
    "What the published ridge does",
    "With the ridge the norm of the product freezes after a few hundred steps, without it"
    " the norm grows without bound.",
    2.9,
    1,
    2,
    width=8.6,
)
def ridge(e, axes):
    """The ridge of 2.2e-16 stops the norm of the factors once the loss gradient is below it. In log
    space no ridge is needed and the norm grows like the square of the step.
    """
    lines = (
        (runs_of_factors(e, 0.0), "nuclear", kit.BEST, "factors, no ridge"),
        (runs_of_factors(e), "nuclear", kit.ATTENTION, "factors, ridge"),
        (e.where(factors=False, own=False), "frobenius", kit.TRAINED, "W"),
    )
    for rows, column, colour, label in lines:
        gap, size = np.median(1.0 - rows[column], axis=0), rows["size"].mean(axis=0)
        axes[0].plot(rows["step"][0], gap, color=colour, label=label)
        axes[1].plot(rows["step"][0], size, color=colour)
    axes[0].set(yscale="log", title="1 - cosine to the own solution, median", xlabel="step")
    axes[1].set(yscale="log", title="Nuclear norm of the weights, mean", xlabel="step")
    kit.legend(axes[0])
