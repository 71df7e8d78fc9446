"""Attempts to explain the finding away: the queries, the inputs, their covariance, the sizes.

Trainings of heads-1 after all steps, the first head of each layer, nuclear norm, its nulls with the
same change; AdamW and Muon where nothing else is said. “Samples”: programmes of 20 to 640 queries
with largest softmax weight above one half, or of 80 above .3 to .95; those of more than 160 are of
three times as many texts. In the Frobenius norm, too. “Inputs”: the surest queries; equal
characters no rivals of each other; the network told positions in random order; the characters of
each text in random order; the head's weights on the inputs of the untrained network; Gaussian
inputs of the same mean and covariance, put through the layer norm. “Matched”, all optimisers: with
R and S reflections of random eigenvectors of the inputs' covariance in the complement of their
mean, RWS (“apart”) has the singular values of W and each singular vector's energy in every
eigenvector, and RWR (“reflected”) keeps as well which directions of keys and queries meet: no
Gaussian inputs with these moments tell it from W. Three draws of each, with their own selections,
scaled until they are as sure of as many queries. “Sizes”: twice the context, half the width, twice
the depth, the first and the last layer.

Source: this project

Notes: The excess over the matched weights is the cosine minus their mean, that of heads-1 minus the
largest of its nulls, which is the stricter measure by about the noise of one null.
"""

from typing import Any

import numpy as np
import torch

from attsvm import max_margin
from attsvm.transformers import reflection
from attsvm_papers import kit
from attsvm_papers.heads.decoder import OPTIMISERS
from attsvm_papers.heads.excesses import (
    COLOURS,
    NAMES,
    REAL,
    ROTATED,
    WRITTEN,
    by_seed,
    excess_over_nulls,
    over_seeds,
)
from attsvm_papers.heads.networks import (
    LOOKED_AT,
    PAPER,
    QUICK,
    SMALL,
    TEXT,
    LayerAttention,
    attention_layers,
    held_out_texts,
    text_digests,
    trained_decoder,
)
from attsvm_papers.heads.own_solutions import (
    NORMS,
    SECONDS,
    STRICT,
    THRESHOLD,
    HeadOptions,
    draw_sure_queries,
    matrix_cosine,
    own_solutions,
    programme_of,
)

PAIR = ("adamw", "muon")
FEW = 160
"""Queries that the texts of heads-1 have enough of."""
CHANGED = ("context", "width", "depth")
DRAWS = 3
CHANGES = ("as it is", "surest", "characters", "places", "scrambled", "untrained", "surrogate")
"""A row's column ``change`` is a position in this list."""
FEWER: dict[str, Any] = {"quick": {**QUICK, "few_seeds": 1}, "paper": PAPER}


@kit.run(
    digest=text_digests,
    seed=kit.seeds(5),
    optimiser=PAIR,
    paper={**PAPER, "most": 640},
    quick={**QUICK, "numbers": (12, 24), "thresholds": (0.7,)},
)
def samples(
    optimiser,
    seed,
    digest,
    text=TEXT,
    sizes=SMALL,
    numbers=(20, 40, 80, 160, 320, 640),
    most=160,
    thresholds=(0.3, 0.7, 0.9, 0.95),
    queries=80,
):
    training, rows = trained_decoder(text, sizes, optimiser, seed), []
    few, many = (
        attention_layers(
            training.model(), held_out_texts(text, training.sizes, seed, LOOKED_AT * times)
        )
        for times in (1, 3)
    )
    programmes = [(n, THRESHOLD) for n in numbers] + [(queries, t) for t in thresholds]
    for count, threshold in programmes:
        norms, options = (
            NORMS[0 if count <= most else 1 : 2],
            HeadOptions(count, threshold, nulls=STRICT),
        )
        for number, layer in enumerate(few if count <= FEW else many):
            setting = {"layer": number, "queries": count, "threshold": threshold}
            rows += [setting | row for row in own_solutions(layer, 0, norms, options, seed)]
    return kit.stacked(rows)


@kit.run(digest=text_digests, seed=kit.seeds(2, name="few_seeds"), optimiser=PAIR, **FEWER)
def inputs(optimiser, seed, digest, text=TEXT, sizes=SMALL, queries=80):
    training, rows = trained_decoder(text, sizes, optimiser, seed), []
    layers = layers_by_change(training, held_out_texts(text, training.sizes, seed), seed)
    for change, layers_of_change in layers.items():
        options = HeadOptions(queries, surest=change == "surest", classes=change == "characters")
        for number, layer in enumerate(layers_of_change):
            setting = {"layer": number, "change": CHANGES.index(change)}
            rows += [setting | row for row in own_solutions(layer, 0, NORMS[:1], options, seed)]
    return kit.stacked(rows)


