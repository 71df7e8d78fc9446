"""Several tokens per sequence under heads of two layers.

n = 3, T = 4, fixed two-layer ReLU head, W from uniform random weights, normalised gradient descent
with step 0.1, 2000 steps. A run is accepted when no probability lies between 1e-6 and 1e-3, at
least one is below, and the programmes of the selected sets are feasible. As in the paper the
multiple C of the max-margin part is that of the final weights; beside it, C fitted at every record.
Then smooth heads, GELU and tanh with weights of variance one, and up to 16 tokens in d = 10,
followed by gradient flow to the time exp(36): every draw counts, a token is selected from a
probability of 1e-6 on, and the mixture of the selected ones is computed from the head alone.

Source: Transformers as Support Vector Machines, multi-token figure

Notes: The long one: at d = 10 about one seed in 60 is accepted, so 500 accepted runs need more than
30 000. The published guard of 2.2e-16 in the norm of the gradient belongs to the protocol: where a
ReLU is dead its sequences pull no longer, and without a guard the others would grow alone for ever.
Seeds without a negative label are skipped, as in the released code.
"""

from typing import Any

import numpy as np
import torch

from attsvm import (
    finite_component,
    max_margin_batch,
    multi_token_margins,
    recombine,
    selection_margins,
    train,
)
from attsvm.attention import Attention, MLPHead
from attsvm.datasets import mlp_instance
from attsvm.margins import split
from attsvm.theory import selected_sets
from attsvm.training import AtSteps, direction_gap
from attsvm_papers import kit
from attsvm_papers.tfsvm.gradient_flow import ACTIVATIONS, Flow, best_mixture
from attsvm_papers.tfsvm.guarded import GuardedDescent

ACCEPTED = {4: 0.170, 6: 0.090, 8: 0.042, 10: 0.0155}  # share of seeds that count, from below
BLOCK = 500
# Means of 1 - cosine at step 2000 in the stored plot of 500 accepted runs. An independent program
# had 100, 100, 80 and 80.
PUBLISHED = {
    "both": {4: 0.034, 6: 0.0165, 8: 0.011, 10: 0.0055},
    "margin": {4: 0.071, 6: 0.043, 8: 0.015, 10: 0.0085},
    "single": {4: 0.155, 6: 0.145, 8: 0.137, 10: 0.122},
}


@kit.run(
    d=[*ACCEPTED],
    seeds=kit.until(500, by=BLOCK, start=1, share=ACCEPTED, axis="d"),
    quick={"d": (4,), "seeds": 34},
    name="descent",
)
def descend_under_relu(d, seeds, n=3, T=4, steps=2000, lr=0.1):
    seeds_with_negative = np.array(seeds)[(mlp_instance(n, T, d, seeds)[0].labels < 0).any(axis=-1)]
    data, V = mlp_instance(n, T, d, seeds_with_negative.tolist())
    model = Attention.cross(data, MLPHead(torch.from_numpy(V)), init=("uniform", seeds[0]))
    rule = GuardedDescent(model.parameters(), lr)
    trajectory = train(model, data, rule, steps, AtSteps(range(0, steps, 100)))
    s, rows, components = model.probabilities(data).detach().numpy(), [], []
    selected = selected_sets(s)
    for k in np.flatnonzero(selected.clear).tolist():
        instance, sets, W = data.instance(k), selected.sets[k], trajectory.W[:, k]
        likeliest = selection_margins(instance, s[k].argmax(axis=-1))
        margin, single = max_margin_batch([multi_token_margins(instance, sets), likeliest])
        finite = finite_component(instance, sets, np.where(sets, s[k], 1.0))
        if margin.status != "optimal" or single.status != "optimal" or not finite.consistent:
            continue
        diverging = recombine(W[-1], finite.W, margin.W).scale * margin.W
        components.append((W, finite.W, diverging))
        rows.append(
            {
                "seed": int(seeds_with_negative[k]),
                "both": direction_gap(W, finite.W + diverging),
                "refitted": np.array([1.0 - recombine(w, finite.W, margin.W).cosine for w in W]),
                "margin": direction_gap(W, margin),
                "single": direction_gap(W, single),
                "masked": s[k][~sets].max(),
                "sizes": sets.sum(axis=-1),
                "label": instance.labels,
            }
        )
    for row, (W, _, diverging), (_, other_finite, _) in zip(
        rows, components, components[-1:] + components[:-1], strict=True
    ):
        row["other"] = direction_gap(W, other_finite + diverging)
    return kit.stacked(rows) | ({"step": kit.same(trajectory.steps)} if rows else {})


