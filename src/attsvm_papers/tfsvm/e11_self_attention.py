"""Self-attention: the statistics repeated.

E2.3, E2.4 (n = T = 5) and E2.5 with the first token of each sequence as its query, and random
selections at d = max(T - 1, n) for cross- and self-attention.

Source: Transformers as Support Vector Machines (the released code has the switch); specification
E2.11

Notes: Where the optimal token is the query itself nothing changes in the formulas.
"""

import numpy as np

from attsvm.datasets import unit_sphere
from attsvm.selection import feasible
from attsvm_papers.kit import (
    ATTENTION,
    BEST,
    FAINT,
    TRAINED,
    Evidence,
    at_least,
    at_most,
    blocks,
    claim,
    grid,
    picture,
    rows,
    scales,
    setting,
)
from attsvm_papers.tfsvm import e3_local_convergence as tfsvm_3
from attsvm_papers.tfsvm import e4_rank as tfsvm_4
from attsvm_papers.tfsvm import e5_convergence as tfsvm_5
from attsvm_papers.tfsvm.local_runs import local_runs

LOCAL, RANKS, OUTCOMES, FEASIBLE = "local", "ranks", "outcomes", "random_selections"
"""What is repeated: E2.3, E2.4, E2.5; and random selections at the smallest dimension that is
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
    draws=200,
    steps=2000,
    lr=0.1,
    seeds=100,
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


@grid(rows("n T", setting("feasible")), own=[False, True])
def random_selections(n, T, draws, own):
    """Whether random tokens of random instances with d = max(T - 1, n) can be selected."""
    data, _ = unit_sphere(n, T, max(T - 1, n), range(draws), self_attention=own)
    tokens = np.random.default_rng([11, n, T]).integers(T, size=(draws, n))
    return {"selectable": feasible(data, tokens)}


def _kind(evidence: Evidence, kind: str) -> Evidence:
    return evidence.where(part=kind)


def _share(evidence: Evidence, column: str, n: int, T: int, d: int) -> float:
    return float(np.mean(_kind(evidence, OUTCOMES).where(n=n, T=T, d=d)[column]))


def _shapes(evidence: Evidence) -> list[tuple[int, int, int]]:
    rows = _kind(evidence, OUTCOMES)
    return sorted(
        {(int(n), int(T), int(d)) for n, T, d in zip(rows["n"], rows["T"], rows["d"], strict=True)}
    )


@claim(
    at_least(
        1.0,
        "true for almost every data set; random tokens of 200 random instances for each of"
        " three shapes",
    ),
    "recalled",
    "P2, Theorem 1",
)
def T10(e):
    """With d >= max(T - 1, n) any tokens can be selected, by cross- and by self-attention."""
    return _kind(e, FEASIBLE)["selectable"]


@claim(
    at_least(0.1, "as for cross-attention (E2.3)"),
    reference="P2 (the released code has the switch)",
)
def T23(evidence):
    """W ends closer to the Frobenius solution of its selection, factors closer to the
    nuclear one.
    """
    W, KQ = (_kind(evidence, LOCAL).where(factors=factors) for factors in (False, True))
    return np.array(
        [
            np.mean(W["frobenius"][:, -1] - W["nuclear"][:, -1]),
            np.mean(KQ["nuclear"][:, -1] - KQ["frobenius"][:, -1]),
        ]
    )


@claim(
    at_most(1e-7, "rounding of a certified solution"),
    "recalled",
    "P2, Lemma 1",
    assumes={"feasible": lambda e: _kind(e, RANKS)["feasible"] == 1},
)
def T11(e):
    """Every row of the Frobenius solution lies in the span of the queries."""
    return _kind(e, RANKS)["row_space"]


@claim(
    at_least(1e-9, "strictly lower, on average over each cell, as for cross-attention (E2.4)"),
)
def E2_11a(evidence):
    """The nuclear solution has lower rank than the Frobenius solution wherever d >= n."""
    rows = _kind(evidence, RANKS)
    levels = [rows.where(d=d) for d in rows.levels("d") if d >= 5]
    return np.array(
        [np.nanmean(level["fro_rank"]) - np.nanmean(level["nuc_rank"]) for level in levels]
    )


@claim(
    at_least(
        -0.06,
        "two standard deviations of a difference of shares near 0.9, as for cross-attention (E2.5)",
    ),
)
def E2_11b(evidence):
    """The share of global convergence grows with d."""
    return np.diff(
        [_share(evidence, "global", *shape) for shape in _shapes(evidence) if shape[:2] == (4, 5)]
    )


@claim(
    at_least(0.96, "98 % with the sampling error of 100 runs"),
)
def E2_11c(evidence):
    """With d >= max(T - 1, n) at least 98 % of the runs end at a locally optimal selection."""
    return np.array(
        [
            _share(evidence, "local", *shape)
            for shape in _shapes(evidence)
            if shape[2] >= max(shape[1] - 1, shape[0])
        ]
    )


@claim(
    at_least(1.0, "the theorem does not care where queries come from"),
    "recalled",
    assumes={"aligned and feasible": lambda e: np.isfinite(_kind(e, OUTCOMES)["far_global"])},
)
def T15(e):
    """Where the first gradient ranks every optimal token first, a long first step along it leads to
    the global solution.
    """
    return _kind(e, OUTCOMES)["far_global"]


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
    line = [shape for shape in _shapes(evidence) if shape[:2] == (4, 5)]
    place = np.arange(len(line))
    for offset, (column, colour, label) in enumerate(
        (("global", TRAINED, "global"), ("local", ATTENTION, "local, incl. global"))
    ):
        axes[2].bar(
            place + 0.4 * offset - 0.2,
            [100 * _share(evidence, column, *shape) for shape in line],
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
