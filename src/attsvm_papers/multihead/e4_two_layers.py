r"""Two layers of attention: a programme for each, on its own inputs.

Four sequences of five tokens on the unit sphere, d = 10. The first layer is self-attention with a
residual, :math:`h_{it}=x_{it}+X_i^\top\mathrm{softmax}(X_iW_1x_{it})`, the second reads its outputs
under a fixed query and a fixed decoder,
:math:`f_i=v^\top H_i^\top\mathrm{softmax}(H_iW_2z_i)`, under the logistic loss. Both are trained
together from uniform random weights, normalised gradient descent with step 0.1, one norm for both.
Programmes are those of the last selections, certified.

Source: this project; the papers name several layers as a direction to go

Notes: The second layer selects a position of every sequence, which is *read*. Where the first layer
is saturated, the second is one head on the inputs :math:`x_{it}+x_{i\alpha_{it}}`, and has their
max-margin solution. The first layer has margins of one at the positions that are read, and of zero
at the others. These select for the second layer alone, whose logits grow without bound, so any
lead is enough, however small beside the weights. It is the relaxed programme of joint training.
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
from attsvm.models import select
from attsvm.optim import SteepestDescent
from attsvm_papers import kit


def attended(logits, values):
    """``(..., q, d)`` and the winners ``(..., q)``: averages of ``values``, ``(..., q, T, d)``,
    measured from the winner's, so that gradients stay exact where attention is saturated.
    """
    found = select(logits, torch.ones_like(logits, dtype=torch.bool))
    first = values.take_along_dim(found.winner[..., None, None], dim=-2)
    moved = found.probability[..., None, :] @ (values - first)
    return (first + moved)[..., 0, :], found


class TwoLayers:
    """The network on instances ``(runs, n, T, d)`` with decoders ``(runs, d)``."""

    def __init__(self, data, v):
        self.tokens, self.labels, self.queries, self.v = (
            torch.tensor(part) for part in (data.tokens, data.labels, data.queries, v)
        )

    def __call__(self, W):
        """The selections of both layers, and the margins ``(runs, n)`` of the labels."""
        X, d = self.tokens, self.tokens.shape[-1]
        logits = X @ W[:, None, :, :d] @ X.mT  # keys by queries
        values = X[:, :, None].expand(-1, -1, X.shape[2], -1, -1)
        mixed, first = attended(logits.mT, values)
        H = X + mixed
        asked = (W[:, None, :, d:] @ self.queries[..., None])[..., 0]
        logits = (H @ asked[..., None])[..., 0]
        output, second = attended(logits[..., None, :], H[..., None, :, :])
        return first, second, self.labels * (output[..., 0, :] * self.v[:, None]).sum(dim=-1)


def descend(network, W, steps, marks):
    """Weights ``(marks, runs, d, 2 d)``, what both layers select at the marks, as ``(layer, marks,
    runs, n, q)``, the logarithm of the attention beside that, and the last logits of the second
    layer behind the largest one, ``(runs, n, T)``.
    """
    W = torch.nn.Parameter(torch.tensor(W))
    descent = SteepestDescent([W], lr=0.1)
    weights, winners, beside = [], [], []
    for step in range(1, steps + 1):
        descent.zero_grad()
        torch.nn.functional.softplus(-network(W)[2]).mean(dim=-1).sum().backward()
        descent.step()
        if step in marks:
            with torch.no_grad():
                layers = network(W)[:2]
            weights.append(W.detach().clone().numpy())
            winners.append([layer.winner.numpy() for layer in layers])
            beside.append(missing(layers[0]))
    return np.stack(weights), winners[-1], np.stack(beside), layers[1].relative[..., 0, :].numpy()


def missing(layer):
    """The logarithm of the attention that the winners lack."""
    rivals = layer.log_probability.scatter(-1, layer.winner[..., None], -torch.inf)
    return torch.logsumexp(rivals, dim=-1).numpy()


def programmes(data, first, second):
    """The first layer's margins at every position, the positions ``(n, T)`` that the second layer
    reads, and what that sees: the sequences that the first one hands on where it is saturated.
    """
    n, T = first.shape
    inputs = data.tokens + data.tokens[np.arange(n)[:, None], first]
    every = selection_margins(sequence_pairs(data, np.ones((n, T))), first.ravel())
    return every, np.arange(T) == second[:, None], AttentionData(inputs, data.labels, data.queries)


def compare(data, W, first, second):
    """What is measured of one trial: weights ``(marks, d, 2 d)``, and the last winners of both
    layers.
    """
    d = data.d_x
    every, read, given = programmes(data, first, second)
    seen = AttentionData(data.tokens, data.labels, data.tokens[read])
    one, two = max_margin(relax(every, read.ravel())), max_margin(given, second)
    alone, raw = max_margin(seen, first[read]), max_margin(data, second)
    own, other = W[..., :d], W[..., d:]
    return {
        "first": direction_gap(own, one.W),
        "first_alone": direction_gap(own, alone.W),
        "second": direction_gap(other, two.W),
        "second_raw": direction_gap(other, raw.W),
        "certified": one.status == two.status == "optimal",
        "ratio": np.linalg.norm(other[-1]) / np.linalg.norm(own[-1]),
        "ratio_best": two.norm / one.norm,
        **held_places(one, two, read),
    }


def held_places(one, two, read):
    """Where the first solution keeps a margin of zero, and what that does for the second layer."""
    margins, queries = one.margins, two.margins.queries
    place = np.repeat(np.arange(read.size), np.diff(margins.offsets))
    free = margins.rhs == 0
    leaning = free & (one.dual > 1e-6 * one.dual.max())
    held = np.isin(np.arange(read.size), place[leaning])
    ahead = (margins.differences * (queries @ two.W.T)[place // read.shape[1]]).sum(axis=-1)
    return {
        "held": held.reshape(read.shape),
        "lower": share(ahead < 0, leaning),
        "lower_other": share(ahead < 0, free & ~leaning),
    }


def share(true, among):
    return true[among].mean() if among.any() else np.nan


@kit.run(seeds=kit.seeds(100, by=50), quick={"seeds": 8, "steps": 3000})
def run(seeds, n=4, T=5, d=10, steps=10_000):
    data, v = unit_sphere(n, T, d, seeds)
    drawn = [np.random.default_rng([53, seed]) for seed in seeds]
    start = np.stack([rng.uniform(-1, 1, (d, 2 * d)) for rng in drawn]) / np.sqrt(d)
    marks = np.unique(np.geomspace(10, steps, 10).astype(int))
    W, (first, second), beside, behind = descend(TwoLayers(data, v), start, steps, marks)
    read = np.arange(T) == second
    told = [
        compare(data.instance(k), W[:, k], first[k], second[k, :, 0]) for k in range(len(seeds))
    ]
    columns = kit.stacked(told)
    held = columns.pop("held")
    lead = behind / np.where(read, -np.inf, behind).max(axis=(-2, -1), keepdims=True)
    return {
        "step": kit.same(marks),
        **columns,
        "lead": largest(lead, held),
        "lacking_read": largest(beside, read).T,
        "lacking_held": largest(beside, held).T,
    }


def largest(values, among):
    """``(..., runs)``: the largest of each run, nan where there is none."""
    found = np.where(among, values, -np.inf).max(axis=(-2, -1))
    return np.where(among.any(axis=(-2, -1)), found, np.nan)


ALONE = kit.replaced("the programme of the positions that are read, alone", first="first_alone")
RAW = kit.replaced("the solution on the tokens, as if there were one layer", second="second_raw")
ALIKE = kit.replaced("layers of equal length", ratio=lambda e: np.ones(e.rows))
LOOSE = "other rivals at positions that are not read"


@kit.claim(
    kit.at_most(0.02, "11 degrees, as the first layer is not saturated everywhere", share=kit.MOST),
    assumes="certified",
    null=RAW,
    failure="scale",
)
def HL1(e):
    """The second layer converges in direction to the max-margin solution of its selection on the
    inputs that a saturated first layer hands it.
    """
    return e["second"][:, -1]


@kit.claim(
    kit.at_most(0.02, "as for the second layer", share=kit.MOST),
    assumes="certified",
    null=ALONE,
    failure="scale",
)
def HL2(e):
    """The first layer converges to the solution of its relaxed programme: margins of one at the
    positions that the second layer reads, and of zero at all others.
    """
    return e["first"][:, -1]


@kit.claim(
    kit.between(0.95, 1.05, "5 %", share=kit.MOST), assumes="certified", null=ALIKE, failure="scale"
)
def HL3(e):
    """Under one norm for both, the lengths of the layers are to each other as those of their
    solutions.
    """
    return e["ratio"] / e["ratio_best"]


@kit.claim(
    kit.at_least(
        0.75, "of such rivals; chance has two thirds, others still change places", share=kit.MOST
    ),
    assumes={"some position is held": lambda e: ~np.isnan(e["lower"])},
    null=kit.replaced(LOOSE, lower="lower_other"),
)
def HL5(e):
    """Where the first solution keeps a margin of zero, the token that is selected has the lower
    logit in the second layer: it is held there against a shorter solution.
    """
    return e["lower"]


@kit.picture(
    "Two layers, two programmes",
    "Gaps to the layers' own programmes fall to a ten-thousandth; to the others they stop at"
    " a fiftieth. Attention saturates at once where it is read, and slowly where it is held.",
    2.9,
    1,
    2,
    width=8.0,
)
def layers(evidence, axes):
    """Left: median gaps by step. Right: attention that the selected token lacks, at the position
    where that is most: median, and the middle half of the trials.
    """
    rows = evidence.where(certified=True)
    step = rows["step"][0]
    for column, colour, style, words in (
        ("first", kit.TRAINED, "-", "first layer"),
        ("first_alone", kit.TRAINED, ":", "positions that are read, alone"),
        ("second", kit.ATTENTION, "-", "second layer"),
        ("second_raw", kit.ATTENTION, ":", "tokens, as if one layer"),
    ):
        axes[0].plot(step, np.median(rows[column], axis=0), style, color=colour, label=words)
    kit.loglog(axes[0], step, rows["first"])
    axes[0].set(xlabel="step", title="1 - cosine to the solution")
    axes[0].legend(frameon=False, fontsize=8)
    held = rows.take(~np.isnan(rows["lead"]))
    for column, colour, words in (
        ("lacking_read", kit.TRAINED, "read"),
        ("lacking_held", kit.BEST, "held at a margin of zero"),
    ):
        kit.band(axes[1], step, -held[column], colour, shares=(0.25, 0.75), label=words)
    kit.loglog(axes[1], step, -held["lacking_read"])
    axes[1].set(xlabel="step", title="-log(1 - attention) of the selected token")
    axes[1].legend(frameon=False, fontsize=8)
