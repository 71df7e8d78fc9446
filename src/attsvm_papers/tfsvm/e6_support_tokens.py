"""When every token is a support token.

Random tokens on the unit sphere with the highest-scoring tokens selected. An instance counts when
every constraint of its certified max-margin solution holds with equality.

Source: Transformers as Support Vector Machines, over-parameterisation (Assumption B, recalled);
specification E2.6
"""

from itertools import product
from typing import Any

import numpy as np

from attsvm import locally_optimal, max_margin, optimal_tokens, selection_margins, token_scores
from attsvm.datasets import unit_sphere
from attsvm_papers.kit import (
    ATTENTION,
    BEST,
    TRAINED,
    Evidence,
    at_least,
    at_most,
    blocks,
    claim,
    close_to,
    grid,
    label_ends,
    picture,
    rows,
    scales,
    setting,
    true,
)

# Instances of :func:`attsvm.datasets.unit_sphere` with the highest-scoring tokens selected.
SCALES = scales(
    shapes=((2, 4), (4, 5), (6, 8)),
    dimensions=(8, 16, 32, 64, 128, 256, 512),
    seeds=200,
    quick={"dimensions": (8, 32, 128, 512), "seeds": 50},
)

# Percent of 200 instances, measured for the specification, at the dimensions of the full scale.
REFERENCE = {
    (2, 4): (15, 51.5, 86.5, 98.5, 100, 100, 100),
    (4, 5): (0, 2, 20.5, 66, 96.5, 100, 100),
    (6, 8): (0, 0, 0, 0, 8.5, 61.5, 96.5),
}
ENUMERATED = (2, 3)  # sequences and tokens of the instances whose selections are all solved
DRAWS = 20  # of them for each dimension
# Mean number of locally optimal selections of 9, measured for the specification.
LOCALLY_OPTIMAL = {3: 1.65, 8: 1.05, 64: 1.0, 256: 1.0}
POINTS = 400  # random weights at which the descent direction is tested


@grid(rows("n T", setting("shapes")), d=setting("dimensions"), seeds=blocks(50))
def optimal(n, T, d, seeds):
    data, heads = unit_sphere(n, T, d, seeds)
    optimal, scores = optimal_tokens(data, heads), token_scores(data, heads)
    programmes = [selection_margins(data.instance(k), optimal[k]) for k in range(len(seeds))]
    solutions = max_margin(programmes)
    solved = np.array([solution.status == "optimal" for solution in solutions])
    support = np.array([len(solution.support) for solution in solutions])
    gram = [
        (A.differences @ A.differences.T)
        * (A.queries @ A.queries.T)[np.ix_(A.sequence, A.sequence)]
        for A in programmes
    ]
    least = np.array(
        [
            (
                np.linalg.solve(G, np.ones(len(G))).min()
                if np.linalg.matrix_rank(G) == len(G)
                else -np.inf
            )
            for G in gram
        ]
    )
    ascent, identity = zip(
        *(
            _alignment(data.instance(k), optimal[k], scores[k], solutions[k], seeds[k])
            for k in range(len(seeds))
        ),
        strict=True,
    )
    return {
        "solved": solved,
        "all_support": solved & (support == n * (T - 1)),
        "gram_test": least >= 0,
        "borderline": (
            np.abs(least) < 1e-4
        ),  # a constraint with (almost) zero multiplier: the two tests may round differently
        "ascent": np.array(ascent),
        "identity": np.array(identity),
    }


@grid(rows("n T", [ENUMERATED]), d=list(LOCALLY_OPTIMAL))
def every_selection(n, T, d):
    """How many selections of each instance are locally optimal, and how many of these are not the
    best though all tokens support.
    """
    data, heads = unit_sphere(n, T, d, range(DRAWS))
    optimal, scores = optimal_tokens(data, heads), token_scores(data, heads)
    local, spurious = [], []
    for k in range(len(heads)):
        one = data.instance(k)
        found = [
            max_margin(selection_margins(one, np.array(choice)))
            for choice in product(range(T), repeat=n)
        ]
        good = [s for s in found if s.status == "optimal" and locally_optimal(s, scores[k]).all()]
        local.append(len(good))
        spurious.append(
            sum(
                len(s.support) == s.margins.m and (s.margins.selected != optimal[k]).any()
                for s in good
            )
        )
    return {
        "local_selections": np.array(local, dtype=np.float64),
        "spurious": np.array(spurious, dtype=np.float64),
    }


def _alignment(
    data: Any, optimal: Any, scores: Any, solution: Any, seed: int
) -> tuple[float, float]:
    r"""Least :math:`\langle-\nabla L(W),W^{mm}\rangle` over random W, relative to the weights of
    the tokens, and the identity's error.

    The identity is that of all-support instances,
    :math:`\frac1n\sum_i|\ell'_i|\,s_{i\,opt}(\gamma_{i\,opt}-\bar\gamma_i)`.
    """
    if solution.status != "optimal":
        return np.nan, np.nan
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
    s = np.exp(logits - logits.max(axis=-1, keepdims=True))
    s /= s.sum(axis=-1, keepdims=True)
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
    rows = np.arange(data.n)
    predicted = (
        s[:, rows, optimal]
        * (drop[..., 0] - behind[:, rows, optimal])
        / (1.0 + np.exp(mean[..., 0]))
    ).sum(axis=1)
    scale = np.abs(weights).sum(axis=(1, 2))
    return float((products / scale).min()), float((np.abs(products - predicted) / scale).max())


def _measure_random(evidence: Evidence) -> Evidence:
    """The rows of random instances, without those whose selections were enumerated."""
    return evidence.take(np.isfinite(evidence["borderline"].astype(np.float64)))


