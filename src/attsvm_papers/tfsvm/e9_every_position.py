"""An output at every position, full and causal.

n = 2 sequences of T = 4 unit tokens in d = 8, a random label at every position, loss over all
positions; W from zero, and factors from uniform random entries, normalised gradient descent with
step 0.1, 6000 steps. The solution is that of the tokens that each position selects at the end.
Beside them the W of least loss of a thousand solution norms, for causal attention with T = 3 and d
= 12, fewer positions than dimensions, and all labels 1; its solution is that of the best tokens.

Source: Transformers as Support Vector Machines, appendix on sequence outputs, Theorem 11

Notes: The theorem is read in a press article on the paper's first version, not in the paper; the
experiment and its numbers are this project's.
"""

from typing import Any

import numpy as np

from attsvm import (
    AttentionData,
    Frobenius,
    Margins,
    Nuclear,
    max_margin,
    max_margin_batch,
    optimal_tokens,
    regularization_path,
    sequence_margins,
    sequence_pairs,
    token_scores,
    train,
)
from attsvm.attention import Attention
from attsvm.datasets import unit_sphere
from attsvm.optim import SteepestDescent
from attsvm.training import AtSteps
from attsvm_papers import kit
from attsvm_papers.tfsvm.convergence import locally_optimal_selections

COSINE = 0.9996  # least cosine of ten draws of an independent program
FARTHEST = 1000.0  # size of the best weights that are searched, in norms of the solution
MARKS = (*range(0, 1000, 50), *range(1000, 6001, 200))


def _sequence_programmes(data: AttentionData, tokens: Any, causal: bool) -> list[Margins]:
    """The sequence programme of each instance for these tokens ``(instances, n T)``."""
    return [
        sequence_margins(data.instance(k), tokens_of_instance.reshape(data.n, data.T), causal)
        for k, tokens_of_instance in enumerate(tokens)
    ]


@kit.run(causal=[False, True], seeds=kit.seeds(50, by=50), quick={"seeds": 20}, name="trained")
def train_pairs(seeds, causal, n=2, T=4, d=8, steps=6000, lr=0.1):
    data, heads = unit_sphere(n, T, d, seeds)
    labels = np.stack(
        [np.random.default_rng([9, seed]).choice([-1.0, 1.0], (n, T)) for seed in seeds]
    )
    # Pairs of a sequence and one of its positions train in a compiled kernel.
    pairs_of_instances = [
        sequence_pairs(data.instance(k), labels[k], causal) for k in range(len(seeds))
    ]
    pairs = AttentionData(
        *(
            np.stack(
                [getattr(pairs_of_instance, field) for pairs_of_instance in pairs_of_instances]
            )
            for field in ("tokens", "labels", "queries", "mask")
        )
    )
    flat = Attention.cross(pairs, heads)
    trajectory = train(
        flat, pairs, SteepestDescent(flat.parameters(), lr=lr), steps, AtSteps(MARKS)
    )
    factors = Attention.cross(
        pairs, heads, init=("uniform", seeds[0]), parameterization="KQ", stacked=True
    )
    factor_trajectory = train(
        factors, pairs, SteepestDescent(factors.parameters(), lr=lr), steps, AtSteps(())
    )
    programmes = _sequence_programmes(data, factor_trajectory.selected[-1], causal)
    round_gap, nuclear_gap = (
        factor_trajectory.direction_gap(max_margin_batch(programmes, norm))[-1]
        for norm in (Frobenius(), Nuclear())
    )
    selected = trajectory.selected[-1]
    visible = np.tile(np.arange(1, T + 1), n) if causal else T
    tokens = np.random.default_rng(9).integers(visible, size=selected.shape)
    solutions, random_solutions = (
        max_margin_batch(_sequence_programmes(data, selection, causal))
        for selection in (selected, tokens)
    )
    scores = np.stack([token_scores(pairs_of_instances[k], heads[k]) for k in range(len(seeds))])
    best = np.stack([optimal_tokens(pairs_of_instances[k], heads[k]) for k in range(len(seeds))])
    return {
        "step": kit.same(trajectory.steps),
        "gap": trajectory.direction_gap(solutions).T,
        "gap_other": trajectory.direction_gap([*solutions[1:], solutions[0]]).T,
        "nuclear_lead": round_gap - nuclear_gap,
        "nuclear_lead_of_W": (
            trajectory.direction_gap(solutions)
            - trajectory.direction_gap(
                max_margin_batch([solution.margins for solution in solutions], Nuclear())
            )
        )[-1],
        "saturated": trajectory.softmax_probability[-1].min(axis=-1) > 0.99,
        "local": locally_optimal_selections(solutions, scores),
        "local_random": locally_optimal_selections(random_solutions, scores),
        "best": (selected == best).mean(axis=-1),
        "best_random": (tokens == best).mean(axis=-1),
    }


