"""Attention that survives pruning.

A decoder of characters (two blocks, width 128, four heads, context 64) is trained by AdamW, and
with Muon on the matrices of its blocks, with the best of a few rates, falling along a cosine,
without weight decay and with .1. Then every query of every head keeps only its top token of
attention, renormalised, without retraining: the cost is the held-out loss after that minus the loss
before. Beside it stand the cost where logits of attention are scaled until the weights W of the
heads have the same Frobenius norm, the cost when random tokens, or those at the nearest positions,
are kept, and the share of queries that copy themselves, the token before, or one of the same kind.

Source: this project

Notes: Trials are seeds, of first weights and batches alike. The bound of S1 is set on seed 0, which
has .24 nats without and .17 with weight decay. The largest factor is set on six trainings with
seeds 10000 and 10001: Muon's heads are six times as large. Verdict seeds begin at 20000. At the
scale medium there are four blocks, a context of 128, and six optimisers.
"""

from dataclasses import asdict

import numpy as np
import torch

from attsvm.base.cores import at_most_threads
from attsvm_papers import kit
from attsvm_papers.heads.decoder import (
    MADE,
    DecoderSizes,
    characters,
    disjoint_texts,
    held_out_loss,
)
from attsvm_papers.heads.networks import TEXT, text_digests
from attsvm_papers.pruning.decoders import (
    DECAYS,
    OPTIMISERS,
    RATES,
    RULES,
    head_norm,
    pruned_loss,
    share_of_copies,
    train_by_optimiser,
    with_scaled_logits,
)

KEPT_TOKENS = (1, 2, 4, 8)
FACTORS = tuple(2 ** (power / 2) for power in range(-6, 7))
"""By which logits are scaled; 1 is in the middle."""
JUDGED = 48  # held-out texts
FIRST = 20_000
"""Verdict seeds begin here."""
SIZES = asdict(DecoderSizes())
TINY = DecoderSizes(context=12, width=12, depth=1, heads=2, batch=4, steps=12)
NAMES = {
    "adamw": "AdamW",
    "muon": "Muon",
    "spectral": "spectral",
    "l1.1": "p = 1.1",
    "l1.5": "p = 1.5",
    "l3": "p = 3",
}
COLOURS = {
    "adamw": kit.INK,
    "muon": kit.ATTENTION,
    "spectral": kit.BEST,
    "l1.1": kit.TRAINED,
    "l1.5": kit.FAINT,
    "l3": kit.RULE,
}


@kit.run(
    digest=text_digests,
    seed=kit.seeds(5, start=FIRST, first=0),
    optimiser=("adamw", "muon"),
    decay=DECAYS,
    quick={"text": MADE, "sizes": asdict(TINY), "seeds": 1},
    medium={
        "sizes": asdict(DecoderSizes(context=128, depth=4, batch=16, steps=3000)),
        "optimiser": OPTIMISERS,
    },
)
def run(optimiser, decay, seed, digest, text=TEXT, sizes=SIZES):
    sizes, rate = DecoderSizes(**sizes), RATES[optimiser]
    ids, held_out, vocabulary = characters(text)
    judged_texts = disjoint_texts(held_out, JUDGED, sizes.context + 1, 1)
    with at_most_threads(1, torch):  # bits do not depend on how many run side by side
        *_, (_, model) = train_by_optimiser(ids, vocabulary, sizes, optimiser, rate, decay, seed)
        loss, larger = (
            held_out_loss(model, judged_texts),
            [with_scaled_logits(model, factor) for factor in FACTORS],
        )
        columns = {
            "loss": loss,
            **{
                rule: [pruned_loss(model, judged_texts, size, rule) - loss for size in KEPT_TOKENS]
                for rule in RULES
            },
            "copies": share_of_copies(model, judged_texts[:, :-1]),
            "scaled cost": [
                pruned_loss(scaled_model, judged_texts, 1, "top")
                - held_out_loss(scaled_model, judged_texts)
                for scaled_model in larger
            ],
            "norm": head_norm(model),
        }
    return kit.stacked([columns])


REAL = {
    "a text that somebody wrote": lambda e: bool(np.all(e["digest"] != "")),
    "two seeds": lambda e: len(e.levels("seed")) >= 2,
}


def column_of(e, name, column, decay=0.0):
    """A column ``(seeds, ...)`` of an optimiser."""
    return e.where(optimiser=name, decay=decay)[column]


def at_norm(e, name, size, decay=0.0):
    """The cost ``(seeds,)`` where the logits are scaled to heads of these norms ``(seeds,)``; NaN
    beyond the factors that were tried.
    """
    rows = e.where(optimiser=name, decay=decay)
    return np.array(
        [
            np.interp(np.log(target), np.log(own_norm * np.array(FACTORS)), costs, np.nan, np.nan)
            for target, own_norm, costs in zip(size, rows["norm"], rows["scaled cost"], strict=True)
        ]
    )