def layers_by_change(training, texts, seed):
    """Inputs of the heads, layer by layer, with the trained weights, by change."""
    model, rng = training.model(), np.random.default_rng(seed)
    trained_layers = attention_layers(model, texts)
    positions = np.tile(np.arange(texts.shape[1]), (len(texts), 1))
    orders = torch.from_numpy(rng.permuted(positions, axis=1))
    first = attention_layers(training.model(0), texts)
    return {
        "as it is": trained_layers,
        "surest": trained_layers,
        "characters": trained_layers,
        "places": attention_layers(model, texts, orders),
        "scrambled": attention_layers(model, torch.gather(texts, 1, orders)),
        "untrained": [
            LayerAttention(untrained_layer.inputs, untrained_layer.tokens, layer.weights)
            for untrained_layer, layer in zip(first, trained_layers, strict=True)
        ],
        "surrogate": [
            LayerAttention(
                gaussian_surrogate(layer.inputs, block.before, rng), layer.tokens, layer.weights
            )
            for layer, block in zip(trained_layers, model.blocks, strict=True)
        ],
    }


def gaussian_surrogate(inputs, norm, rng):
    """Gaussian vectors of the mean and covariance that inputs had before the layer norm's own
    scale and shift, normalised, scaled and shifted as it does.
    """
    scale, shift = (parameter.detach().double().numpy() for parameter in (norm.weight, norm.bias))
    rows = ((inputs - shift) / scale).reshape(-1, inputs.shape[-1])
    moments = rows.mean(axis=0), np.cov(rows.T)
    rows_drawn = rng.multivariate_normal(*moments, size=len(rows), method="eigh")
    rows_drawn -= rows_drawn.mean(axis=1, keepdims=True)
    rows_drawn /= rows_drawn.std(axis=1, keepdims=True)
    return (rows_drawn * scale + shift).reshape(inputs.shape)


@kit.run(digest=text_digests, seed=kit.seeds(5), optimiser=OPTIMISERS, quick=QUICK, paper=PAPER)
def matched(optimiser, seed, digest, text=TEXT, sizes=SMALL, queries=80):
    training, options = (
        trained_decoder(text, sizes, optimiser, seed),
        HeadOptions(queries, nulls=STRICT),
    )
    layers, rows = (
        attention_layers(training.model(), held_out_texts(text, training.sizes, seed)),
        [],
    )
    for number, layer in enumerate(layers):
        setting = {"layer": number, "head": 0}
        setting |= cosines_of_matched_weights(layer, options, np.random.default_rng([seed, number]))
        rows += [setting | row for row in own_solutions(layer, 0, NORMS[:1], options, seed)]
    return kit.stacked(rows)


def cosines_of_matched_weights(layer, options, rng):
    """Cosines of every draw of matched weights, for the first head of a layer, and its solution."""
    W, inputs, cosines = layer.weights[0], layer.inputs, {}
    target_count = max(options.queries, draw_sure_queries(W, inputs, options, rng).count)
    rows = inputs.reshape(-1, inputs.shape[-1])
    for kind, draw in ((kind, draw) for kind in ("apart", "reflected") for draw in range(DRAWS)):
        left = reflection(rows, rng)
        V = left @ W @ (left if kind == "reflected" else reflection(rows, rng))
        programme = programme_of(
            draw_sure_queries(V, inputs, options, rng, target_count), inputs, layer.tokens, options
        )
        cosines[f"{kind} {draw}"] = matrix_cosine(
            V, max_margin(programme, "nuc", max_seconds=SECONDS).W
        )
    return cosines


@kit.run(
    digest=text_digests,
    seed=kit.seeds(2, name="few_seeds"),
    optimiser=PAIR,
    size=lambda at: range(len(at.changes)),
    paper=PAPER,
    quick=FEWER["quick"] | {"changes": ({"context": 16}, {"width": 8}, {"depth": 2})},
)
def other_sizes(
    optimiser,
    seed,
    size,
    digest,
    text=TEXT,
    sizes=SMALL,
    changes=({"context": 128}, {"width": 64}, {"depth": 4}),
    queries=80,
):
    training = trained_decoder(text, {**sizes, **changes[size]}, optimiser, seed)
    layers = attention_layers(training.model(), held_out_texts(text, training.sizes, seed))
    options, rows = HeadOptions(queries, nulls=STRICT), []
    for number in sorted({0, len(layers) - 1}):
        setting = {"layer": number} | {k: getattr(training.sizes, k) for k in CHANGED}
        measured = own_solutions(layers[number], 0, NORMS[:1], options, seed)
        rows += [setting | row for row in measured]
    return kit.stacked(rows)


