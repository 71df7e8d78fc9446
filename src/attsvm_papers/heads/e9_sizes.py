"""Other contexts, widths and depths.

Trainings as in heads-1 under AdamW and Muon with one size changed at a time: twice the context,
half the width (heads of 16 instead of 32), twice the depth. The first head of the first and of the
last layer is measured after all steps, in the nuclear norm, beside its two strict nulls and the
layer's other heads. Rates are those of heads-7, chosen at the sizes of heads-1.

Source: this project
"""

from dataclasses import asdict

import numpy as np

from attsvm_papers.heads.decoder import MADE, Sizes
from attsvm_papers.heads.e3_course import OPTIMISERS, REAL
from attsvm_papers.heads.networks import attention, chosen, files, held_out_texts
from attsvm_papers.heads.own_solutions import STRICT, Look, own_solutions, stable_rank
from attsvm_papers.heads.reading import (
    COLOURS,
    NAMES,
    ROTATED,
    by_seed,
    columns,
    excess,
    known,
    seeds,
)
from attsvm_papers.kit import FAINT, RULE, VERDICT, at_least, claim, grid, picture, scales

SCALES = scales(
    text="tinyshakespeare",
    sizes=asdict(Sizes(steps=450)),
    changes=({"context": 128}, {"width": 64}, {"depth": 4}),
    queries=80,
    seeds=2,
    first_seed=VERDICT,
    published={"sizes": asdict(Sizes())},
    quick={
        "text": MADE,
        "sizes": asdict(Sizes(context=12, width=12, depth=1, heads=2, steps=20)),
        "changes": ({"context": 16}, {"width": 8}, {"depth": 2}),
        "queries": 12,
        "seeds": 1,
    },
)


@grid(digest=files, seed=seeds, optimiser=OPTIMISERS, change=lambda p: range(len(p.changes)))
def run(optimiser, seed, change, text, digest, sizes, changes, queries):
    training = chosen(text, {**sizes, **changes[change]}, optimiser, seed)
    layers = attention(training.model(), held_out_texts(text, training.sizes, seed))
    look, found = Look(queries, nulls=STRICT), []
    for number in sorted({0, len(layers) - 1}):
        layer = layers[number]
        told = {"layer": number, "rank": stable_rank(layer.weights[0])}
        told |= {"loss": training.losses[-1], **{k: getattr(training.sizes, k) for k in CHANGED}}
        (own,) = own_solutions(layer.weights, 0, layer.inputs, layer.tokens, ("nuc",), look, seed)
        found.append((told, own))
    return columns(found)


CHANGED = ("context", "width", "depth")


def means(e, values):
    """Mean over layers and seeds, one optimiser and change each."""
    return np.array(
        [
            by_seed(e.take(mine), values[mine]).mean()
            for name in known(e, OPTIMISERS)
            for k in e.levels("change")
            if (mine := (e["optimiser"] == name) & (e["change"] == k)).any()
        ]
    )


@claim(
    at_least(0.03, "as in H1; mean over layers and seeds, one optimiser and size each"),
    assumes=REAL,
    null=ROTATED,
)
def H12(e):
    """The excess is there at other contexts, widths and depths."""
    return means(e, excess(e))


@picture("Other sizes", "A group of points per size, above grey nulls.", 3.0, width=5.4)
def changes(evidence, panels):
    """Nuclear cosine of head and own solution, mean over two heads, a point per seed; grey ticks:
    the stricter of the two nulls.
    """
    axes, names = panels[0], known(evidence, OPTIMISERS)
    null = np.maximum(evidence["rotated"], evidence["permuted"])
    places = evidence.levels("change")
    for shift, name in zip((-0.12, 0.12), names, strict=True):
        for k in places:
            mine = (evidence["optimiser"] == name) & (evidence["change"] == k)
            for values, style, colour in (
                (evidence["cosine"], "o", COLOURS[name]),
                (null, "_", FAINT),
            ):
                each = by_seed(evidence.take(mine), values[mine])
                label = NAMES[name] if style == "o" and k == places[0] else None
                at = np.full(len(each), k + shift)
                axes.plot(at, each, style, color=colour, markersize=5, label=label)
    rows = [evidence.where(change=k) for k in places]
    words = [", ".join(f"{c} {int(row[c][0])}" for c in CHANGED) for row in rows]
    axes.set_xticks(places, [each.replace(", ", "\n") for each in words], fontsize=8)
    axes.axhline(0, color=RULE, linewidth=0.8, zorder=0)
    axes.set_ylabel("cosine to the own solution")
    axes.legend(frameon=False, fontsize=8.5)
