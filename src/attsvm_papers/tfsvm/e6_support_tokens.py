"""When every token is a support token.

Random tokens on the unit sphere with the highest-scoring tokens selected. An instance counts when
every constraint of its certified max-margin solution holds with equality. Descent from any start:
n = 2, T = 4, d = 16, normalised steps of a tenth of the solution's norm from 20 random directions
of each of three sizes, in the span of tokens and queries.

Source: Transformers as Support Vector Machines, over-parameterisation (Assumption B, recalled)
"""

from typing import Any

import numpy as np

from attsvm import AttentionData, max_margin_batch, optimal_tokens, token_scores, train
from attsvm.attention import Attention
from attsvm.base.softmax import softmax_rows
from attsvm.datasets import unit_sphere
from attsvm.margins import selection_batch
from attsvm.optim import SteepestDescent
from attsvm.training import AtSteps
from attsvm_papers import kit
from attsvm_papers.tfsvm.convergence import mixed_sizes, trend
from attsvm_papers.tfsvm.e5_convergence import shapes, share_of

# Percent of 200 instances in an independent program, at the dimensions of the full scale.
REFERENCE = {
    (2, 4): (15, 51.5, 86.5, 98.5, 100, 100, 100),
    (4, 5): (0, 2, 20.5, 66, 96.5, 100, 100),
    (6, 8): (0, 0, 0, 0, 8.5, 61.5, 96.5),
}
DESCENT = (2, 4, 16)  # n, T, d at which half of the instances have all tokens supporting
SLACK = 0.03
LENGTH = 0.1  # of the steps of descent, in norms of the solution
POINTS = 400  # random weights at which the descent direction is tested


@kit.run(
    kit.rows("n T", ((2, 4), (4, 5), (6, 8))),
    d=(8, 16, 32, 64, 128, 256, 512),
    seeds=kit.seeds(200, by=50),
    quick={"d": (8, 32, 128, 512), "seeds": 50},
    name="optimal",
)
def optimal_selections(n, T, d, seeds):
    data, heads = unit_sphere(n, T, d, seeds)
    optimal, scores = optimal_tokens(data, heads), token_scores(data, heads)
    solutions = max_margin_batch(selection_batch(data, optimal))
    assert solutions.optimal.all()
    support = np.array([len(solution.support) for solution in solutions])
    ascent = [
        _alignment(data.instance(k), scores[k], solutions[k], seeds[k]) for k in range(len(seeds))
    ]
    return {"all_support": support == n * (T - 1), "ascent": np.array(ascent)}


@kit.run(
    seeds=kit.seeds(440, by=50, name="instances"),
    quick={"instances": 24, "directions": 4, "steps": 2000},
)
def any_start(seeds, starts=(0.1, 5.0, 20.0), directions=20, steps=4000):
    """Descent from random directions of several sizes, in solution norms, on instances of which
    half have all tokens supporting.
    """
    n, T, d = DESCENT
    data, heads = unit_sphere(n, T, d, seeds)
    best = optimal_tokens(data, heads)
    solutions = max_margin_batch(selection_batch(data, best))
    assert solutions.optimal.all()
    starts_of_instance = len(starts) * directions
    run = np.repeat(np.arange(len(seeds)), starts_of_instance)
    left = np.linalg.qr(data.tokens.reshape(-1, n * T, d).mT)[0]
    right = np.linalg.qr(data.queries.mT)[0]
    shape = (len(seeds), len(starts), directions, n * T, n)
    W = np.random.default_rng([6, seeds[0]]).standard_normal(shape)
    W *= np.array(starts)[:, None, None, None] / np.linalg.norm(W, axis=(-2, -1), keepdims=True)
    walk = np.stack([kit.random_steps([61, seed], steps, W.shape[-2:]) for seed in seeds])
    random = np.linalg.norm(W + LENGTH * walk[:, None, None], axis=(-2, -1)) / (LENGTH * steps)
    W = left[:, None, None] @ W @ right.mT[:, None, None]
    # Queries in units of the solution's size, so that steps and starts are the same in all runs.
    data = AttentionData(
        data.tokens[run], data.labels[run], data.queries[run] * solutions.norm[run, None, None]
    )
    model = Attention.cross(data, heads[run], init=W.reshape(-1, d, d))
    trajectory = train(
        model, data, SteepestDescent(model.parameters(), lr=LENGTH), steps, AtSteps(())
    )
    gaps = trajectory.direction_gap([solutions[int(k)] for k in run])[-1]
    length = trajectory.norm[-1] / (LENGTH * steps)
    return {
        "descent_supported": np.array([len(s.support) == n * (T - 1) for s in solutions]),
        "descent_length": length.reshape(-1, starts_of_instance).min(axis=-1),
        "random_length": random.min(axis=(1, 2)),
        "descent_gap": gaps.reshape(-1, starts_of_instance).max(axis=-1),
    }


