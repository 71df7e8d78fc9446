"""How the finding depends on the queries: their number, the threshold, and which were drawn.

Trainings of heads-1 under AdamW and Muon after all steps, the first head of each layer, nuclear and
Frobenius norms, rotated and permuted nulls. Programmes have 20 to 640 queries with largest softmax
weight above one half, or 80 above .3 to .95; a head that is sure of fewer is scaled until it is
sure of enough. Those of more than 160 queries are from three times as many texts and in the
Frobenius norm alone, at the scale ``paper`` also in the nuclear norm. Held-out: does the solution
select, at sure queries outside its programme, what the head selects, and how often does the most
frequent relative position? Two programmes of 80 queries, drawn from the same texts, are compared:
the cosine of their solutions, and the share of support tokens that both name. Beside it stands the
share for as many rivals drawn at random.

Source: this project
"""

from dataclasses import asdict
from typing import Any

import numpy as np

from attsvm_papers.heads.decoder import MADE, Sizes
from attsvm_papers.heads.e3_course import OPTIMISERS, REAL
from attsvm_papers.heads.networks import (
    LOOKED_AT,
    attention,
    chosen,
    files,
    held_out_texts,
)
from attsvm_papers.heads.own_solutions import (
    STRICT,
    THRESHOLD,
    Look,
    cosine,
    own_solutions,
    stable_rank,
)
from attsvm_papers.heads.reading import (
    COLOURS,
    NAMES,
    NORMS,
    ROTATED,
    columns,
    excess,
    known,
    over_seeds,
    seeds,
)
from attsvm_papers.kit import (
    RULE,
    VERDICT,
    at_least,
    claim,
    each,
    grid,
    picture,
    replaced,
    scales,
)

SCALES = scales(
    text="tinyshakespeare",
    sizes=asdict(Sizes(steps=450)),
    numbers=(20, 40, 80, 160, 320, 640),
    most=160,
    thresholds=(0.3, 0.7, 0.9, 0.95),
    queries=80,
    seeds=5,
    first_seed=VERDICT,
    published={"sizes": asdict(Sizes()), "most": 640},
    quick={
        "text": MADE,
        "sizes": asdict(Sizes(context=12, width=12, depth=1, heads=2, steps=20)),
        "numbers": (12, 24),
        "thresholds": (0.7,),
        "queries": 12,
        "seeds": 1,
    },
)


FEW = 160
"""Queries that the texts of heads-1 have enough of."""


@grid(digest=files, seed=seeds, optimiser=OPTIMISERS)
def run(optimiser, seed, text, digest, sizes, numbers, most, thresholds, queries):
    training = chosen(text, sizes, optimiser, seed)
    model, found = training.model(), []
    few, many = (
        attention(model, held_out_texts(text, training.sizes, seed, LOOKED_AT * times))
        for times in (1, 3)
    )
    asked = [(n, THRESHOLD) for n in numbers] + [(queries, t) for t in thresholds]
    for count, threshold in asked:
        norms = NORMS[:2] if count <= most else NORMS[1:2]
        for number, layer in enumerate(few if count <= FEW else many):
            told = {
                "layer": number,
                "rank": stable_rank(layer.weights[0]),
                "queries": count,
                "threshold": threshold,
            }
            seen = (layer.weights, 0, layer.inputs, layer.tokens, norms)
            looked = own_solutions(*seen, Look(count, threshold, nulls=STRICT), seed)
            again: list[Any] = [None] * len(norms)
            if (count, threshold) == (queries, THRESHOLD):
                again = own_solutions(*seen, Look(count, nulls=STRICT[:1]), seed, draw=1)
            for own, other in zip(looked, again, strict=True):
                found.append(({**told, **shared(own, other, layer.tokens.shape[1], seed)}, own))
    return columns(found)


def shared(one, other, length, seed):
    """The cosine of the solutions of two samples, the share of the tokens in support of one that
    support the other as well, and of as many tokens before the same queries, drawn at random.
    """
    if other is None:
        return dict.fromkeys(("alike", "shared", "chance"), np.nan)
    rng = np.random.default_rng(seed)
    sets = []
    for rows in (one.support, other.support):
        drawn = rng.integers(rows[:, 1] + 1)
        sets.append(
            [set((rows[:, 0] * length + places).tolist()) for places in (rows[:, 2], drawn)]
        )
    held, chance = (len(a & b) / min(len(a), len(b)) for a, b in zip(*sets, strict=True))
    return {"alike": cosine(one.solution, other.solution), "shared": held, "chance": chance}


