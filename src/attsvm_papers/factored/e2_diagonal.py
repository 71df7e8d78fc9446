"""Diagonal keys and queries maximise the l1 margin.

The data of factored-1. K and Q are diagonal with Gaussian starts of deviation 0.1 or 1, steps of
0.01 in their joint norm, gradients in log space. The best l1 margin is a linear programme, solved
with a certificate; instances without diagonal solution are left out.

Source: Implicit Regularization of Gradient Flow on One-Layer Softmax Attention, diagonal case
"""

from dataclasses import replace
from typing import Any

import numpy as np

from attsvm import Frobenius, Lp, Margins, max_margin_batch, order_margins
from attsvm.theory.next_token import Problem
from attsvm.theory.scale_free_descent import Steepest, descend_scale_free
from attsvm.theory.sentences import arcs, priority_graph
from attsvm_papers import kit
from attsvm_papers.rates.adaptive import log_spaced_records

SETTING = (4, 6, 8, 8)
LR, STARTS = 0.01, (0.1, 1.0)


def diagonal(margins: Margins) -> Margins:
    r"""The margins of :math:`W=\mathrm{diag}(\beta)`: :math:`(\delta_c\circ z)^\top\beta\ge b_c`,
    for weights ``(d, 1)``.
    """
    entries = margins.differences * margins.queries[margins.sequence]
    return replace(margins, differences=entries, queries=np.ones((margins.n, 1)))


@kit.run(seeds=kit.seeds(12, by=12), scale=STARTS, quick={"steps": 12_000, "seeds": 6})
def run(scale, seeds, steps=100_000):
    data = [priority_graph(*SETTING, seed) for seed in seeds]
    programmes = [
        diagonal(order_margins(data_set.embeddings, arcs(data_set).arcs)) for data_set in data
    ]
    best, round_best = max_margin_batch(programmes, Lp(1)), max_margin_batch(programmes)
    problem, eye = Problem.of(data, "log_mass"), np.eye(SETTING[3])

    def gradient(pair: Any) -> tuple[Any, Any]:
        k, q = pair[..., 0], pair[..., 1]
        G, log_scale = problem.gradient((k * q)[..., None] * eye)
        along = np.einsum("rii->ri", G)
        return np.stack([along * q, along * k], axis=-1), log_scale

    start = scale * np.stack(
        [np.random.default_rng([62, seed]).standard_normal((SETTING[3], 2)) for seed in seeds]
    )
    due = np.array([0, *log_spaced_records(steps)])
    pairs, _ = descend_scale_free(gradient, start, Steepest(Frobenius()), lambda step: LR, due)
    weights = pairs[..., 0] * pairs[..., 1]
    least = np.stack(
        [
            [programme(beta[run][:, None]).min() for run, programme in enumerate(programmes)]
            for beta in weights
        ]
    )
    size = np.abs(weights).sum(axis=-1)
    return {
        "step": kit.same(due),
        "ratio": (least / size).T * np.where(best.optimal, best.norm, np.nan)[:, None],
        "round_ratio": np.array(
            [
                b.norm / np.abs(r.W).sum() if b.status == "optimal" else np.nan
                for b, r in zip(best, round_best, strict=True)
            ]
        ),
        "feasible": best.optimal,
    }


LONG = {
    "a diagonal solution": lambda e: e["feasible"],
    "100 000 steps": lambda e: np.full(e.rows, e["step"].max() >= 100_000),
}


def euclidean(evidence: kit.Evidence) -> Any:
    """The ratio of the solution of the Euclidean norm, at every record."""
    return np.broadcast_to(evidence["round_ratio"][:, None], evidence["ratio"].shape)


@kit.claim(
    kit.at_least(0.995, "set by this project", share=kit.MOST),
    "paper",
    "factored, diagonal case",
    assumes=LONG,
    explanation=(
        "Small starts lag behind large ones. Coordinates of diagonal factors grow like powers of"
        " the step whose exponents differ by the relative gap, so the last percents may take as"
        " long as 1/log t."
    ),
    null=kit.replaced("the solution of the Euclidean norm", ratio=euclidean),
    failure="scale",
)
def C6_2(e):
    """Diagonal factors: the margin of their product, relative to the best one in l1 norm, at step
    100 000.
    """
    return e["ratio"][:, -1]


@kit.claim(
    kit.at_least(
        0.0,
        "it tends to one from below; the smallest margin and the norm are both exact",
        share=kit.MOST,
    ),
    assumes=LONG,
    null=kit.mixed_records("ratio"),
)
def C6_2a(e):
    """Diagonal factors: the share of the best l1 margin rises from step 10 000 to 100 000 (by how
    much).
    """
    return e["ratio"][:, -1] - e.at("ratio", 10_000)


@kit.claim(
    kit.at_least(
        -0.05,
        "where the Euclidean solution is nearly optimal in l1 too the factors need longer",
        share=kit.MOST,
    ),
    assumes=LONG,
    null=kit.at_start("ratio"),
)
def C6_2b(e):
    """Diagonal factors: the l1 margin is above that of the solution of the Euclidean norm at step
    100 000: lead.
    """
    return e["ratio"][:, -1] - e["round_ratio"]


@kit.picture(
    "Diagonal factors and the l1 norm",
    "Curves rise in stages towards one; on the right some fall quickly and some hardly at all.",
    3.0,
    1,
    2,
    width=7.6,
    name="diagonal",
)
def draw_diagonal(evidence, axes):
    """One line per seed and start. Right: how much is missing, on a logarithmic scale; dashed: the
    claim's bound.
    """
    rows = evidence.take(evidence["feasible"])
    step = rows["step"][0]
    is_late = step >= 100
    for index, (scale, colour) in enumerate(zip(STARTS, (kit.TRAINED, kit.ATTENTION), strict=True)):
        rows_of_scale = rows.where(scale=scale)
        axes[0].plot(
            step[is_late],
            rows_of_scale["ratio"][:, is_late].T,
            color=colour,
            linewidth=0.9,
            alpha=0.8,
        )
        missing = np.where(rows_of_scale["ratio"] < 1.0, 1.0 - rows_of_scale["ratio"], np.nan)[
            :, is_late
        ]
        axes[1].plot(step[is_late], missing.T, color=colour, linewidth=0.9, alpha=0.8)
        axes[0].text(
            130, 0.93 - 0.07 * index, f"starts of size {scale:g}", color=colour, fontsize=8.5
        )
    axes[0].axhline(1.0, color=kit.FAINT, linewidth=0.8)
    kit.logarithmic(axes[0].xaxis, step[is_late].astype(float))
    axes[0].set(
        xlim=(100, step[-1]), ylim=(0.0, 1.05), xlabel="step", title="margin / best margin, l1 norm"
    )
    axes[1].axhline(0.005, color=kit.FAINT, linewidth=0.8, linestyle="--")
    kit.loglog(axes[1], step[is_late].astype(float), np.array([1e-5, 1.0]))
    axes[1].set(xlim=(100, step[-1]), ylim=(1e-5, 1.0), xlabel="step", title="1 - the same")
