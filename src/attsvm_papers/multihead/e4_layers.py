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

from attsvm import AttentionData, max_margin, max_margin_batch, selection_margins, sequence_pairs
from attsvm.datasets import unit_sphere
from attsvm.margins import relax
from attsvm.optim import SteepestDescent
from attsvm.training import direction_gap
from attsvm_papers import kit
from attsvm_papers.multihead.attended import attend_exactly


class Layers:
    """The network on instances ``(runs, n, T, d)`` with decoders ``(runs, d)``; it has as many
    layers as its weights ``(runs, d, layers * d)`` have blocks.
    """

    def __init__(self, data, v):
        self.tokens, self.labels, self.queries, self.v = (
            torch.tensor(array) for array in (data.tokens, data.labels, data.queries, v)
        )

    def __call__(self, W):
        """The selections of all layers, and the margins ``(runs, n)`` of the labels."""
        H, selections = self.tokens, []
        *below, last = W[:, None].split(H.shape[-1], dim=-1)
        for weights in below:
            values = H[:, :, None].expand(-1, -1, H.shape[2], -1, -1)
            mixed, selection = attend_exactly((H @ weights @ H.mT).mT, values)  # keys by queries
            H = H + mixed
            selections.append(selection)
        logits = (H @ (last @ self.queries[..., None]))[..., 0]
        output, selection = attend_exactly(logits[..., None, :], H[..., None, :, :])
        values = (output[..., 0, :] * self.v[:, None]).sum(dim=-1)
        return [*selections, selection], self.labels * values


def train_layers(network, W, steps, marks):
    """Weights ``(marks, runs, d, layers * d)``, and the selections of every layer at the end,
    ``(runs, n, q)``.
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


def inputs_of_layers(data, below):
    """The sequences that each layer gets, the first one's first, where those below are saturated at
    winners ``(n, T)``.
    """
    inputs = [data]
    for winners in below:
        tokens = inputs[-1].tokens
        tokens = tokens + np.take_along_axis(tokens, winners[..., None], axis=1)
        inputs.append(AttentionData(tokens, data.labels, data.queries))
    return inputs


def positions_read(winners):
    """The positions ``(n, T)`` that are read, of every layer but the last: the one that the last
    layer selects, and those that the layers between select there.
    """
    *below, last = winners
    all_positions = np.arange(below[0].shape[-1])
    read = [all_positions == last]
    for layer_winners in below[:0:-1]:
        read.append(
            read[-1]
            | ((layer_winners[..., None] == all_positions) & read[-1][..., None]).any(axis=1)
        )
    return read[::-1]


def programmes_of_layers(data, winners):
    """The margins of every layer, and of all but the last those of the positions that are read,
    alone.
    """
    *below, last = winners
    *layer_inputs, end = inputs_of_layers(data, below)
    relaxed, alone = [], []
    for inputs, layer_winners, read in zip(
        layer_inputs, below, positions_read(winners), strict=True
    ):
        pairs, tokens, is_read = (
            sequence_pairs(inputs, np.ones(layer_winners.shape)),
            layer_winners.ravel(),
            read.ravel(),
        )
        relaxed.append(relax(selection_margins(pairs, tokens), is_read))
        alone.append(selection_margins(pairs.take(np.flatnonzero(is_read)), tokens[is_read]))
    return [*relaxed, selection_margins(end, last[:, 0])], alone


def measure_trial(data, W, winners):
    """Measures of one trial, from weights ``(marks, d, layers * d)`` and the last winners of all
    layers.
    """
    margins_of_layers, margins_read_alone = programmes_of_layers(data, winners)
    best = max_margin_batch(margins_of_layers)
    solutions_alone = max_margin_batch(margins_read_alone)
    raw = max_margin(selection_margins(data, winners[-1][:, 0]))
    blocks = np.split(W, len(best), axis=-1)
    gaps = [direction_gap(block, solution.W) for block, solution in zip(blocks, best, strict=True)]
    others = [
        direction_gap(block, solution.W)
        for block, solution in zip(blocks, solutions_alone, strict=False)
    ]
    ratios = [np.linalg.norm(block[-1]) / np.linalg.norm(blocks[0][-1]) for block in blocks[1:]]
    best_ratios = [solution.norm / best[0].norm for solution in best[1:]]
    ratio, ratio_best = max(
        zip(ratios, best_ratios, strict=True), key=lambda pair: abs(pair[1] / pair[0] - 1)
    )
    return {
        "below": np.max(gaps[:-1], axis=0),
        "below_alone": np.max(others, axis=0),
        "last": gaps[-1],
        "last_raw": direction_gap(blocks[-1], raw.W),
        "certified": all(solution.status == "optimal" for solution in best),
        "ratio": ratio,
        "ratio_best": ratio_best,
        **lower_at_zero_margins(best[-2], best[-1], data.T),
    }


def lower_at_zero_margins(below, last, T):
    """Shares of the margins of zero on which the solution of the last layer but one leans, and of
    the other ones, at which the selected token has the lower logit in the last layer.
    """
    margins, keys_above = below.margins, last.margins.queries @ last.W.T
    free = margins.rhs == 0
    leaning = free & (below.dual > 1e-6 * below.dual.max())
    lead_above = (margins.differences * keys_above[margins.sequence // T]).sum(axis=-1)
    return {
        "lower": share_among(lead_above < 0, leaning),
        "lower_other": share_among(lead_above < 0, free & ~leaning),
    }


def share_among(true, among):
    return true[among].mean() if among.any() else np.nan


@kit.run(
    layers=(2, 3), seeds=kit.seeds(100, by=50), quick={"layers": (3,), "seeds": 8, "steps": 3000}
)
def run(layers, seeds, n=4, T=5, d=10, steps=10_000):
    data, v = unit_sphere(n, T, d, seeds)
    generators = [np.random.default_rng([53, seed]) for seed in seeds]
    start = np.stack([rng.uniform(-1, 1, (d, layers * d)) for rng in generators]) / np.sqrt(d)
    marks = np.unique(np.geomspace(10, steps, 10).astype(int))
    W, winners = train_layers(Layers(data, v), start, steps, marks)
    measures = [
        measure_trial(data.instance(k), W[:, k], [layer_winners[k] for layer_winners in winners])
        for k in range(len(seeds))
    ]
    return {"step": kit.same(marks)} | kit.stacked(measures)


def by_layers(e, measure):
    """A measure of the certified trials, by the number of layers."""
    rows = e.take(e["certified"])
    return {f"{k:.0f} layers": measure(rows.where(layers=k)) for k in rows.levels("layers")}


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
    for column, colour, style, label in (
        ("below", kit.TRAINED, "-", "below the last"),
        ("below_alone", kit.TRAINED, ":", "positions that are read, alone"),
        ("last", kit.ATTENTION, "-", "last layer"),
        ("last_raw", kit.ATTENTION, ":", "tokens, as if one layer"),
    ):
        gap = np.median(rows[column], axis=0)
        ax.plot(rows["step"][0], gap, style, color=colour, label=label)
    kit.loglog(ax, rows["step"][0], rows["below"])
    ax.set(xlabel="step")