def of(e, norm="nuc", **where):
    """The rows in a norm."""
    return e.where(norm=NORMS.index(norm), **where)


@each(
    claim(
        at_least(0.03, "as in H1; mean over layers and seeds, one optimiser and number each"),
        id=f"H8{letter}",
        statement=words,
        assumes=REAL,
        null=ROTATED,
        norm=norm,
    )
    for letter, norm, words in (
        ("", "nuc", "The excess is there at every number of queries from 40 to 160."),
        ("d", "fro", "In the Frobenius norm it is there at every number from 40 to 640."),
    )
)
def by_number(e, norm):
    rows = of(e, norm, threshold=THRESHOLD)
    return means(rows.take(rows["queries"] >= 40), "queries")


@claim(
    at_least(0.03, "as in H1; mean over layers and seeds, one optimiser and threshold each"),
    assumes=REAL,
    null=ROTATED,
)
def H8a(e):
    """And at every threshold from .3 to .95."""
    return means(of(e, queries=80), "threshold")


@claim(
    at_least(0.0, "one optimiser each, mean over layers and seeds, the most queries"),
    assumes=REAL,
    null=replaced("the rotated weights' solution", agreement="stranger"),
)
def H8b(e):
    """At other queries the nuclear solution agrees with the head more often than the most frequent
    relative position does (a head that is sure of no others is left out).
    """
    most = of(e).levels("queries")[-1]
    rows = [of(e, optimiser=name, queries=most) for name in known(e, OPTIMISERS)]
    return np.array([over_seeds(row, row["agreement"] - row["usual"]) for row in rows])


@claim(
    at_least(0.1, "one optimiser each, mean over layers and seeds, difference of two shares"),
    assumes=REAL,
    null=replaced("tokens drawn at random", shared="chance"),
)
def H8c(e):
    """Two samples of queries share more tokens in support than as many tokens drawn at random."""
    rows = [of(e, optimiser=name, queries=80, threshold=THRESHOLD) for name in known(e, OPTIMISERS)]
    return np.array([np.mean(row["shared"] - row["chance"]) for row in rows])


def means(e, axis):
    """Mean excess of every optimiser at every level of an axis."""
    return np.array(
        [
            np.mean(excess(e.where(optimiser=name, **{axis: level})))
            for name in known(e, OPTIMISERS)
            for level in e.levels(axis)
        ]
    )


@picture(
    "Number of queries and threshold",
    "Three panels: cosines rise with the number of queries for heads and less for nulls, change"
    " little with the threshold; held-out agreement rises with the number.",
    3.0,
    1,
    3,
    width=9.2,
)
def samples(evidence, axes):
    """Means over layers and seeds, nuclear norm. Left and middle: cosine of head and own solution,
    dotted the stricter of the two nulls. Right: share of other sure queries at which the
    solution selects what the head does; dotted, the most frequent relative position.
    """
    evidence = of(evidence)
    numbers = evidence.where(threshold=THRESHOLD).levels("queries")
    middle = numbers[min(2, len(numbers) - 1)] if 80 not in numbers else 80
    null = np.maximum(evidence["rotated"], evidence["permuted"])
    panels = (
        ("queries", numbers, {"threshold": THRESHOLD}, evidence["cosine"], null),
        ("threshold", evidence.levels("threshold"), {"queries": middle}, evidence["cosine"], null),
        ("queries", numbers, {"threshold": THRESHOLD}, evidence["agreement"], evidence["usual"]),
    )
    for ax, (axis, levels, fixed, own, other) in zip(axes, panels, strict=True):
        for name in known(evidence, OPTIMISERS):
            for values, style in ((own, "o-"), (other, ":")):
                points = []
                for level in levels:
                    keep = evidence["optimiser"] == name
                    for key, value in {**fixed, axis: level}.items():
                        keep = keep & (evidence[key] == value)
                    points.append(over_seeds(evidence.take(keep), values[keep]))
                label = NAMES[name] if style == "o-" else None
                ax.plot(levels, points, style, color=COLOURS[name], markersize=4, label=label)
        ax.axhline(0, color=RULE, linewidth=0.8)
        ax.set_xlabel("queries of the programme" if axis == "queries" else axis)
        if axis == "queries":
            ax.set_xscale("log", base=2)
            ax.set_xticks(levels, [str(level) for level in levels])
            ax.minorticks_off()
    axes[0].set_title("cosine, by queries")
    axes[1].set_title("cosine, by threshold")
    axes[2].set_title("held-out agreement")
    axes[0].legend(frameon=False, fontsize=8.5)