def _alignment(data: Any, scores: Any, solution: Any, seed: int) -> float:
    r"""Least :math:`\langle-\nabla L(W),W^{mm}\rangle` over random W, relative to the weights of
    the tokens.
    """
    # Logits see W only between the spans of tokens and queries; a Gaussian W between those spans is
    # a smaller Gaussian matrix.
    left, right = (
        np.linalg.qr(array.T)[0] for array in (data.tokens.reshape(-1, data.d_x), data.queries)
    )
    tokens, queries = data.tokens @ left, data.queries @ right
    generator = np.random.default_rng([seed, data.d_x])
    W = generator.standard_normal((POINTS, left.shape[1], right.shape[1]))
    sizes = 10.0 ** generator.uniform(-1, 1.5, POINTS) * solution.norm
    W *= (sizes / np.linalg.norm(W, axis=(1, 2)))[:, None, None]
    logits = np.einsum("ntd,pnd->pnt", tokens, queries @ W.mT, optimize=True)
    s = softmax_rows(logits)
    # Everything relative to the token of largest probability: where it has nearly all, scores minus
    # their mean would be rounding alone.
    first = s.argmax(axis=-1)[..., None]
    at_solution = np.broadcast_to(
        np.einsum("ntd,nd->nt", data.tokens, data.queries @ solution.W.T), s.shape
    )
    behind = np.take_along_axis(np.broadcast_to(scores, s.shape), first, -1) - scores
    drop = (s * behind).sum(axis=-1, keepdims=True)
    mean = np.take_along_axis(np.broadcast_to(scores, s.shape), first, -1) - drop
    weights = s * (behind - drop) / (1.0 + np.exp(mean))
    products = (weights * (np.take_along_axis(at_solution, first, -1) - at_solution)).sum(
        axis=(1, 2)
    )
    return float((products / np.abs(weights).sum(axis=(1, 2))).min())


def instances_without_full_support(*columns: str) -> kit.Null:
    """The null with values of instances in which some token does not support."""

    def of(e: kit.Evidence) -> kit.Evidence:
        columns_without_support = {}
        for name in columns:
            supported = e["descent_supported" if name.startswith("descent") else "all_support"]
            finite_rows = np.isfinite(e[name])
            values = e[name].copy()
            values[finite_rows] = np.resize(
                e[name][finite_rows & (supported == 0)], finite_rows.sum()
            )
            columns_without_support[name] = values
        return e.but(columns_without_support)

    return kit.Null("instances in which some token does not support", of)


def _shares_of_full_support(evidence: kit.Evidence) -> dict[tuple[int, int, int], float]:
    rows = evidence.where(part="optimal")
    return {shape: share_of(rows, "all_support", *shape) for shape in shapes(rows)}


ALL_SUPPORT = {"all tokens are support tokens": lambda e: e["all_support"] == 1}


