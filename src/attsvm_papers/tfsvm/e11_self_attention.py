"""Self-attention: the statistics repeated.

tfsvm-3, tfsvm-4 (n = T = 5) and tfsvm-5 with the first token of each sequence as its query, and
random selections at d = max(T - 1, n) for cross- and self-attention.

Source: Transformers as Support Vector Machines (the released code has the switch)

Notes: Where the optimal token is the query itself nothing changes in the formulas.
"""

import numpy as np

from attsvm.datasets import unit_sphere
from attsvm.selection import feasible
from attsvm_papers.kit import (
    ATTENTION,
    BEST,
    FAINT,
    MOST,
    TRAINED,
    VERDICT,
    Evidence,
    at_least,
    at_most,
    at_start,
    blocks,
    claim,
    grid,
    picture,
    replaced,
    rows,
    scales,
    setting,
)
from attsvm_papers.tfsvm import e3_local_convergence as tfsvm_3
from attsvm_papers.tfsvm import e4_rank as tfsvm_4
from attsvm_papers.tfsvm import e5_convergence as tfsvm_5
from attsvm_papers.tfsvm.convergence import mixed
from attsvm_papers.tfsvm.local_runs import local_runs

LOCAL, RANKS, OUTCOMES, FEASIBLE = "local", "ranks", "outcomes", "random_selections"
"""What is repeated: tfsvm-3, -4 and -5; and random selections at the smallest dimension that is
always enough.
"""

# The cells of three experiments on :func:`attsvm.datasets.unit_sphere` with ``self_attention``.
SCALES = scales(
    local_steps=2000,
    ranks=(2, 3, 4, 5, 10, 15, 20),
    outcomes=(
        *((4, 5, d) for d in (2, 4, 8, 20)),
        (4, 12, 8),
        (2, 5, 8),
        (12, 5, 8),
    ),
    feasible=((5, 5), (4, 8), (8, 4)),
    steps=2000,
    lr=0.1,
    seeds=100,
    first_seed=VERDICT,
    quick={"ranks": (5, 10), "outcomes": ((4, 5, 2), (4, 5, 20)), "seeds": 20},
)


@grid(rows("factors ridge", ((False, 0.0), (True, tfsvm_3.RIDGE))), seeds=blocks(50))
def local(factors, ridge, seeds, local_steps, lr):
    return local_runs(6, 8, 10, local_steps, lr, seeds, factors, ridge, self_attention=True)


@grid(d=setting("ranks"), seeds=blocks(50))
def ranks(d, seeds):
    return tfsvm_4.run(5, 5, d, seeds, self_attention=True)


@grid(rows("n T d", setting("outcomes")), seeds=blocks(50))
def outcomes(n, T, d, seeds, steps, lr):
    return tfsvm_5.run(n, T, d, seeds, steps, lr, self_attention=True)


@grid(rows("n T", setting("feasible")), own=[False, True], seeds=blocks(200))
def random_selections(n, T, seeds, own):
    """Whether random tokens of random instances with d = max(T - 1, n) can be selected, and of
    others in the plane.
    """
    tokens = np.random.default_rng([11, n, T]).integers(T, size=(len(seeds), n))
    at, plane = (
        feasible(unit_sphere(n, T, d, seeds, self_attention=own)[0], tokens)
        for d in (max(T - 1, n), 2)
    )
    return {"selectable": at, "selectable_plane": plane}


def _kind(evidence: Evidence, kind: str) -> Evidence:
    return evidence.where(part=kind)


@claim(
    at_least(
        1.0,
        "true for almost every data set; random tokens of random instances of three shapes",
    ),
    "recalled",
    "P2, Theorem 1",
    null=replaced("the same tokens in two dimensions", selectable="selectable_plane"),
)
def T10(e):
    """With d >= max(T - 1, n) any tokens can be selected, by cross- and by self-attention."""
    return _kind(e, FEASIBLE)["selectable"]


@claim(
    at_least(0.1, "as for cross-attention (tfsvm-3)"),
    reference="P2 (the released code has the switch)",
    null=at_start("frobenius", "nuclear"),
)
def T23(evidence):
    """W ends closer to the Frobenius solution of its selection, factors closer to the
    nuclear one.
    """
    return tfsvm_3.T23(_kind(evidence, LOCAL))


@claim(
    at_most(1e-7, "rounding of a certified solution"),
    "recalled",
    "P2, Lemma 1",
    assumes={
        "feasible": lambda e: _kind(e, RANKS)["feasible"] == 1,
        "d > n": lambda e: _kind(e, RANKS)["d"] > 5,
    },
    null=replaced("the queries of another instance", row_space="row_space_other"),
)
def T11(e):
    """Every row of the Frobenius solution lies in the span of the queries: its share outside, where
    n queries do not span everything.
    """
    return _kind(e, RANKS)["row_space"]


