"""Several tokens per sequence under a ReLU head.

n = 3, T = 4, fixed two-layer ReLU head, W from uniform random weights, normalised gradient descent
with step 0.1, 2000 steps. A run is accepted when no probability lies between 1e-6 and 1e-3, at
least one is below, and the programmes of the selected sets are feasible. As in the paper the
multiple C of the max-margin part is that of the final weights; beside it, C fitted at every record.

Source: Transformers as Support Vector Machines, multi-token figure

Notes: The long one: at d = 10 about one seed in 60 is accepted, so 500 accepted runs need more than
30 000. The published guard of 2.2e-16 in the norm of the gradient belongs to the protocol: where a
ReLU is dead its sequences pull no longer, and without a guard the others would grow alone for ever.
Seeds without a negative label are skipped, as in the released code.
"""

from math import ceil
from typing import Any

import numpy as np
import torch

from attsvm import (
    finite_component,
    max_margin,
    multi_token_margins,
    recombine,
    selection_margins,
    train,
)
from attsvm.datasets import mlp_instance
from attsvm.dynamics import AtSteps, direction_gap
from attsvm.models import Attention, MLPHead
from attsvm.selection import selected_sets
from attsvm_papers.kit import (
    ATTENTION,
    BEST,
    MOST,
    TRAINED,
    VERDICT,
    Evidence,
    at_least,
    at_most,
    between,
    claim,
    cut,
    exchanged,
    grid,
    legend_below,
    logarithmic,
    loglog,
    picture,
    replaced,
    rows,
    same,
    scales,
    shuffled,
    stacked,
    true,
)
from attsvm_papers.tfsvm.guarded import GuardedDescent

# Instances of :func:`attsvm.datasets.mlp_instance`; ``seeds`` is the number of accepted runs for
# each dimension.
SCALES = scales(
    dimensions=(4, 6, 8, 10),
    n=3,
    T=4,
    steps=2000,
    lr=0.1,
    seeds=500,
    first_seed=VERDICT,
    quick={"dimensions": (4,), "seeds": 34},
)

# share of seeds that give an accepted run, from below
ACCEPTED = {4: 0.170, 6: 0.090, 8: 0.042, 10: 0.0155}
BLOCK = 500
EVERY = 100  # steps between two records

# Means of 1 - cosine at step 2000. The stored plot shows 500 accepted runs; an independent
# program had 100, 100, 80 and 80.
PUBLISHED = {
    "both": {4: 0.034, 6: 0.0165, 8: 0.011, 10: 0.0055},
    "margin": {4: 0.071, 6: 0.043, 8: 0.015, 10: 0.0085},
    "single": {4: 0.155, 6: 0.145, 8: 0.137, 10: 0.122},
}
DEEP = 1e-13  # masked probability below which the finite part has settled


def attempts(parameters):
    """Blocks of seeds of each dimension, enough for the number of accepted runs; all but a single
    one are full.
    """
    for d in parameters.dimensions:
        needed = ceil(parameters.seeds / ACCEPTED.get(d, min(ACCEPTED.values())))
        count = needed if needed < BLOCK else BLOCK * ceil(needed / BLOCK)
        yield from ((d, range(low, low + size)) for low, size in cut(count, BLOCK, start=1))


@grid(rows("d seeds", attempts))
def run(n, T, d, steps, lr, seeds):
    labels = mlp_instance(n, T, d, seeds)[0].labels
    kept = np.array(seeds)[(labels < 0).any(axis=-1)]
    data, V = mlp_instance(n, T, d, kept.tolist())
    model = Attention.cross(data, MLPHead(torch.from_numpy(V)), init=("uniform", seeds[0]))
    course = train(
        model, data, GuardedDescent(model.parameters(), lr), steps, AtSteps(range(0, steps, EVERY))
    )
    s = model.probabilities(data).detach().numpy()
    chosen = selected_sets(s)
    rows = [
        {"seed": int(kept[k]), "tried": len(seeds), "run": k, **found}
        for k in np.flatnonzero(chosen.clear).tolist()
        if (found := _compare(data.instance(k), chosen.sets[k], s[k], course.W[:, k])) is not None
    ]
    parts = [row.pop("parts") for row in rows]
    for k, row in enumerate(rows):  # with the finite part of another run
        row["other"] = direction_gap(course.W[:, row.pop("run")], parts[k - 1][0] + parts[k][1])
    if not rows:  # an empty table still says which columns it has
        rows = [{"seed": -1, "tried": len(seeds), **_nothing(n, len(course.steps))}]
    return stacked(rows) | {"step": same(course.steps)}