LOG_TIMES = tuple(np.linspace(4.0, 36.0, 9).tolist())
SELECTED = 1e-6  # least probability; at the end the others have 1e-10 at most


@kit.run(
    activation=[*ACTIVATIONS],
    tokens=(4, 8, 16),
    seeds=kit.seeds(60, by=30, name="flow_seeds"),
    quick={"tokens": (16,), "flow_seeds": 8},
    name="flow",
)
def flow_under_smooth_heads(activation, tokens, seeds, n=3, width=10):
    """The two parts under a smooth head, and what is predicted of them."""
    rows = []
    for seed in seeds:
        data, V = mlp_instance(n, tokens, width, seed)
        start = np.random.default_rng([7, seed]).uniform(-1, 1, (width, width)) / np.sqrt(width)
        W, s = Flow(data, width * V, ACTIVATIONS[activation], start).run(LOG_TIMES)
        sets = s > SELECTED
        likeliest = selection_margins(data, s.argmax(axis=-1))
        margin, single = max_margin_batch([multi_token_margins(data, sets), likeliest])
        inside, outside = map(np.stack, zip(*(split(w, margin.margins) for w in W), strict=True))
        errors = {
            name: np.linalg.norm(inside[-1] - finite_part(data, width * V, sets, head))
            for name, head in ACTIVATIONS.items()
        }
        own_error, other_error = errors.pop(activation), *errors.values()
        size = np.linalg.norm(inside[-1]) if (sets.sum(axis=1) > 1).any() else np.nan
        rows.append(
            {
                "seed": seed,
                "outside": direction_gap(outside, margin.W),
                "outside_single": direction_gap(outside, single.W),
                "finite": own_error / size,
                "finite_other": other_error / size,
                "sizes": sets.sum(axis=1),
                "label": data.labels,
            }
        )
    return kit.stacked(rows) | {"log_time": kit.same(LOG_TIMES)}


def finite_part(data, hidden, sets, head):
    """The finite part at the mixtures of selected tokens that are best for a head."""
    shares = np.ones(sets.shape)
    for tokens, is_selected, label, share in zip(
        data.tokens, sets, data.labels, shares, strict=True
    ):
        share[is_selected] = best_mixture(tokens[is_selected] @ hidden, label, head)
    return finite_component(data, sets, np.maximum(shares, 1e-12)).W


def order_of_gaps(e, name="both"):
    is_late = e["step"][0] >= 200
    both, margin, single = (
        e[column].mean(axis=0)[is_late] for column in (name, "margin", "single")
    )
    return np.concatenate([margin - both, single - margin])


STORED = ("authors' code", "tfsvm, stored plots")
DESCENT = {"part": "descent"}
EVERY: dict[str, Any] = {"by": "d", "least": 30, "where": DESCENT}
LATE = kit.at_least(0.0, "at every record from step 200 on, at every dimension")


@kit.claim(
    LATE,
    "paper",
    "tfsvm, multi-token figure; a proposed equivalence supported by experiment",
    **EVERY,
    null=kit.replaced("the finite part of another run", both="other"),
    id="T19",
)
def theorem_19_two_parts(e):
    """Trained weights are a finite part plus a multiple of the max-margin part: mean gaps order as
    both < margin < single token.
    """
    return order_of_gaps(e)


@kit.claim(
    kit.at_least(kit.MOST, "maximising a convex function over a simplex; the rest still move"),
    **EVERY,
    null=kit.exchanged("negative labels in their place", "label", 1.0, -1.0),
)
def T19b(e):
    """Under a positive label the ReLU head, which is convex, selects one token."""
    return np.mean(e["sizes"][e["label"] > 0] == 1)


@kit.claim(
    kit.at_least(
        0.5, "more than half of the sequences; 50 to 60 % at d = 4 in an independent program"
    ),
    **EVERY,
    null=kit.exchanged("positive labels in their place", "label", 1.0, -1.0),
)
def T19c(e):
    """Under a negative label the ReLU head prefers mixtures."""
    return np.mean(e["sizes"][e["label"] < 0] > 1)


@kit.claim(
    kit.at_most(float(np.log(1.5)), "logarithm of 1.5: heavy tails, other starts"),
    *STORED,
    by="d",
    least=100,
    where=DESCENT,
    null=kit.replaced("the predictions exchanged", margin="single", single="margin"),
    failure="not reproduced",
)
def E2_7c(e):
    """Mean gaps to the two parts together, to the max-margin part and to the single token are at
    step 2000 those of the stored plots.
    """
    return [
        abs(np.log(e.end(name).mean() / published_mean[e["d"][0]]))
        for name, published_mean in PUBLISHED.items()
    ]


