"""Layers of attention: a programme for each, on what those below hand it.

Four sequences of five tokens on the unit sphere, d = 10, two layers or three. All but the last are
self-attention with a residual: each position h becomes h + Hᵀ softmax(HWh), H the positions of its
sequence. The last one reads under a fixed query z and a fixed decoder v, vᵀHᵀ softmax(HWz), under
the logistic loss. All are trained together from uniform random weights, normalised gradient descent
with step 0.1, one norm for all. Programmes are those of the last selections, certified.

Source: this project; the papers name several layers as a direction to go

Notes: The last layer selects a position of every sequence, which is “read”, and so are the position
that the layer below selects there, and what is read from these further down. Where the layers below
are saturated a layer is one of self-attention, or one head, on the inputs that they hand on, such
as the sum of a token and the one that it selects. The last one has the max-margin solution on its
inputs, any other margins of one at the positions that are read, and of zero at the others. These
select for the layers above alone, whose logits grow without bound, so any lead is enough, however
small beside the weights. It is the relaxed programme of joint training. Two positions that select
each other hand on the same, which no layer above can tell apart: such trials are not certified.
"""

import numpy as np
import torch

from attsvm import (
    AttentionData,
    max_margin,
    selection_margins,
    sequence_pairs,
)
from attsvm.datasets import unit_sphere
from attsvm.dynamics import direction_gap
from attsvm.margins import relax
from attsvm.optim import SteepestDescent
from attsvm_papers import kit
from attsvm_papers.multihead.attended import attended


class Layers:
    """The network on instances ``(runs, n, T, d)`` with decoders ``(runs, d)``; it has as many
    layers as its weights ``(runs, d, layers * d)`` have blocks.
    """

    def __init__(self, data, v):
        self.tokens, self.labels, self.queries, self.v = (
            torch.tensor(part) for part in (data.tokens, data.labels, data.queries, v)
        )

    def __call__(self, W):
        """The selections of all layers, and the margins ``(runs, n)`` of the labels."""
        H, found = self.tokens, []
        *below, last = W[:, None].split(H.shape[-1], dim=-1)
        for own in below:
            values = H[:, :, None].expand(-1, -1, H.shape[2], -1, -1)
            mixed, chosen = attended((H @ own @ H.mT).mT, values)  # keys by queries
            H = H + mixed
            found.append(chosen)
        logits = (H @ (last @ self.queries[..., None]))[..., 0]
        output, chosen = attended(logits[..., None, :], H[..., None, :, :])
        values = (output[..., 0, :] * self.v[:, None]).sum(dim=-1)
        return [*found, chosen], self.labels * values


def descend(network, W, steps, marks):
    """Weights ``(marks, runs, d, layers * d)``, and what every layer selects at the end, ``(runs,
    n, q)``.
    """
    W = torch.nn.Parameter(torch.tensor(W))
    descent, weights = SteepestDescent([W], lr=0.1), []
    for step in range(1, steps + 1):
        descent.zero_grad()
        torch.nn.functional.softplus(-network(W)[1]).mean(dim=-1).sum().backward()
        descent.step()
        if step in marks:
            weights.append(W.detach().clone().numpy())
    with torch.no_grad():
        layers = network(W)[0]
    return np.stack(weights), [layer.winner.numpy() for layer in layers]


def handed_on(data, below):
    """The sequences that each layer gets, the first one's first, where those below are saturated at
    winners ``(n, T)``.
    """
    given = [data]
    for winners in below:
        tokens = given[-1].tokens
        tokens = tokens + np.take_along_axis(tokens, winners[..., None], axis=1)
        given.append(AttentionData(tokens, data.labels, data.queries))
    return given


def positions(winners):
    """Of every layer but the last, the positions ``(n, T)`` that are read: the one that the last
    layer selects, and what the layers between select there.
    """
    *below, last = winners
    every = np.arange(below[0].shape[-1])
    read = [every == last]
    for own in below[:0:-1]:
        read.append(read[-1] | ((own[..., None] == every) & read[-1][..., None]).any(axis=1))
    return read[::-1]


def programmes(data, winners):
    """The margins of every layer, and of all but the last those of the positions that are read,
    alone.
    """
    *below, last = winners
    *given, end = handed_on(data, below)
    relaxed, alone = [], []
    for inputs, own, read in zip(given, below, positions(winners), strict=True):
        pairs, tokens, seen = sequence_pairs(inputs, np.ones(own.shape)), own.ravel(), read.ravel()
        relaxed.append(relax(selection_margins(pairs, tokens), seen))
        alone.append(selection_margins(pairs.take(np.flatnonzero(seen)), tokens[seen]))
    return [*relaxed, selection_margins(end, last[:, 0])], alone