@kit.run(seeds=kit.seeds(20, by=20, name="path_seeds"), quick={"path_seeds": 5})
def farthest(seeds):
    """Solutions for the best tokens of sequences with fewer positions than dimensions: how far from
    them the best weights of a large size are.
    """
    n, T, d = 2, 3, 12
    data, heads = unit_sphere(n, T, d, seeds)
    gaps = np.empty((2, len(seeds)))
    for k in range(len(seeds)):
        instance = data.instance(k)
        pairs = sequence_pairs(instance, np.ones((n, T)), True)
        best = optimal_tokens(pairs, heads[k]).reshape(n, T)
        programme = sequence_margins(instance, best, causal=True)
        solution, nuclear = max_margin(programme), max_margin(programme, Nuclear())
        path = regularization_path(pairs, heads[k], radii=[FARTHEST * solution.norm], starts=3)
        gaps[:, k] = path.direction_gap(solution)[0], path.direction_gap(nuclear)[0]
    return {"far_gap": gaps[0], "far_gap_other": gaps[1]}


CHOSEN: dict[str, Any] = {
    "where": {"part": "trained"},
    "assumes": {"every position has chosen": lambda e: e["saturated"]},
}
RANDOM_TOKENS = kit.replaced(
    "random visible tokens in place of the trained ones", local="local_random", best="best_random"
)


@kit.claim(
    kit.at_least(
        COSINE, "the least of an independent program's 10; the rest still turn", share=kit.MOST
    ),
    "paper",
    "tfsvm, Theorem 11",
    **CHOSEN,
    null=kit.replaced("the solution of another draw", gap="gap_other"),
)
def T20(e):
    """Descent converges to the direction of the sequence programme of its own selection, with full
    and with causal attention.
    """
    return 1.0 - e.end("gap")


@kit.claim(
    kit.at_least(0.0, "nearer by any amount; both gaps are below one", share=kit.MOST),
    **CHOSEN,
    null=kit.replaced("one matrix W in their place", nuclear_lead="nuclear_lead_of_W"),
)
def T20c(e):
    """Factors end nearer to the nuclear than to the Frobenius solution of the sequence programme of
    their selection: by how much.
    """
    return e["nuclear_lead"]


@kit.claim(
    kit.at_most(1e-4, "a few solution norms of offset over a thousand, squared", share=kit.MOST),
    where={"part": "farthest"},
    null=kit.replaced("the nuclear solution", far_gap="far_gap_other"),
)
def T20d(e):
    """The best causal weights of a thousand solution norms are in the direction of the sequence
    programme of the best tokens.
    """
    return e["far_gap"]


@kit.claim(
    kit.at_least(1.0, "the few exceptions are still moving", share=kit.MOST),
    "recalled",
    **CHOSEN,
    null=RANDOM_TOKENS,
)
def T20b(e):
    """With an output at every position the selection that descent ends with is locally optimal."""
    return e["local"]


@kit.picture(
    "Every position selects a token",
    "Lines fall with the step to below 4e-4, for full and for causal attention.",
    2.9,
    1,
    2,
    width=7.4,
    sharey=True,
)
def sequence(evidence, axes):
    """Direction gap between trained W and the max-margin solution of the selection that it ends
    with; one thin line per draw, the thick one is the median, dotted the bound of .9996.
    """
    for ax, causal, colour in zip(axes, (False, True), (kit.TRAINED, kit.ATTENTION), strict=True):
        rows = evidence.where(part="trained", causal=causal)
        step, gaps = rows["step"][0][1:], rows["gap"][:, 1:]
        ax.plot(step, gaps.T, "-", color=colour, linewidth=0.8, alpha=0.35)
        ax.plot(step, np.median(gaps, axis=0), "-", color=colour)
        ax.axhline(1 - COSINE, linestyle=":", color=kit.FAINT, linewidth=1)
        ax.set(xscale="log", yscale="log", xlabel="step")
        mask, share = "Causal" if causal else "Full", 100 * np.mean(rows["best"])
        ax.set_title(f"{mask} attention, {share:.0f} % pick their best token")
    axes[0].set_ylabel("1 - cosine")