@claim(
    at_least(1e-9, "strictly lower, on average over each cell, as for cross-attention (tfsvm-4)"),
    null=replaced("the two solutions exchanged", fro_rank="nuc_rank", nuc_rank="fro_rank"),
)
def E2_11a(evidence):
    """The nuclear solution has lower rank than the Frobenius solution wherever d >= n."""
    rows = _kind(evidence, RANKS)
    levels = [rows.where(d=d) for d in rows.levels("d") if d >= 5]
    return np.array(
        [np.nanmean(level["fro_rank"]) - np.nanmean(level["nuc_rank"]) for level in levels]
    )


@claim(
    at_least(0.0, tfsvm_5.TREND),
    null=mixed("global"),
)
def E2_11b(evidence):
    """The share of global convergence grows with d."""
    return tfsvm_5.E2_5a(_kind(evidence, OUTCOMES))


@claim(
    at_least(0.96, "98 % with the sampling error of 100 runs"),
    null=replaced("random tokens in place of the trained ones", local="local_random"),
)
def E2_11c(evidence):
    """With d >= max(T - 1, n) at least 98 % of the runs end at a locally optimal selection."""
    return tfsvm_5.E2_5d(_kind(evidence, OUTCOMES))


@claim(
    at_most(0.01, "8 degrees, as for cross-attention (tfsvm-5)", share=MOST),
    "recalled",
    assumes={"aligned and feasible": lambda e: np.isfinite(_kind(e, OUTCOMES)["far_gap"])},
    null=replaced("the long first step alone", far_gap="far_first"),
)
def T15(e):
    """Where the first gradient ranks every optimal token first, a long first step along it, and a
    path of a thousand times its length after it, lead to the direction of the global solution.
    """
    return tfsvm_5.T15(_kind(e, OUTCOMES))


@picture(
    "The same three pictures for self-attention",
    "Matched cosines tend to one; the nuclear rank is below the Frobenius rank; global"
    " convergence grows with d.",
    2.9,
    1,
    3,
    width=8.8,
    name="self-attention",
)
def draw_self_attention(evidence, axes):
    """Local convergence, ranks and global convergence when the first token of a sequence asks.
    Nothing changes in kind.
    """
    local = _kind(evidence, LOCAL)
    for factors, style in ((False, "-"), (True, "--")):
        rows = local.where(factors=factors)
        for column, colour in (("frobenius", TRAINED), ("nuclear", BEST)):
            label = (
                f"{'K, Q' if factors else 'W'} to"
                f" {'Frobenius' if column == 'frobenius' else 'nuclear'}"
            )
            axes[0].plot(
                rows["step"][0], rows[column].mean(axis=0), style, color=colour, label=label
            )
    axes[0].set(
        title="Cosine to the solutions, mean", xlim=(0, 1000), ylim=(0, 1.03), xlabel="step"
    )
    ranks = _kind(evidence, RANKS)
    dimensions = ranks.levels("d")
    for column, style, label in (("fro_rank", "-", "Frobenius"), ("nuc_rank", "--", "nuclear")):
        means = [np.nanmean(ranks.where(d=d)[column]) for d in dimensions]
        axes[1].plot(
            dimensions,
            means,
            style,
            marker="o",
            color=TRAINED if column == "fro_rank" else BEST,
            label=label,
        )
    axes[1].set(title="Rank, n = T = 5, mean", xlabel="dimension d", ylim=(0, 5.3))
    ends = _kind(evidence, OUTCOMES)
    line = [shape for shape in tfsvm_5.shapes(ends) if shape[:2] == (4, 5)]
    place = np.arange(len(line))
    for offset, (column, colour, label) in enumerate(
        (("global", TRAINED, "global"), ("local", ATTENTION, "local, incl. global"))
    ):
        axes[2].bar(
            place + 0.4 * offset - 0.2,
            [100 * tfsvm_5.share_of(ends, column, *shape) for shape in line],
            0.38,
            color=colour,
            label=label,
        )
    axes[2].set_xticks(place, [str(shape[2]) for shape in line])
    axes[2].set(
        title="Convergence, n = 4, T = 5, %",
        xlabel="dimension d",
        ylim=(0, 135),
        yticks=[0, 25, 50, 75, 100],
    )
    for ax, where in zip(axes, ("lower right", "lower right", "upper left"), strict=True):
        ax.legend(frameon=False, fontsize=8.0, labelcolor=FAINT, loc=where)