def _measure_enumerated(evidence: Evidence, d: int | None = None) -> Evidence:
    rows = evidence.take(np.isfinite(evidence["local_selections"]))
    return rows if d is None else rows.where(d=d)


def _shares(evidence: Evidence) -> dict[tuple[int, int, int], float]:
    evidence = _measure_random(evidence)
    shapes = sorted(
        {
            (int(n), int(T), int(d))
            for n, T, d in zip(evidence["n"], evidence["T"], evidence["d"], strict=True)
        }
    )
    return {
        (n, T, d): float(np.mean(evidence.where(n=n, T=T, d=d)["all_support"]))
        for n, T, d in shapes
    }


@claim(
    at_least(
        1e-14,
        f"positive at {POINTS} random weights per instance, by ten times the rounding that T14b"
        " finds; 1e-12 was asked before and met by 2205 of 2206",
    ),
    "recalled",
    "P2, global convergence under Assumption B (number recalled)",
    assumes={"all tokens are support tokens": lambda e: _measure_random(e)["all_support"]},
)
def T14(e):
    """Where all tokens are support tokens, minus the gradient points towards the max-margin weights
    at every W.
    """
    return _measure_random(e)["ascent"]


@claim(
    at_most(
        1e-12,
        "relative to the sum of absolute weights; the specification saw 1e-16 on one shape,"
        " margins are exact to 1e-13",
    ),
    assumes={"all tokens are support tokens": lambda e: _measure_random(e)["all_support"]},
)
def T14b(e):
    """There the inner product is the mean of |l'| s (score of the optimal token - mean score)."""
    return _measure_random(e)["identity"]


@claim(
    true("both say that every multiplier of the equality-constrained solution is non-negative"),
    assumes={
        "no multiplier is within 1e-4 of zero": lambda e: (
            ~_measure_random(e)["borderline"].astype(bool)
        )
    },
)
def E2_6a(e):
    """All tokens are support tokens exactly when the inverse Gram matrix maps ones to non-negative
    numbers.
    """
    return _measure_random(e)["all_support"] == _measure_random(e)["gram_test"]


@claim(
    at_least(-0.03, "two standard deviations of a share of 200 instances near 0.98"),
    "recalled",
)
def E2_6b(evidence):
    """The share of such instances grows with d towards one."""
    shares = _shares(evidence)
    return np.concatenate(
        [
            np.diff([share for (n, T, _), share in shares.items() if (n, T) == shape])
            for shape in REFERENCE
        ]
    )


@claim(
    at_most(0.51, "points; the same 200 seeds, and one instance is half a point"),
    assumes={"200 instances in every cell": lambda e: _measure_random(e).rows == 200 * 7 * 3},
)
def E2_6c(evidence):
    """The shares are those measured for the specification."""
    shares, dimensions = _shares(evidence), SCALES.parameters.dimensions
    return np.array(
        [
            100 * abs(shares[n, T, d] - value / 100)
            for (n, T), row in REFERENCE.items()
            for d, value in zip(dimensions, row, strict=True)
            if (n, T, d) in shares
        ]
    )


@claim(
    at_most(
        0.0,
        "the best token would be a neighbour with a higher score; all 9 selections of each"
        " instance are solved",
    ),
    "recalled",
    "P2, over-parameterisation (recalled); derived",
)
def T17(e):
    """A selection other than the best is not locally optimal when all tokens support it."""
    return _measure_enumerated(e)["spurious"]


@claim(
    close_to(1.0, 0.0, "a count, in every instance; the specification measured 1.0 on average"),
)
def T17b(e):
    """From d = 64 on the global direction is the only locally optimal one."""
    return np.concatenate(
        [_measure_enumerated(e, d)["local_selections"] for d in LOCALLY_OPTIMAL if d >= 64]
    )


@claim(
    close_to(0.0, 0.35, "two standard errors at d = 3 if the 20 draws are other ones"),
)
def T17c(e):
    """Mean numbers of locally optimal selections are those of the specification: 1.65 at d = 3,
    1.05 at d = 8.
    """
    return [
        np.mean(_measure_enumerated(e, d)["local_selections"]) - mean
        for d, mean in LOCALLY_OPTIMAL.items()
    ]


@picture(
    "Over-parameterisation makes every token a support token",
    "Three rising curves reach 100 percent at d of about 100, 200 and 1000.",
    2.9,
    width=5.2,
    name="all-support",
)
def all_support(evidence, axes):
    """Share of random instances in which all non-selected tokens stand at the margin. Crosses: the
    specification's measurement.
    """
    ax, ends = axes[0], []
    shares = _shares(evidence)
    for colour, (n, T) in zip((TRAINED, BEST, ATTENTION), REFERENCE, strict=True):
        line = [(d, 100 * share) for (a, b, d), share in shares.items() if (a, b) == (n, T)]
        ax.plot(*zip(*line, strict=True), "o-", color=colour)
        known = [
            point
            for point in zip(SCALES.parameters.dimensions, REFERENCE[n, T], strict=True)
            if point[0] in dict(line)
        ]
        ax.plot(*zip(*known, strict=True), "x", color=colour, markersize=7, markeredgewidth=1.2)
        ends.append((line[-1][1], f"n = {n}, T = {T}", colour))
    ax.set_xscale("log", base=2)
    dimensions = sorted({d for *_, d in shares})
    ax.set_xticks(dimensions, [str(d) for d in dimensions])
    ax.set(xlabel="dimension d", ylabel="all tokens support, %", ylim=(-3, 103))
    label_ends(ax, ends)