def mean_excess(e, by="optimiser"):
    """Mean excess over layers and seeds, in every group."""
    return np.array([np.mean(excess_over_nulls(group)) for group in e.by(by)])


def mean_excess_of_change(e, change):
    """Mean excess over layers and seeds, for one change of the inputs."""
    return mean_excess(e.where(change=CHANGES.index(change)))


def excess_over_draws(e, kind):
    """The cosine minus the mean of the draws of matched weights ``(seeds,)``."""
    return by_seed(e, e["cosine"] - np.nanmean([e[f"{kind} {k}"] for k in range(DRAWS)], axis=0))


def scrambled(change):
    words = "the characters of each text in random order instead"
    return kit.exchanged(words, "change", CHANGES.index(change), CHANGES.index("scrambled"))


def draw_as_head(kind):
    """A draw of a null, measured as if it were the head, against the others."""
    columns: dict[str, Any] = {
        "cosine": f"{kind} 0",
        f"{kind} 0": lambda e: np.full(e.rows, np.nan),
    }
    return kit.replaced(f"one of the {kind} draws, measured as if it were the head", **columns)


def rows_of_table(table, norm="nuc", **values):
    return {"part": table, "norm": NORMS.index(norm), **values}


EXCESS = kit.at_least(0.03, "as in H1; mean over layers and seeds in each group")
INPUTS = kit.at_most(0.5, "one optimiser each; what belongs to inputs of which W knows nothing")


@kit.claim(
    EXCESS,
    where=rows_of_table("samples", threshold=THRESHOLD),
    assumes=WRITTEN,
    null=ROTATED,
    failure="scale",
)
def H8(e):
    """The excess of heads over their strictest null is there at every number of queries from 40 to
    160.
    """
    return mean_excess(e.take(e["queries"] >= 40), "optimiser queries")


@kit.claim(
    kit.at_least(0.0, "one optimiser each, mean over layers and seeds, the most queries"),
    where=rows_of_table("samples"),
    assumes=WRITTEN,
    null=kit.replaced("the rotated weights' solution", agreement="stranger"),
)
def H8b(e):
    """At other queries the nuclear solution agrees with the head more often than the most frequent
    relative position does (a head that is sure of no others is left out).
    """
    most = e.where(queries=e["queries"].max()).by("optimiser")
    return [over_seeds(group, group["agreement"] - group["usual"]) for group in most]


@kit.claim(EXCESS, where=rows_of_table("inputs"), assumes=WRITTEN, null=ROTATED)
def H9(e):
    """Neither the draw of queries nor copies of characters explain the excess of heads over their
    strictest null.
    """
    return np.concatenate(
        [mean_excess_of_change(e, "surest"), mean_excess_of_change(e, "characters")]
    )


@kit.claim(EXCESS, where=rows_of_table("inputs"), assumes=WRITTEN, null=ROTATED, failure="scale")
def H9a(e):
    """Relative positions do not explain the excess of heads over their strictest null: it stays
    when positions are shuffled.
    """
    return mean_excess_of_change(e, "places")


@kit.claim(
    INPUTS,
    where=rows_of_table("inputs"),
    assumes=WRITTEN,
    null=scrambled("surrogate"),
    failure="refuted",
)
def H9b(e):
    """The layer norm's geometry does not explain the excess of heads over their strictest null: on
    surrogates less than half of it is left.
    """
    return mean_excess_of_change(e, "surrogate") / mean_excess_of_change(e, "as it is")


@kit.claim(INPUTS, where=rows_of_table("inputs"), assumes=WRITTEN, null=scrambled("untrained"))
def H9c(e):
    """The excess of heads over their strictest null belongs to the inputs on which the head was
    trained: on those of the untrained network less than half of it is left.
    """
    return mean_excess_of_change(e, "untrained") / mean_excess_of_change(e, "as it is")


LOWEST = kit.at_least(
    0.03, "as in H1: one optimiser each, lower end of the 95% interval over seeds"
)
MATCHED: dict[str, Any] = {"where": rows_of_table("matched"), "by": "optimiser", "assumes": REAL}


@kit.claim(LOWEST, **MATCHED, null=draw_as_head("apart"), failure="refuted")
def H11(e):
    """A head is nearer to its own nuclear solution than weights whose singular vectors lie as its
    own do among the main directions of the inputs.
    """
    return kit.interval(excess_over_draws(e, "apart")).low