READ = ("top", "scaled cost", "norm", "loss", "copies")


def next_seed(e):
    """AdamW on the next seed in Muon's place."""
    columns = {column: e[column].copy() for column in READ}
    for decay in e.levels("decay"):
        rows_of_muon, rows_of_adamw = (
            np.flatnonzero((e["optimiser"] == name) & (e["decay"] == decay))
            for name in ("muon", "adamw")
        )
        for column in READ:
            columns[column][rows_of_muon] = np.roll(e[column][rows_of_adamw], 1, axis=0)
    return e.but(columns)


TOP = "Keeping each query's top token costs AdamW more nats than Muon"
WHY = "set by this project; lower end of the 95% interval"


@kit.several_claims(
    kit.claim(
        kit.at_least(0.08, WHY),
        id=f"S1{letter}",
        statement=statement,
        assumes=REAL,
        null=next_seed,
        failure=failure,
        decay=decay,
        how=how,
    )
    for letter, decay, how, failure, statement in (
        ("", 0.0, "top", "", f"{TOP}."),
        ("a", 0.1, "top", "scale", f"{TOP}, with weight decay .1 on both."),
        (
            "c",
            0.0,
            "norm",
            "refuted",
            f"{TOP}, with AdamW's heads at the norm of Muon's.",
        ),
    )
)
def cost_advantage(e, decay, how):
    top = column_of(e, "muon", "top", decay)[:, 0]
    if how == "norm":
        return kit.interval(
            at_norm(e, "adamw", column_of(e, "muon", "norm", decay), decay) - top
        ).low
    return kit.interval(column_of(e, "adamw", "top", decay)[:, 0] - top).low


@kit.claim(
    kit.at_least(0.0, "lower end of the 95% interval over seeds"),
    assumes=REAL,
    null=next_seed,
    failure="scale",
)
def S2(e):
    """Muon's held-out loss is lower after equal steps."""
    return kit.interval(column_of(e, "adamw", "loss") - column_of(e, "muon", "loss")).low


@kit.claim(
    kit.at_most(0.1, "ten points; upper end of the 95% interval over seeds"),
    assumes=REAL,
    null=kit.replaced(
        "heads of Muon that all copy",
        copies=lambda e: np.where(e["optimiser"] == "muon", 1.0, e["copies"]),
    ),
    failure="refuted",
)
def S3(e):
    """Muon's heads do not survive because they copy: the share of queries that attend most to
    themselves, the token before, or one of the same kind is no larger than under AdamW.
    """
    return kit.interval(column_of(e, "muon", "copies") - column_of(e, "adamw", "copies")).high


@kit.claim(
    kit.at_least(0.0, "training by training; the nearest positions are what copying keeps"),
    assumes=REAL,
    null=kit.replaced("the nearest positions for the top tokens", top="nearest", nearest="top"),
)
def S4(e):
    """Keeping the top tokens costs less than keeping as many random ones, or the nearest."""
    return (np.minimum(e["random"], e["nearest"]) - e["top"]).min(axis=1)


@kit.picture(
    "What pruning costs",
    "Left: curves that fall with the number of tokens kept, dotted lines of the null far above."
    " Right: curves over the norm of heads.",
    3.0,
    1,
    2,
    width=8.0,
    name="costs",
)
def draw_costs(evidence, axes):
    """Held-out nats per character lost when each query keeps so many tokens; a line per seed, full
    for the tokens with the most attention, dotted for the nearest (without weight decay). Right:
    the cost of keeping one token where the logits of attention are scaled, over the norm of the
    heads' weights after it; a point marks the network as it is.
    """
    positions, all_norms = np.arange(len(KEPT_TOKENS)), []
    for name in [name for name in OPTIMISERS if np.any(evidence["optimiser"] == name)]:
        rows = evidence.where(optimiser=name, decay=0.0)
        for k in range(rows.rows):
            colour, label = COLOURS[name], NAMES[name] if k == 0 else None
            axes[0].plot(positions, rows["top"][k], "o-", color=colour, ms=3, label=label)
            axes[0].plot(positions, rows["nearest"][k], ":", color=colour, linewidth=1)
            sizes = rows["norm"][k] * np.array(FACTORS)
            all_norms.append(sizes)
            axes[1].plot(sizes, rows["scaled cost"][k], color=colour, linewidth=1.2)
            axes[1].plot(rows["norm"][k], rows["top"][k, 0], "o", color=colour, ms=4)
    axes[0].set_xticks(positions, [str(k) for k in KEPT_TOKENS])
    axes[0].set(xlabel="tokens that are kept", ylabel="nats per character", title="cost of pruning")
    kit.logarithmic(axes[1].xaxis, np.concatenate(all_norms))
    axes[1].set(xlabel="norm of the heads' weights", title="one token, scaled heads")
    axes[0].legend(frameon=False, fontsize=8)
    for ax in axes:
        ax.axhline(0, color=kit.RULE, linewidth=0.8)