@kit.claim(
    kit.true("the scatter rises to 0.1 near 1e-6", share=0.75),
    *STORED,
    by="d",
    least=100,
    where=DESCENT,
    null=kit.shuffled("masked", within="d"),
)
def E2_7f(e):
    """Where masked probabilities are above 1e-8 the gap to both parts is larger, at three of four
    dimensions.
    """
    gap, masked = e.end("both"), e["masked"]
    return np.median(gap[masked > 1e-8]) > 3 * np.median(gap[masked < 1e-13])


def values_by_head(e, column, parted):
    """A column of the trials with such a part, by activation and number of tokens."""
    rows = e.take(parted(e["sizes"], e["tokens"][:, None]).any(axis=1))
    return {
        f"{activation}, T = {T:.0f}": rows.where(activation=activation, tokens=T)[column]
        for activation in rows.levels("activation")
        for T in rows.levels("tokens")
    }


@kit.claim(
    kit.at_most(
        0.01, "8 degrees; the gap falls like one over the square of log time", share=kit.MOST
    ),
    reference="tfsvm, a proposed equivalence, under other heads",
    null=kit.replaced("the solution of the likeliest tokens", outside="outside_single"),
    where={"part": "flow"},
)
def T19e(e):
    """Under smooth heads, and among 16 tokens, trained weights have the direction of the max-margin
    part across the span of the selected tokens.
    """
    return {head: gap[:, -1] for head, gap in values_by_head(e, "outside", np.less).items()}


@kit.claim(
    kit.at_most(1e-3, "a thousandth of its norm; few flows end at another optimum", share=kit.MOST),
    reference="tfsvm, a proposed equivalence, under other heads",
    null=kit.replaced("the finite part that the other head asks for", finite="finite_other"),
    where={"part": "flow"},
)
def T19f(e):
    """Under smooth heads trained weights are, within the span of the selected tokens, the finite
    part of the mixture of these tokens that is best for the head, computed without training.
    """
    return values_by_head(e, "finite", lambda sizes, _: sizes > 1)


@kit.panels(
    "A finite part beside a diverging one",
    "Three falling lines per dimension, lowest the one with both parts; below, a cloud at"
    " 2e-3 that rises to the right.",
    4.8,
    by="d",
    rows=2,
    width=lambda e: max(2.2 * len(e.levels("d")), 4.6),
    name="multi-token",
)
def multi_token(e, top, bottom):
    """Above: mean gap between trained weights and three predictions from the last softmax, C of the
    last weights (crosses: read off the published plot at step 2000; dotted: C refitted). Below, one
    dot per run: the prediction is best where masked tokens have vanished.
    """
    lines = {
        "both": "both parts, finite + max-margin",
        "margin": "max-margin part",
        "single": "single-token solution",
    }
    stored = {name: published_mean[e["d"][0]] for name, published_mean in PUBLISHED.items()}
    kit.means(top, e, "step", lines, log=True, at=(2000, stored))
    kit.means(top, e, "step", {"refitted": "both parts, C refitted"}, style=":", log=True)
    top.set(ylim=(3e-3, 1.2), xlim=(0, 2000), ylabel="1 - cosine")
    bottom.plot(e["masked"], e.end("both"), "o", color=kit.BEST, ms=2.5, alpha=0.35)
    kit.loglog(bottom, np.array([5e-18, 1e-6]), np.array([1e-5, 1.0]))
    bottom.set(xlim=(5e-18, 1.5e-6), xticks=[1e-16, 1e-11, 1e-6], ylim=(1e-5, 1))
    bottom.set(xlabel="largest masked probability", ylabel="1 - cosine at the end")


@kit.panels(
    "Two parts under smooth heads",
    "Gaps across the span of the selected tokens fall to a few thousandths for every head and"
    " length, those to the single-token solution stay at a third.",
    3.0,
    by="activation",
    head="{} head",
    width=8.0,
)
def smooth_heads(e, ax):
    """Median gap to the max-margin part, across the span of the selected tokens, by the logarithm
    of time; dotted: to the solution of the likeliest tokens, at the largest T.
    """
    for rows, shade in zip(e.by("tokens"), (0.35, 0.6, 1.0), strict=False):
        times, label = rows["log_time"][0], f"T = {rows['tokens'][0]:.0f}"
        gap, single = (np.nanmedian(rows[name], axis=0) for name in ("outside", "outside_single"))
        ax.plot(times, gap, color=kit.TRAINED, alpha=shade, label=label)
    ax.plot(times, single, ":", color=kit.ATTENTION, label="likeliest tokens")
    ax.set(yscale="log", xlabel="log time", ylabel="1 - cosine")