@kit.claim(LOWEST, **MATCHED, null=draw_as_head("reflected"), failure="refuted")
def H11a(e):
    """A head is nearer to its own nuclear solution than weights that Gaussian inputs of the same
    moments do not tell from its own.
    """
    return kit.interval(excess_over_draws(e, "reflected")).low


@kit.claim(
    EXCESS, where=rows_of_table("other_sizes"), assumes=WRITTEN, null=ROTATED, failure="scale"
)
def H12(e):
    """The excess of heads over their strictest null is there at other contexts, widths, depths."""
    return mean_excess(e, "optimiser size")


@kit.picture(
    "Number of queries and threshold",
    "Three panels: cosines rise with the number of queries for heads and less for nulls, change"
    " little with the threshold; held-out agreement rises with the number.",
    3.2,
    1,
    3,
    width=9.2,
)
def by_sample(e, axes):
    """Means over layers and seeds, nuclear norm. Left and middle: cosine of head and own solution,
    dotted the stricter of the two nulls. Right: share of other sure queries at which the
    solution selects what the head does; dotted, the most frequent relative position.
    """
    rows = e.where(**rows_of_table("samples"))
    rows = rows.but({"null": np.maximum(rows["rotated"], rows["permuted"])})
    numbers = rows.where(threshold=THRESHOLD)
    fixed = rows.where(queries=80 if 80 in rows["queries"] else rows["queries"].max())
    panels = (
        ("queries", numbers, ("cosine", "null"), "cosine, by queries"),
        ("threshold", fixed, ("cosine", "null"), "cosine, by threshold"),
        ("queries", numbers, ("agreement", "usual"), "held-out agreement"),
    )
    for ax, (axis, table, names, title) in zip(axes, panels, strict=True):
        for group in table.by("optimiser"):
            name = group["optimiser"][0]
            for column, style in zip(names, ("o-", ":"), strict=True):
                points = [
                    over_seeds(rows_of_value, rows_of_value[column])
                    for rows_of_value in group.by(axis)
                ]
                label = NAMES[name] if style == "o-" else None
                ax.plot(group.levels(axis), points, style, color=COLOURS[name], ms=4, label=label)
        ax.axhline(0, color=kit.RULE, linewidth=0.8)
        ax.set(xlabel=axis, title=title)
    kit.legend_below(axes[0], 2)


@kit.picture(
    "What is left of the excess",
    "Groups of points per change of inputs, null and size; a line at zero.",
    3.6,
    1,
    3,
    width=10.4,
    sharey=True,
    name="left",
)
def excess_left(e, axes):
    """Nuclear cosine of head and own solution minus a null, mean over two heads, a point per seed.
    Left: minus the strictest null, when inputs or queries are changed. Middle: minus the strictest
    null of heads-1, and the means of three draws of two that match the covariance of the inputs as
    the head does. Right: minus the strictest null, at other sizes.
    """

    def excess_by(axis):
        return lambda group: [
            by_seed(rows_of_value, excess_over_nulls(rows_of_value))
            for rows_of_value in group.by(axis)
        ]

    def matched(group):
        return [
            by_seed(group, excess_over_nulls(group)),
            excess_over_draws(group, "apart"),
            excess_over_draws(group, "reflected"),
        ]

    sizes = e.where(part="other_sizes")
    labels = [
        "\n".join(f"{k} {int(rows_of_size[k][0])}" for k in CHANGED)
        for rows_of_size in sizes.by("size")
    ]
    groups = (
        (e.where(part="inputs"), CHANGES, excess_by("change")),
        (e.where(part="matched"), ("heads-1", "apart", "reflected"), matched),
        (sizes, labels, excess_by("size")),
    )
    for ax, (rows, names, values) in zip(axes, groups, strict=True):
        optimisers = rows.by("optimiser")
        for k, group in enumerate(optimisers):
            name, shift = group["optimiser"][0], 0.7 * ((k + 0.5) / len(optimisers) - 0.5)
            for position, points in enumerate(values(group)):
                label = NAMES[name] if position == 0 else None
                at = np.full(len(points), position + shift)
                ax.plot(at, points, "o", color=COLOURS[name], ms=3.5, label=label)
        ax.axhline(0, color=kit.RULE, linewidth=0.8, zorder=0)
        ax.set_xticks(range(len(names)), names, rotation=0 if ax is axes[2] else 30, fontsize=8)
    kit.legend_below(axes[1], 5)
