"""Trained heads lie near the max-margin solutions of their own selections.

A decoder of two blocks (width 128, four heads, context 64, learned positions, layer norms, queries
and keys without bias) learns the characters of tinyshakespeare for 450 steps of 8 texts (900 at the
paper's scale). Queries and keys are trained by AdamW, gradient descent with momentum, Muon, sign
descent with momentum or mirror descent of p = 1.1, everything else by AdamW; each with the best of
a few rates. The weights W of two heads of each layer are measured on the inputs of their own
attention for 64 held-out texts. A programme has 80 drawn queries of which W is sure: largest
softmax weight above one half, eight rivals at least. Measured is the cosine of W and the certified
max-margin solution of what W selects there, in the nuclear and in the Frobenius norm. Nulls are
other weights with their own selections on the same inputs, as sure of as many queries: rotated
singular vectors of the same subspaces, singular vectors paired anew, for one of the two heads also
random singular vectors. Another null is the layer's other heads on the programme of this one. The
excess is the cosine less that of the strictest null. That is after all steps; one head of each
layer is measured in the nuclear norm once more, at the checkpoint whose held-out loss is nearest to
a level that all reach.

Source: this project

Notes: Trials are seeds, of first weights, batches and texts alike; an interval is over the means of
five trainings. Nulls of the claims are draws of the nulls, measured as if they were the head.
"""

from typing import Any

import numpy as np

from attsvm_papers import kit
from attsvm_papers.heads.decoder import OPTIMISERS
from attsvm_papers.heads.excesses import (
    AGAIN,
    COLOURS,
    NAMES,
    REAL,
    ROTATED,
    by_seed,
    excess_over_nulls,
)
from attsvm_papers.heads.networks import (
    PAPER,
    QUICK,
    SMALL,
    TEXT,
    attention_layers,
    held_out_texts,
    text_digests,
    trained_decoder,
)
from attsvm_papers.heads.own_solutions import (
    KINDS,
    NORMS,
    STRICT,
    HeadOptions,
    own_solutions,
    stable_rank,
)

END, LEVEL = 0, 1
"""A row's column ``moment``: after all steps, or at the loss that all reach."""


@kit.run(
    digest=text_digests,
    seed=kit.seeds(5),
    optimiser=OPTIMISERS,
    paper={**PAPER, "level": 2.2},
    quick=QUICK,
)
def run(optimiser, seed, digest, text=TEXT, sizes=SMALL, level=2.3, queries=80):
    training, rows = trained_decoder(text, sizes, optimiser, seed), []
    texts = held_out_texts(text, training.sizes, seed)
    for moment, checkpoint in ((END, -1), (LEVEL, training.nearest(level))):
        for number, layer in enumerate(attention_layers(training.model(checkpoint), texts)):
            for head in (0, len(layer.weights) - 1)[: 2 if moment == END else 1]:
                rank = stable_rank(layer.weights[head])
                setting = {"moment": moment, "layer": number, "head": head, "rank": rank}
                options = HeadOptions(queries, nulls=STRICT if moment == LEVEL or head else KINDS)
                norms = NORMS[: 2 if moment == END else 1]
                rows += [setting | row for row in own_solutions(layer, head, norms, options, seed)]
    return kit.stacked(rows)


EACH: dict[str, Any] = {"by": "optimiser", "assumes": REAL}
AT_END: dict[str, Any] = {"moment": END, "norm": NORMS.index("nuc")}
WHY = "set by this project; one optimiser each, lower end of the 95% interval over seeds"


@kit.several_claims(
    kit.claim(
        kit.at_least(0.03, WHY),
        id=f"H1{letter}",
        statement=statement,
        where={"norm": NORMS.index(norm), "moment": moment},
        **EACH,
        null=null,
        failure="scale",
    )
    for letter, norm, moment, null, statement in (
        ("", "nuc", END, AGAIN,
         "Whoever trained it, a head's nuclear cosine exceeds its strictest null."),
        ("b", "nuc", LEVEL, ROTATED,
         "Where all have the same held-out loss, whoever trained it, a head's nuclear cosine"
         " exceeds its strictest null."),
    )
)  # fmt: skip
def lowest(e):
    return kit.interval(by_seed(e, excess_over_nulls(e))).low


@kit.claim(
    kit.at_least(0.75, "an independent program has 15 of 15, against two nulls", share=0.9),
    where=AT_END,
    **EACH,
    null=ROTATED,
)
def H2(e):
    """Most heads have a nuclear cosine above every null: share of a training's heads."""
    return by_seed(e, excess_over_nulls(e) > 0)


@kit.claim(
    kit.at_least(2.0, "an independent program has 8 to 12 against 1.0 to 5.5"),
    where=AT_END,
    assumes=REAL,
    interval=True,
    null=kit.exchanged("gradient descent in Muon's place", "optimiser", "muon", "sgd"),
    failure="refuted",
)
def H3(e):
    """Muon's heads have a higher stable rank: seed by seed, its mean over the largest of the
    others.
    """
    ranks = {group["optimiser"][0]: by_seed(group, group["rank"]) for group in e.by("optimiser")}
    return ranks.pop("muon") / np.max(list(ranks.values()), axis=0)


@kit.claim(
    kit.at_least(0.0, "lower end of the 95% interval over seeds of the difference"),
    where=AT_END,
    **EACH,
    null=AGAIN,
    failure="refuted",
)
def H4(e):
    """W is nearer to the nuclear max-margin solution than to the plain average of its selections,
    after both have lost their strictest null.
    """
    return kit.interval(by_seed(e, excess_over_nulls(e) - e["average"] + e["average_null"])).low


@kit.picture(
    "Heads and nulls",
    "Five groups of points, one per optimiser; the filled points of heads lie above the hollow ones"
    " of their nulls in both panels.",
    3.3,
    1,
    2,
    width=8.4,
    sharey=True,
)
def cosines(e, axes):
    """Cosine of a head's weights and the max-margin solution of their own selections after all
    steps, mean over the heads of a training, a point per seed. Grey ticks are the nulls, from the
    left: the layer's other heads on this head's programme; random, rotated and permuted singular
    vectors with their own selections.
    """
    titles = {"nuc": "nuclear norm", "fro": "Frobenius norm"}
    for ax, (norm, title) in zip(axes, titles.items(), strict=True):
        groups = e.where(norm=NORMS.index(norm), moment=END).by("optimiser")
        for position, group in enumerate(groups):
            for k, kind in enumerate(("heads", "random", "rotated", "permuted")):
                values = by_seed(group, group[kind])
                at = np.full(len(values), position + 0.16 * (k - 1.5))
                ax.plot(at, values, "_", color=kit.FAINT, markersize=6)
            cosines_of_heads = by_seed(group, group["cosine"])
            kit.dots(
                ax,
                [position],
                [cosines_of_heads],
                color=COLOURS[group["optimiser"][0]],
                markersize=5,
            )
        ax.axhline(0, color=kit.RULE, linewidth=0.8)
        names = [NAMES[group["optimiser"][0]] for group in groups]
        ax.set_xticks(range(len(names)), names, fontsize=8)
        ax.set_title(title)
    axes[0].set_ylabel("cosine to the own solution")
