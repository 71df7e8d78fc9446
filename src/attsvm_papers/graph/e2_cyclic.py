"""Cyclic priority graphs: direction, finite part, and the plateau of normalised steps.

n = 6 sentences of T = 4 of K = 6 tokens, drawn until a priority graph has a cycle; unit embeddings
in d = 8. Normalised gradient descent on the log loss, 4000 (and 40 000) steps of 0.01 from W
uniform in ±1/√d; also 20 000 steps of 0.1/√(t + 1). The finite part is computed by Newton's method
to rounding. Retrieval is tested on random sentences that end in a query of training.

Source: Mechanics of Next Token Prediction with Self-Attention, global convergence on cyclic graphs

Notes: The authors train a second copy for the finite part and compare two moving iterates; the
distance here is to the exact one.
"""

from typing import Any

import numpy as np

from attsvm import graph_svm
from attsvm.datasets.next_token import NextTokenData
from attsvm.dynamics.next_token import Rule
from attsvm.selection import leading_tokens, token_masses
from attsvm_papers import kit
from attsvm_papers.graph.priority import (
    ALIKE,
    NO_FINITE_PART,
    SETTINGS,
    SLOW,
    certificates,
    descend,
    draws,
    follow,
    tenth,
)

# The authors' cyclic setting: constant normalised steps, ten times as many, and steps that decay
# like the root of their number.

LR = 0.01
CONSTANT, LONG, DECAYING = "constant", "long", "decaying"
RUNS = ((CONSTANT, LR, 0.0, 4000), (LONG, LR, 0.0, 40_000), (DECAYING, 0.1, 0.5, 20_000))

TAIL = 100
"""Last steps over which the plateau is averaged."""
UNSEEN = 200
"""Random sentences per seed on which retrieval is tested."""


@kit.run(kit.rows("part lr decay steps", RUNS), seeds=kit.seeds(100, by=50), quick={"seeds": 20})
def run(part, lr, decay, steps, seeds, setting=SETTINGS[1]):
    data = draws(setting, True, seeds)
    svms = graph_svm(data)
    course = descend(data, Rule(lr, decay=decay), steps, seeds, TAIL)
    columns = follow(course, svms)
    tail = columns.pop("finite")
    spaced = np.r_[0 : len(course.steps) - TAIL, len(course.steps) - 1]
    columns = {name: column[:, spaced] for name, column in (columns | {"finite": tail}).items()}
    unseen = [_unseen(svm, course.W[[-1, 0], run], seeds[run]) for run, svm in enumerate(svms)]
    return {
        "plateau": tail[:, -TAIL:].mean(axis=1),
        "unseen": np.array([count for count, _ in unseen]),
        "unseen_predicted": np.array([shares for _, shares in unseen]),
        **certificates(svms),
        **columns,
    }


def _unseen(svm: Any, W: Any, seed: int) -> tuple[float, Any]:
    """How many of the random sentences there are, and in which share of them each of the weights
    gives the leading component more than half of the attention.
    """
    data = svm.data
    rng = np.random.default_rng([43, seed])
    queries = np.unique(data.queries)  # a query without a graph leaves attention open
    sentences = [
        np.append(rng.integers(data.K, size=rng.integers(1, 6)), rng.choice(queries))
        for _ in range(UNSEEN)
    ]
    labels = [int(sentence[-1]) for sentence in sentences]
    test = NextTokenData.from_sentences(
        sentences, labels, embeddings=data.embeddings, following=np.arange(data.K)
    )
    leading = leading_tokens(svm.orders, test)
    _, count = test.distinct()
    # elsewhere the mass is 1 whatever W is
    judged = leading.any(axis=1) & ((count > 0).sum(axis=1) > leading.sum(axis=1))
    if not judged.any():
        return 0.0, np.full(len(W), np.nan)
    mass = np.sum(token_masses(test, W) * leading, axis=-1)[:, judged]
    return float(judged.sum()), np.mean(mass > 0.5, axis=-1)


AT_END = {"part": CONSTANT}


@kit.claim(
    kit.at_least(
        0.97,
        f"the authors' runs end at .976 to .993; {SLOW}",
        share=kit.MOST,
    ),
    "authors' code",
    "P4, figure of cyclic graphs",
    where=AT_END,
    assumes={"the solution is not zero": lambda e: e["directed"]},
    null=ALIKE,
)
def C4_4c(e):
    """On cyclic graphs normalised descent ends at a cosine of at least .97 to the graph programme's
    solution.
    """
    return e.end("cosine")


@kit.claim(
    kit.at_most(0.01, f"the authors' runs end at .0044 to .0059; {SLOW}", share=kit.MOST),
    "authors' code",
    where=AT_END,
    null=NO_FINITE_PART,
)
def C4_4f(e):
    """The part inside ends within .01 of the finite part."""
    return e.end("finite")


