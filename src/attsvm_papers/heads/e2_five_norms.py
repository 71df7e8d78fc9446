"""Which norm's max-margin solution a trained head is nearest to, by optimiser.

The trainings of heads-1. The first head of each layer is looked at after all steps, in the nuclear,
Frobenius and spectral norms and in the largest and the sum of the entries' sizes. Nulls are the
same weights in all norms: rotated and permuted singular vectors with their own selections, and the
layer's other heads. Compared are differences to the strictest null, seed by seed, and the share of
the best margin that the head attains. (Ratios mislead where the null is near zero, as in the
spectral norm.)

Source: ours; specification 08-probe, section 2

Notes: Descent of the factors of W = K'Q in a norm is biased to a norm of the product: Euclidean
descent to the nuclear one, spectral descent to the larger of the factors' spectral norms, which
bounds the spectral one, sign descent to entries, mirror descent of p = 1.1 to the sum of entries.
"""

import numpy as np

from attsvm_papers.heads import e1_own_solutions as heads_1
from attsvm_papers.heads.decoder import OPTIMISERS, Sizes
from attsvm_papers.heads.networks import RATES, attention, files, held_out_texts, trained
from attsvm_papers.heads.own_solutions import STRICT, Look, own_solutions, stable_rank
from attsvm_papers.heads.reading import (
    COLOURS,
    NAMES,
    NORMS,
    REAL,
    by_seed,
    columns,
    excess,
    interval,
    known,
    seeds,
)
from attsvm_papers.kit import RULE, at_least, at_most, claim, grid, label_ends, picture, true

SCALES = heads_1.SCALES

GEOMETRY = {"adamw": "linf", "sgd": "nuc", "muon": "spec", "signum": "linf", "mirror": "l1"}
"""What the theory of the optimiser's steps on the factors names."""


@grid(digest=files, seed=seeds, optimiser=OPTIMISERS)
def run(optimiser, seed, text, digest, sizes, queries):
    sizes = Sizes(**sizes)
    training = trained(text, sizes, optimiser, RATES[optimiser], seed)
    look, found = Look(queries, nulls=STRICT), []
    for number, layer in enumerate(attention(training.model(), held_out_texts(text, sizes, seed))):
        told = {"layer": number, "head": 0, "rank": stable_rank(layer.weights[0])}
        for own in own_solutions(layer.weights, 0, layer.inputs, layer.tokens, NORMS, look, seed):
            found.append((told, own))
    return columns(found)


def excesses(e, optimiser):
    """``(seeds, 5)``: its excess in every norm."""
    rows = e.where(optimiser=optimiser)
    parts = [rows.where(norm=k) for k in range(len(NORMS))]
    return np.stack([by_seed(part, excess(part)) for part in parts], axis=1)


def ahead(e, optimiser, norm):
    """The excess in one norm minus the largest one in the others, an interval over seeds."""
    found, k = excesses(e, optimiser), NORMS.index(norm)
    best = np.argmax(np.delete(found.mean(axis=0), k))  # one rival for all seeds
    return interval(found[:, k] - np.delete(found, k, axis=1)[:, best])


@claim(
    at_most(0.0, "upper end of the 95% interval over seeds, one optimiser each; the trial's"),
    assumes=REAL,
)
def H6(e):
    """Under AdamW, sign and mirror descent the norm of the largest excess is not the one of the
    optimiser's steps.
    """
    names = known(e, ("adamw", "signum", "mirror"))
    return np.array([ahead(e, name, GEOMETRY[name]).high for name in names])


@claim(
    at_least(0.0, "lower end of the 95% interval over seeds; derived for factors, seen in a trial"),
    assumes=REAL,
)
def H6a(e):
    """Under gradient descent of the factors it is the nuclear norm, as derived."""
    return ahead(e, "sgd", "nuc").low


@claim(
    at_least(0.0, "lower end of the 95% interval over seeds"),
    assumes=REAL,
)
def H6b(e):
    """Under Muon it is the spectral norm."""
    return ahead(e, "muon", "spec").low


@claim(
    at_least(0.0, "lower end of the 95% interval over seeds; .18 to .34 against .20 to .42 seen"),
    assumes=REAL,
)
def H6c(e):
    """Under Muon the excess in the Frobenius norm is above the nuclear one."""
    found = excesses(e, "muon")
    return interval(found[:, 1] - found[:, 0]).low


@claim(true("a cosine of uncertified weights would be no evidence", share=0.9))
def H6d(e):
    """Every programme, of heads and nulls, ends with a certified solution."""
    return (e["optimal"] == 1) & (e["gap"] < 1e-5)


@picture(
    "Five norms",
    "One panel; for each of five norms five points with bars, one per optimiser. The points of the"
    " nuclear and Frobenius norms are the highest.",
    3.3,
    1,
    2,
    width=8.4,
)
def norms(evidence, axes):
    """Left: excess over the strictest null, mean over seeds with its 95% interval, by norm and
    optimiser. Right: the share of the best margin that the head attains, in percent, median over
    heads and seeds.
    """
    names = known(evidence, OPTIMISERS)
    ends = []
    for place, name in enumerate(names):
        rows, shift = evidence.where(optimiser=name), 0.14 * (place - (len(names) - 1) / 2)
        for k, values in enumerate(excesses(evidence, name).T):
            mean, low, high = interval(values)
            axes[0].plot([k + shift] * 2, [max(low, -1), min(high, 1)], color=COLOURS[name])
            axes[0].plot(k + shift, mean, "o", color=COLOURS[name], markersize=4.5)
        shares = [100 * np.median(rows.where(norm=k)["share"]) for k in range(len(NORMS))]
        axes[1].plot(range(len(NORMS)), shares, "o-", color=COLOURS[name], markersize=4)
        ends.append((shares[-1], NAMES[name], COLOURS[name]))
    axes[0].axhline(0, color=RULE, linewidth=0.8, zorder=0)
    axes[0].set_title("cosine minus strictest null")
    axes[1].set_title("share of the best margin, %")
    label_ends(axes[1], ends, 0.09)
    for ax in axes:
        ax.set_xticks(range(len(NORMS)), NORMS)
