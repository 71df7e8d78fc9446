r"""How many next tokens the chain needs.

K tokens, 4K prompts of 2K for each last token, rows with uniform logits in ±1; n next tokens of
prompts drawn alike, n from 100 to 10 000 times K². The excess of the cross entropy over that of the
chain, over all prompts, after the largest likelihood; the same with prompts read as sets, without
their counts.

Source: From Self-Attention to Markov Models (Ildiz, Huang, Li, Rawat and Oymak, 2024): sample
complexity in its abstract, K²/n in a summary of it

Notes: Sizes are this project's. A likelihood of p free weights has an excess of p/(2n) (Wilks), and
each of K rows has K-1.
"""

import numpy as np

from attsvm_papers import kit
from attsvm_papers.markov.chain import (
    COVERED,
    generators,
    maximise_likelihood,
    next_token_probabilities,
    risk,
    sample_prompts,
)

TIMES = np.array([100, 300, 1000, 3000, 10_000])
SUMMARY = "read in a summary"


@kit.run(K=[4, 8, 16, 32], seeds=kit.seeds(20, by=20), quick={"K": [4, 8]})
def run(K, seeds):
    rngs = generators(seeds)
    m = sample_prompts(COVERED, K, 2 * K, 4 * K, rngs)
    w = np.stack([rng.uniform(-1, 1, (K, K)) for rng in rngs])
    truth = next_token_probabilities(w, m)
    all_probabilities = truth.reshape(len(truth), -1) / (4 * K**2)
    n = TIMES * K**2
    next_tokens = np.stack(
        [rng.multinomial(n, p[None]) for rng, p in zip(rngs, all_probabilities, strict=True)], 1
    )
    counts = next_tokens.reshape(len(n), *truth.shape).astype(float)

    def excess(prompts_read):
        rows = maximise_likelihood(prompts_read, counts, np.zeros((*counts.shape[:-2], K))).w
        return ((risk(rows, prompts_read, truth) - risk(w, m, truth)).sum(axis=-1) / (4 * K**2)).T

    return {
        "n": kit.same(n),
        "excess": excess(np.broadcast_to(m, counts.shape)),
        "excess_sets": excess(np.broadcast_to(np.minimum(m, 1), counts.shape)),
        "free": K * (K - 1),
        "all": K * K,
    }


SETS = kit.replaced("prompts as sets, without counts", excess="excess_sets")


@kit.claim(
    kit.between(-1.1, -0.9, "-1 with what 20 seeds leave"),
    "recalled",
    SUMMARY,
    by="K",
    null=SETS,
)
def MK7(e):
    """The excess loss falls like 1/n: slope of the logarithm of its mean, for each K."""
    mean = e["excess"].mean(axis=0)
    return kit.slopes(np.log(e["n"][0]), np.log(mean)[None], np.array([True]))


@kit.claim(
    kit.between(0.85, 1.15, "one with what 20 seeds leave"),
    "ours",
    "derived (Wilks)",
    by="K",
    null=kit.replaced("K² free weights", free="all"),
)
def MK8(e):
    """The excess loss times n is half the number of free weights, K(K-1)/2, where n is a thousand
    times K² and more: its mean, of that constant.
    """
    is_late = e["n"] >= 1000 * e["all"][:, None]
    return np.mean(e["excess"] * e["n"] / (e["free"][:, None] / 2), where=is_late)


def one_row(e):
    """An error of one row in place of all K."""
    return e.but({"excess": e["excess"] / e["K"][:, None]})


@kit.claim(
    kit.between(1.8, 2.4, "two; K(K-1) has 2.1 to 2.2 here"),
    "recalled",
    SUMMARY,
    null=one_row,
)
def MK9(e):
    """The excess loss times n grows like K²: exponent of K."""
    means = [np.mean(group["excess"] * group["n"]) for group in e.by("K")]
    return kit.slopes(np.log(e.levels("K")), np.log(means)[None], np.array([True]))


@kit.picture(
    "Excess loss by number of samples",
    "Means for K of 4 to 32 fall along 1/n; with prompts as sets they stay where they are.",
    3.0,
    1,
    2,
    name="samples",
)
def draw_excess(e, axes):
    """Left: excess of the cross entropy by the number n of next tokens, mean of all seeds and their
    range, a colour for each K; dotted with prompts read as sets. Right: the same times n, of
    K(K-1)/2.
    """
    for colour, K in zip(kit.COLOURS, e.levels("K"), strict=False):
        rows = e.where(K=K)
        n = rows["n"][0]
        kit.band(axes[0], n, rows["excess"], colour)
        axes[0].plot(n, rows["excess_sets"].mean(axis=0), ":", color=colour)
        scaled = rows["excess"] * n / (rows["free"][:1, None] / 2)
        axes[1].plot(n, scaled.mean(axis=0), "o-", color=colour, markersize=3, label=f"K = {K}")
    axes[1].axhline(1.0, color=kit.FAINT, linestyle="--", linewidth=0.9)
    axes[0].set(xscale="log", yscale="log", title="excess loss", xlabel="n")
    axes[1].set(xscale="log", ylim=(0, 2), title="times n, of K(K-1)/2", xlabel="n")
    kit.legend(axes[1], loc="lower right")
