"""Which norm's max-margin solution a trained head is nearest to, by optimiser.

The trainings of heads-1. The first head of one layer, the layers by turns, is measured after all
steps in the nuclear, Frobenius and spectral norms, that of the sum of entries and that of the
largest entry. Nulls are the same weights in all norms: rotated and permuted singular vectors with
their own selections, and the layer's other heads. Compared are differences to the strictest null,
seed by seed, and the share of the best margin that the head attains. (Ratios mislead where the null
is near zero, as in the spectral norm.)

Source: this project

Notes: Descent of the factors of W = K'Q in a norm is biased to a norm of the product: Euclidean
descent to the nuclear one, spectral descent to the larger of the factors' spectral norms, which
bounds the spectral one, sign descent to entries, mirror descent of p = 1.1 to the sum of entries.
So the share of the best margin is measured for the factors, too. Every norm of W is at most a
product of norms of K and Q, by which W's margin is divided instead: Frobenius ones for the nuclear
norm, spectral ones for the spectral norm, sums of entries, and d times largest entries.
"""

import numpy as np

from attsvm.norms import parse_norm
from attsvm_papers import kit
from attsvm_papers.heads.decoder import OPTIMISERS
from attsvm_papers.heads.excesses import COLOURS, NAMES, REAL, by_seed, excess_over_nulls
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
from attsvm_papers.heads.own_solutions import NORMS, STRICT, HeadOptions, own_solutions

GEOMETRY = {"adamw": "linf", "sgd": "nuc", "muon": "spec", "signum": "linf", "mirror": "l1"}
"""What the theory of the optimiser's steps on the factors names."""


@kit.run(digest=text_digests, seed=kit.seeds(5), optimiser=OPTIMISERS, quick=QUICK, paper=PAPER)
def run(optimiser, seed, digest, text=TEXT, sizes=SMALL, queries=80):
    training = trained_decoder(text, sizes, optimiser, seed)
    number, model = seed % training.sizes.depth, training.model()
    layer = attention_layers(model, held_out_texts(text, training.sizes, seed))[number]
    setting, factors = {"layer": number, "head": 0}, norms_over_bounds(model.blocks[number])
    rows = own_solutions(layer, 0, NORMS, HeadOptions(queries, nulls=STRICT), seed)
    return kit.stacked([setting | row | {"balance": factors[NORMS[row["norm"]]]} for row in rows])


def norms_over_bounds(block):
    """The norm of the first head's W over the bound that its factors give, at most one, by norm."""
    d = block.keys.weight.shape[1] // block.heads
    K, Q = (
        projection.weight[:d].detach().double().numpy()
        for projection in (block.keys, block.queries)
    )
    W = K.T @ Q
    pairs = {
        "nuc": np.linalg.norm(K) * np.linalg.norm(Q),
        "fro": np.linalg.norm(K) * np.linalg.norm(Q, 2),
        "spec": np.linalg.norm(K, 2) * np.linalg.norm(Q, 2),
        "l1": np.abs(K).sum() * np.abs(Q).sum(),
        "linf": d * np.abs(K).max() * np.abs(Q).max(),
    }
    return {name: parse_norm(name).value(W) / bound for name, bound in pairs.items()}


def excess_by_norm(e, optimiser):
    """The excess ``(seeds,)`` of one optimiser by norm, in every norm in which it was measured."""
    rows = e.where(optimiser=optimiser)
    groups = {NORMS[int(k)]: rows.where(norm=k) for k in rows.levels("norm")}
    return {norm: by_seed(group, excess_over_nulls(group)) for norm, group in groups.items()}


def lead_over_other_norms(e, optimiser, norm):
    """The excess in one norm minus that in the best of the others, an interval over seeds."""
    excesses = excess_by_norm(e, optimiser)
    excess = excesses.pop(norm)
    return kit.interval(excess - max(excesses.values(), key=np.mean))  # one rival for all seeds


def nuclear_as_norm_of_steps(e):
    """The nuclear norm's numbers under the name of the optimiser's own norm."""
    norm_of_steps = np.array([NORMS.index(GEOMETRY[name]) for name in e["optimiser"]])
    norm, nuclear = e["norm"], NORMS.index("nuc")
    return e.but(
        {
            "norm": np.where(
                norm == nuclear, norm_of_steps, np.where(norm == norm_of_steps, nuclear, norm)
            )
        }
    )


SGD = kit.exchanged("gradient descent in its place", "optimiser", "muon", "sgd")


@kit.claim(
    kit.at_most(0.0, "upper end of the 95% interval over seeds, one optimiser each"),
    assumes=REAL,
    null=nuclear_as_norm_of_steps,
    failure="refuted",
)
def H6(e):
    """Under AdamW, sign and mirror descent the norm of the largest excess is not the one of the
    optimiser's steps.
    """
    return np.array(
        [
            lead_over_other_norms(e, name, GEOMETRY[name]).high
            for name in ("adamw", "signum", "mirror")
        ]
    )


@kit.claim(
    kit.at_least(0.0, "lower end of the 95% interval over seeds"),
    assumes=REAL,
    null=SGD,
    failure="refuted",
)
def H6b(e):
    """Under Muon the norm of the largest excess is the spectral one, that of its steps."""
    return lead_over_other_norms(e, "muon", "spec").low


@kit.picture(
    "By norm",
    "Two panels with a group of points per norm, one point per optimiser; the excess is largest in"
    " the nuclear and Frobenius norms.",
    3.3,
    1,
    2,
    width=8.4,
    name="norms",
)
def excess_and_share(evidence, axes):
    """Left: excess over the strictest null, mean over seeds with its 95% interval, by norm and
    optimiser. Right: the share of the best margin that the head attains, in percent, median over
    seeds; hollow where norms of its factors bound that of W.
    """
    for position, name in enumerate(OPTIMISERS):
        rows, shift = evidence.where(optimiser=name), 0.14 * (position - (len(OPTIMISERS) - 1) / 2)
        for norm, values in excess_by_norm(evidence, name).items():
            mean, low, high = kit.interval(values)
            at = NORMS.index(norm) + shift
            axes[0].plot([at] * 2, [max(low, -1), min(high, 1)], color=COLOURS[name])
            label = NAMES[name] if norm == "nuc" else None
            axes[0].plot(at, mean, "o", color=COLOURS[name], markersize=4.5, label=label)
            group = rows.where(norm=NORMS.index(norm))
            shares, style = 100 * group["share"], {"color": COLOURS[name], "markersize": 4.5}
            axes[1].plot(at, np.median(shares), "o", **style)
            axes[1].plot(at, np.median(shares * group["balance"]), "o", fillstyle="none", **style)
    axes[0].axhline(0, color=kit.RULE, linewidth=0.8, zorder=0)
    axes[0].set_title("cosine minus strictest null")
    axes[1].set_title("share of the best margin, %")
    axes[0].legend(frameon=False, fontsize=8)
    for ax in axes:
        ax.set_xticks(range(len(NORMS)), NORMS)