def _compare(data: Any, sets: Any, s: Any, W: Any) -> dict[str, Any] | None:
    """Direction gaps of a course to the predictions, and both parts of the first; None where one of
    them does not exist.
    """
    margin, single = max_margin(
        [multi_token_margins(data, sets), selection_margins(data, s.argmax(axis=-1))]
    )
    finite = finite_component(data, sets, np.where(sets, s, 1.0))
    if margin.status != "optimal" or single.status != "optimal" or not finite.consistent:
        return None
    diverging = recombine(W[-1], finite.W, margin.W).scale * margin.W
    return {
        "both": direction_gap(W, finite.W + diverging),
        "refitted": np.array(
            [1.0 - recombine(weights, finite.W, margin.W).cosine for weights in W]
        ),
        "parts": (finite.W, diverging),
        "margin": direction_gap(W, margin),
        "single": direction_gap(W, single),
        "masked": s[~sets].max(),
        "sizes": sets.sum(axis=-1),
        "label": data.labels,
    }


def _nothing(n: int, records: int) -> dict[str, Any]:
    gaps = dict.fromkeys(
        ("both", "refitted", "margin", "single", "other"), np.full(records, np.nan)
    )
    return {**gaps, "masked": np.nan, "sizes": np.zeros(n, dtype=np.int64), "label": np.zeros(n)}


def _accepted(evidence: Evidence, d: int, most: int = 500) -> Evidence:
    """The accepted runs of the first seeds."""
    rows = evidence.where(d=d)
    order = np.argsort(rows["seed"], kind="stable")
    return rows.take(order[rows["seed"][order] > 0][:most])


def _each(evidence: Evidence, measure: Any) -> Any:
    """The measurement of every dimension."""
    return np.concatenate(
        [np.atleast_1d(measure(_accepted(evidence, d), d)) for d in evidence.levels("d")]
    )


def _enough(evidence: Evidence, runs: int) -> Any:
    return all(
        _accepted(evidence, d).rows >= runs
        for d in SCALES.parameters.dimensions
        if d in evidence.levels("d")
    )


def _all_dimensions(evidence: Evidence) -> bool:
    return evidence.levels("d") == list(SCALES.parameters.dimensions)


def _order(rows: Evidence, d: int, name: str = "both") -> Any:
    late = rows["step"][0] >= 200
    both, margin, single = (rows[each].mean(axis=0)[late] for each in (name, "margin", "single"))
    return np.concatenate([margin - both, single - margin])


def _by_dimension(evidence: Evidence, name: str) -> Any:
    return np.diff([_accepted(evidence, d)[name][:, -1].mean() for d in evidence.levels("d")])


def _factor(evidence: Evidence, reference: Any, reduce: Any) -> Any:
    return _each(
        evidence,
        lambda rows, d: [
            abs(np.log(reduce(rows[name][:, -1]) / reference[name][d])) for name in reference
        ],
    )


FACTOR = float(np.log(1.5))


@claim(
    at_least(0.0, "at every record from step 200 on, at every dimension"),
    "paper",
    "P2, multi-token figure; a proposed equivalence supported by experiment",
    assumes={"30 accepted runs": lambda e: _enough(e, 30)},
    null=replaced("the finite part of another run", both="other"),
)
def T19(e):
    """Trained weights are a finite part plus a multiple of the max-margin part: mean gaps order as
    both < margin < single token.
    """
    return _each(e, _order)


@claim(
    at_least(0.0, "at every record from step 200 on, at every dimension"),
    assumes={"30 accepted runs": lambda e: _enough(e, 30)},
    null=replaced("the finite part of another run", refitted="other"),
)
def T19d(e):
    """The same with C fitted at every record."""
    return _each(e, lambda rows, d: _order(rows, d, "refitted"))


@claim(
    at_least(
        MOST,
        "maximising a convex function over a simplex; the rest are runs that are still moving",
    ),
    assumes={"30 accepted runs": lambda e: _enough(e, 30)},
    null=exchanged("negative labels in their place", "label", 1.0, -1.0),
)
def T19b(e):
    """Under a positive label the ReLU head, which is convex, selects one token."""
    return _each(e, lambda rows, d: np.mean(rows["sizes"][rows["label"] > 0] == 1))


@claim(
    at_least(0.5, "more than half of the sequences; 50 to 60 % at d = 4 in an independent program"),
    assumes={"30 accepted runs": lambda e: _enough(e, 30)},
    null=exchanged("positive labels in their place", "label", 1.0, -1.0),
)
def T19c(e):
    """Under a negative label it prefers mixtures."""
    return _each(e, lambda rows, d: np.mean(rows["sizes"][rows["label"] < 0] > 1))