@kit.claim(
    kit.at_least(
        1e-14,
        f"positive at {POINTS} random weights per instance, by more than rounding",
    ),
    "recalled",
    "tfsvm, global convergence under Assumption B (number recalled)",
    assumes=ALL_SUPPORT,
    null=instances_without_full_support("ascent"),
)
def T14(e):
    """Where all tokens are support tokens, minus the gradient points towards the max-margin weights
    at every W.
    """
    return e["ascent"]


ANY_START = {"all tokens are support tokens": lambda e: e["descent_supported"] == 1}


@kit.claim(
    kit.at_least(
        0.2,
        "norm at the end over the length of the path, worst of all starts; of random steps it"
        " falls as one over the root of their number",
    ),
    "recalled",
    "tfsvm, global convergence under Assumption B (number recalled)",
    assumes=ANY_START,
    null=kit.replaced(
        "as many steps in random directions from the same starts", descent_length="random_length"
    ),
)
def T14n(e):
    """Where all tokens are support tokens the weights diverge from any start, of 0.1 to 20 solution
    norms.
    """
    return e["descent_length"]


@kit.claim(
    kit.at_most(
        0.01, "8 degrees for the worst start, after a path of ten times the largest or more"
    ),
    "ours",
    "tfsvm, global convergence under Assumption B (number recalled), with the direction added",
    assumes=ANY_START,
    explanation=(
        "The theorem, as it is recalled, says that no weights are stationary and that weights"
        " diverge (T14, T14n). Neither gives the direction: a sequence that begins with a wrong"
        " token far ahead may keep it, because its pull falls exponentially with that lead."
    ),
    failure="ours is stronger",
    null=instances_without_full_support("descent_gap"),
)
def T14d(e):
    """Where all tokens are support tokens the weights diverge in the direction of the max-margin
    weights from any start: largest gap of the starts of an instance.
    """
    return e["descent_gap"]


@kit.claim(
    kit.at_least(
        0.0,
        f"no step is against it by more than {SLACK:g}, two standard deviations of a share of 200"
        " instances near 0.98, and all of them together are more than that",
    ),
    "recalled",
    null=mixed_sizes("all_support"),
)
def E2_6b(evidence):
    """The share of instances in which all tokens are support tokens grows with d towards one."""
    shares = _shares_of_full_support(evidence)
    return np.concatenate(
        [
            trend([share for (n, T, _), share in shares.items() if (n, T) == shape], SLACK)
            for shape in REFERENCE
        ]
    )


@kit.picture(
    "Over-parameterisation makes every token a support token",
    "Three rising curves reach 100 percent at d of about 100, 200 and 1000.",
    2.9,
    width=5.2,
    name="all-support",
)
def draw_share_of_full_support(evidence, axes):
    """Share of random instances in which all non-selected tokens stand at the margin. Crosses: an
    independent program.
    """
    ax, ends = axes[0], []
    shares = _shares_of_full_support(evidence)
    for colour, (n, T) in zip((kit.TRAINED, kit.BEST, kit.ATTENTION), REFERENCE, strict=True):
        line = [(d, 100 * share) for (a, b, d), share in shares.items() if (a, b) == (n, T)]
        ax.plot(*zip(*line, strict=True), "o-", color=colour)
        references = [
            point
            for point in zip((8, 16, 32, 64, 128, 256, 512), REFERENCE[n, T], strict=True)
            if point[0] in dict(line)
        ]
        ax.plot(
            *zip(*references, strict=True), "x", color=colour, markersize=7, markeredgewidth=1.2
        )
        ends.append((line[-1][1], f"n = {n}, T = {T}", colour))
    ax.set_xscale("log", base=2)
    dimensions = sorted({d for *_, d in shares})
    ax.set_xticks(dimensions, [str(d) for d in dimensions])
    ax.set(xlabel="dimension d", ylabel="all tokens support, %", ylim=(-3, 103))
    kit.label_ends(ax, ends)