@kit.claim(
    kit.between(
        0.375,
        0.625,
        f"mean distance over the last {TAIL} steps, in steps: 1/2 with a quarter of tolerance;"
        f" {SLOW}",
        share=kit.MOST,
    ),
    "recalled",
    reference=(
        "derived: once the gradient outside is smaller than that inside, every step is taken inside"
    ),
    where=AT_END,
    null=kit.exchanged("decaying steps in their place", "part", CONSTANT, DECAYING),
)
def C4_4o(e):
    """It does not settle: it oscillates around the finite part with half a step."""
    return e["plateau"] / LR


@kit.claim(
    kit.between(
        0.7,
        1.5,
        "1 in the limit; over the last decade of 4e4 steps margins other than the active ones"
        " still count",
        share=kit.MOST,
    ),
    "recalled",
    interval=True,
    where={"part": LONG},
    null=kit.exchanged("decaying steps in their place", "part", LONG, DECAYING),
)
def C4_4l(e):
    """Then only the logarithm of the step number is left for the rest: |W outside| grows by |W_mm|
    per unit of log t, over the last decade of steps.
    """
    early = e["outside_norm"][:, tenth(e["step"][0])]
    return (e.end("outside_norm") - early) / e["size"] / np.log(10)


@kit.claim(
    kit.at_least(
        0.99, f"mean over the sentences of a run; the authors plot the same; {SLOW}", share=kit.MOST
    ),
    "paper",
    where=AT_END,
    null=kit.at_start("component"),
)
def C4_6m(e):
    """The component of the winner gets all attention."""
    return e.end("component")


@kit.claim(
    kit.at_least(1.0, "the component with most attention is what is predicted", share=kit.MOST),
    "paper",
    "P4, abstract: the tokens of the component of highest priority are retrieved",
    where=AT_END,
    assumes={"some sentence has one": lambda e: e["unseen"] > 0},
    null=kit.replaced(
        "before any training",
        unseen_predicted=lambda e: e["unseen_predicted"][:, ::-1],
    ),
)
def C4_7t(e):
    """Hard retrieval: in sentences never seen, the trained weights give the leading component more
    than half of the attention.
    """
    return e["unseen_predicted"][:, 0]


@kit.picture(
    "Next-token training on cyclic priority graphs",
    "The direction is found; with constant steps the cyclic part stays half a step away"
    " from its limit and takes all further steps, so that the norm stops growing linearly.",
    5.6,
    2,
    2,
    width=7.6,
)
def cyclic(evidence, axes):
    """Normalised descent on sentences whose labels contradict each other. Cosines to the max-margin
    part (mean thick, runs thin), distance of the cyclic part to the finite part (median and 90 % of
    the runs), norm, and attention that is not on the component of the winner (median thick).
    """
    rows = evidence.where(part=CONSTANT)
    steps = rows["step"][0, 1:]
    off = (1.0 - rows["component"])[:, 1:]
    lines = {
        "outside": (kit.TRAINED, "outside the cyclic subspace"),
        "cosine": (kit.ATTENTION, "all of W"),
    }
    for column, (colour, label) in lines.items():
        mean = np.nanmean(rows[column], axis=0)[1:]
        axes[0, 0].plot(steps, mean, color=colour, label=label)
    axes[0, 0].plot(steps, rows["outside"][:25, 1:].T, color=kit.TRAINED, lw=0.5, alpha=0.3)
    axes[0, 0].set(xscale="log", ylim=(-0.3, 1.1), title="cosine to the graph programme")
    kinds = {CONSTANT: (kit.TRAINED, "steps of 0.01"), DECAYING: (kit.BEST, "steps 0.1/√t")}
    for part, (colour, label) in kinds.items():
        each = evidence.where(part=part)
        x, y = each["step"][0, 1:], each["finite"][:, 1:]
        kit.band(axes[0, 1], x, y, colour, shares=(0.05, 0.95), shade=0.18, label=label)
    axes[0, 1].axhline(LR / 2, color=kit.FAINT, linestyle=":", linewidth=1.2, label="half a step")
    axes[0, 1].set(xscale="log", yscale="log", title="distance to the finite part")
    kit.band(axes[1, 0], steps, rows["norm"][:, 1:], kit.TRAINED, shares=(0.05, 0.95), shade=0.18)
    axes[1, 0].plot(steps, LR * steps, ":", color=kit.FAINT, linewidth=1.2, label="step × t")
    axes[1, 0].set(ylim=(0, 42), title="norm of W")
    axes[1, 1].plot(steps, off[:25].T, color=kit.TRAINED, linewidth=0.5, alpha=0.3)
    axes[1, 1].plot(steps, np.median(off, axis=0), color=kit.TRAINED)
    axes[1, 1].set(xscale="log", yscale="log", title="attention off the winner's component")
    for ax in axes.flat:
        ax.set_xlabel("step")
    for ax in axes.flat[:3]:
        kit.legend(ax)