@claim(
    at_most(0.0, "means at step 2000"),
    "authors' code",
    "P2, stored plots",
    assumes={
        "all four dimensions": _all_dimensions,
        "400 accepted runs each": lambda e: _enough(e, 400),
    },
    null=shuffled("both", "margin"),
)
def E2_7a(e):
    """The gaps of both parts and of the margin part fall with the dimension."""
    return np.concatenate([_by_dimension(e, name) for name in ("both", "margin")])


@claim(
    between(0.11, 0.17, "the stored plots, with a standard error of 0.007"),
    "authors' code",
    "P2, stored plots",
    assumes={"100 accepted runs": lambda e: _enough(e, 100)},
    null=replaced("the max-margin part", single="margin"),
)
def E2_7b(e):
    """The gap to the single-token solution stays between .12 and .16."""
    return _each(e, lambda rows, d: rows["single"][:, -1].mean())


@claim(
    at_most(FACTOR, "logarithm of 1.5: heavy tails, other starts"),
    "authors' code",
    "P2, stored plots",
    assumes={"100 accepted runs": lambda e: _enough(e, 100)},
    null=replaced("the predictions exchanged", margin="single", single="margin"),
)
def E2_7c(e):
    """Means at step 2000 are those of the stored plots."""
    return _factor(e, PUBLISHED, np.mean)


@claim(
    true("the scatter rises to 0.1 near 1e-6", share=0.75),
    "authors' code",
    "P2, stored plots",
    assumes={"100 accepted runs": lambda e: _enough(e, 100)},
    null=shuffled("masked", within="d"),
)
def E2_7f(e):
    """Where they are above 1e-8 the gap is larger, at three of four dimensions."""
    return _each(
        e,
        lambda rows, d: (
            np.median(rows["both"][rows["masked"] > 1e-8, -1])
            > 3 * np.median(rows["both"][rows["masked"] < DEEP, -1])
        ),
    )


@picture(
    "A finite part beside a diverging one",
    "Three falling lines per dimension, lowest the one with both parts; below, a cloud at"
    " 2e-3 that rises to the right.",
    4.6,
    2,
    lambda e: len(e.levels("d")),
    width=lambda e: max(2.2 * len(e.levels("d")), 4.6),
    sharey="row",
    squeeze=False,
    name="multi-token",
)
def multi_token(evidence, axes):
    """Above: gap between trained weights and three predictions from the last softmax, C of the last
    weights (crosses: read off the published plot at step 2000). Below, one dot per run: the
    prediction is best where masked tokens have vanished.
    """
    dimensions = evidence.levels("d")
    lines = (
        ("both", BEST, "finite + max-margin part"),
        ("margin", TRAINED, "max-margin part"),
        ("single", ATTENTION, "single-token solution"),
    )
    for k, d in enumerate(dimensions):
        rows = _accepted(evidence, d)
        top, bottom = axes[0, k], axes[1, k]
        top.plot(
            rows["step"][0],
            rows["refitted"].mean(axis=0),
            ":",
            color=BEST,
            label="the same, C refitted",
        )
        for name, colour, label in lines:
            top.plot(rows["step"][0], rows[name].mean(axis=0), "-", color=colour, label=label)
            top.plot(
                2000,
                PUBLISHED[name][d],
                "x",
                color=colour,
                markersize=7,
                markeredgewidth=1.3,
                clip_on=False,
            )
        logarithmic(top.yaxis, np.array([1e-3, 1.0]))
        top.set(ylim=(3e-3, 1.2), xlim=(0, 2000), title=f"d = {d}, {rows.rows} runs", xlabel="step")
        bottom.plot(
            rows["masked"],
            rows["both"][:, -1],
            "o",
            color=BEST,
            markersize=2.5,
            alpha=0.35,
            linewidth=0,
            rasterized=True,
        )
        loglog(bottom, np.array([5e-18, 1e-6]), np.array([1e-5, 1.0]))
        bottom.set(
            xlim=(5e-18, 1.5e-6),
            xticks=[1e-16, 1e-11, 1e-6],
            ylim=(1e-5, 1),
            xlabel="largest masked probability",
        )
    axes[0, 0].set_ylabel("1 - cosine, mean")
    axes[1, 0].set_ylabel("1 - cosine at the end")
    legend_below(axes[0, 0], 4)