def compare(data, W, winners):
    """What is measured of one trial: weights ``(marks, d, layers * d)``, and the last winners of
    all layers.
    """
    asked, apart = programmes(data, winners)
    best, alone, raw = max_margin(asked), max_margin(apart), max_margin(data, winners[-1][:, 0])
    parts = np.split(W, len(best), axis=-1)
    gaps = [direction_gap(own, one.W) for own, one in zip(parts, best, strict=True)]
    others = [direction_gap(own, one.W) for own, one in zip(parts, alone, strict=False)]
    ratios = [np.linalg.norm(own[-1]) / np.linalg.norm(parts[0][-1]) for own in parts[1:]]
    known = [one.norm / best[0].norm for one in best[1:]]
    ratio, ratio_best = max(
        zip(ratios, known, strict=True), key=lambda two: abs(two[1] / two[0] - 1)
    )
    return {
        "below": np.max(gaps[:-1], axis=0),
        "below_alone": np.max(others, axis=0),
        "last": gaps[-1],
        "last_raw": direction_gap(parts[-1], raw.W),
        "certified": all(one.status == "optimal" for one in best),
        "ratio": ratio,
        "ratio_best": ratio_best,
        **held_places(best[-2], best[-1], data.T),
    }


def held_places(one, two, T):
    """Where the solution of the last layer but one leans on a margin of zero, and elsewhere at such
    positions, how often the selected token has the lower logit in the last layer.
    """
    margins, above = one.margins, two.margins.queries @ two.W.T
    free = margins.rhs == 0
    leaning = free & (one.dual > 1e-6 * one.dual.max())
    ahead = (margins.differences * above[margins.sequence // T]).sum(axis=-1)
    return {
        "lower": share(ahead < 0, leaning),
        "lower_other": share(ahead < 0, free & ~leaning),
    }


def share(true, among):
    return true[among].mean() if among.any() else np.nan


@kit.run(
    layers=(2, 3), seeds=kit.seeds(100, by=50), quick={"layers": (3,), "seeds": 8, "steps": 3000}
)
def run(layers, seeds, n=4, T=5, d=10, steps=10_000):
    data, v = unit_sphere(n, T, d, seeds)
    drawn = [np.random.default_rng([53, seed]) for seed in seeds]
    start = np.stack([rng.uniform(-1, 1, (d, layers * d)) for rng in drawn]) / np.sqrt(d)
    marks = np.unique(np.geomspace(10, steps, 10).astype(int))
    W, winners = descend(Layers(data, v), start, steps, marks)
    told = [
        compare(data.instance(k), W[:, k], [own[k] for own in winners]) for k in range(len(seeds))
    ]
    return {"step": kit.same(marks)} | kit.stacked(told)


def by_layers(e, measured):
    """What is measured of the certified trials, by the number of layers."""
    rows = e.take(e["certified"])
    return {f"{k:.0f} layers": measured(rows.where(layers=k)) for k in rows.levels("layers")}


ALONE = kit.replaced("the programmes of the positions that are read, alone", below="below_alone")
RAW = kit.replaced("the solution on the tokens, as if there were one layer", last="last_raw")
ALIKE = kit.replaced("layers of equal length", ratio=lambda e: np.ones(e.rows))


@kit.claim(
    kit.at_most(0.02, "11 degrees, as layers below are not saturated everywhere", share=kit.MOST),
    null=RAW,
    failure="scale",
)
def HL1(e):
    """The last layer converges in direction to the max-margin solution of its selection on the
    inputs that saturated layers below hand it.
    """
    return by_layers(e, lambda rows: rows["last"][:, -1])


@kit.claim(kit.at_most(0.02, "as for the last layer", share=kit.MOST), null=ALONE, failure="scale")
def HL2(e):
    """Each layer below converges to the solution of its relaxed programme: margins of one at the
    positions that are read from above, and of zero at all others.
    """
    return by_layers(e, lambda rows: rows["below"][:, -1])


@kit.claim(kit.between(0.95, 1.05, "5 %", share=kit.MOST), null=ALIKE, failure="scale")
def HL3(e):
    """Under one norm for all, the lengths of the layers are to each other as those of their
    solutions.
    """
    return by_layers(e, lambda rows: rows["ratio"] / rows["ratio_best"])


@kit.claim(
    kit.at_least(
        0.75, "of such rivals; chance has two thirds, others still change places", share=kit.MOST
    ),
    null=kit.replaced("other rivals at positions that are not read", lower="lower_other"),
    failure="scale",
)
def HL5(e):
    """Where the solution of the last layer but one keeps a margin of zero, the token that is
    selected has the lower logit in the last layer: it is held there against a shorter solution.
    """
    return by_layers(e, lambda rows: np.nan_to_num(rows["lower"], nan=1.0))  # none has no rival


@kit.panels(
    "Layers over layers, a programme each",
    "Gaps to the layers' own programmes fall to a thousandth; to the others they stop at a"
    " twentieth.",
    3.2,
    by="layers",
    head="{} layers: 1 - cosine",
    width=8.0,
    name="layers",
)
def draw_layers(evidence, ax):
    """Median gaps by step, of the layers below the last that of the worst; dotted: the programmes
    of the positions that are read, alone, and the solution on the tokens, as if there were one
    layer.
    """
    rows = evidence.take(evidence["certified"])
    for column, colour, style, words in (
        ("below", kit.TRAINED, "-", "below the last"),
        ("below_alone", kit.TRAINED, ":", "positions that are read, alone"),
        ("last", kit.ATTENTION, "-", "last layer"),
        ("last_raw", kit.ATTENTION, ":", "tokens, as if one layer"),
    ):
        gap = np.median(rows[column], axis=0)
        ax.plot(rows["step"][0], gap, style, color=colour, label=words)
    kit.loglog(ax, rows["step"][0], rows["below"])
    ax.set(xlabel="step")
