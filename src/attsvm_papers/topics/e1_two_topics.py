"""A topic changes where lower priorities outnumber higher ones, and less often in longer inputs.

Fourteen tokens, four queries, each with an order of six tokens in either of two topics that share
none, three or all of them. Sentences of every two of these and the query, for each query and topic;
normalised gradient descent on the log loss of the label's attention from random weights, 800 steps
of 0.02, one layer for both topics and one for the second alone. 2000 random inputs of the first
topic for each length from 4 to 128.

Source: Dynamics of Spontaneous Topic Changes in Next Token Prediction with Self-Attention (Jia and
Diaz-Rodriguez, 2025), read in its abstract; definitions and sizes are this project's

Notes: The paper's topics are sets of token-priority graphs, here of one order that both topics obey
where they share tokens. Tokens of an input have equal chances.
"""

import numpy as np

from attsvm.theory import graph_svm_batch
from attsvm.theory.next_token import Problem, StepRule, attention_stage
from attsvm.training import AtSteps
from attsvm_papers import kit
from attsvm_papers.topics.changes import count_changes, draw_topics, keeps_order, mixed_data

LENGTHS = (4, 8, 16, 32, 64, 128)
INPUTS = 2000


def measure_inputs(W, topic, rng):
    """Order kept, shares of changes ``(lengths,)`` and the share of them that are outnumbered."""
    order, shares, outnumbered = [], [], []
    above = np.triu(np.ones((topic.ranked.shape[1],) * 2, dtype=bool), 1)
    for query, ranked in zip(topic.queries, topic.ranked, strict=True):
        order.append(keeps_order(W[:, query], ranked, query))
        changes = [
            count_changes(W[ranked, query], above, length, INPUTS, rng) for length in LENGTHS
        ]
        shares.append([change.share for change in changes])
        outnumbered.append([change.outnumbered for change in changes])
    has_change = np.isfinite(outnumbered)
    least = np.min(outnumbered, where=has_change, initial=1.0)
    return np.mean(order), np.mean(shares, axis=0), least


@kit.run(shared=(0, 3, 6), seeds=kit.seeds(20, by=20), quick={"seeds": 8})
def run(shared, seeds, K=14, queries=4, size=6, lr=0.02, steps=800):
    rngs = [np.random.default_rng([92, shared, seed]) for seed in seeds]
    topics = [draw_topics(K, queries, size, shared, rng) for rng in rngs]
    both = [mixed_data(two, K) for two in topics]
    second = [mixed_data(two[1:], K) for two in topics]
    start = np.stack([rng.uniform(-(K**-0.5), K**-0.5, (K, K)) for rng in rngs])
    records = AtSteps([steps])
    W, W_second = (
        attention_stage(
            Problem.of(data, "log_mass"), StepRule(lr), steps, init=start, records=records
        ).W[-1]
        for data in (both, second)
    )
    columns = {}
    for name, weights in (("", W), ("_second", W_second), ("_start", start)):
        measures = [
            measure_inputs(w, two[0], rng)
            for w, two, rng in zip(weights, topics, rngs, strict=True)
        ]
        for k, column in enumerate(("order", "changes", "outnumbered")):
            columns[column + name] = np.array([measure[k] for measure in measures])
    svms = graph_svm_batch(both)
    return {
        "length": kit.same(LENGTHS),
        "acyclic": np.array([svm.acyclic and svm.solution.status == "optimal" for svm in svms]),
        **columns,
    }


ABSTRACT = "abstract; sizes are this project's"
OTHER = kit.replaced(
    "trained on the other topic alone", order="order_second", outnumbered="outnumbered_second"
)


@kit.claim(
    kit.at_least(1.0, "every pair, once trained", share=kit.MOST),
    "paper",
    ABSTRACT,
    assumes="acyclic",
    null=OTHER,
)
def TC1(e):
    """Attention that is trained on both topics keeps the order of the input's topic: share of the
    pairs of its tokens.
    """
    return e["order"]


@kit.claim(
    kit.at_least(1.0, "follows from the order"),
    "paper",
    ABSTRACT,
    assumes={"the order is kept": lambda e: e["order"] == 1.0},
    null=OTHER,
)
def TC2(e):
    """The topic changes only where the token that is predicted outnumbers every token of higher
    priority: smallest share of the changes, over queries and lengths.
    """
    return e["outnumbered"]


@kit.claim(
    kit.at_most(0.5, "half as often", share=kit.MOST),
    "paper",
    "abstract: longer inputs do not increase it; the factor is this project's",
    null=kit.replaced("before training", changes="changes_start"),
)
def TC3(e):
    """Longer inputs change the topic less often: share of changes at 128 tokens over that at 16."""
    return e["changes"][:, -1] / e["changes"][:, 2]


@kit.claim(
    kit.at_most(0.02, "two of a hundred inputs, in the mean over trials"),
    "paper",
    "abstract: overlapping topics do not increase it; the bound is this project's",
    null=kit.exchanged("topics that share nothing, in their place", "shared", 0, 6),
)
def TC4(e):
    """Topics that share all tokens change less often than topics that share none: difference of the
    shares of changes at 8 tokens.
    """
    shares = [e.where(shared=shared)["changes"][:, 1].mean() for shared in (6, 0)]
    return shares[0] - shares[1]


@kit.picture(
    "When the topic changes",
    "All curves rise up to 16 tokens and then fall to nothing; that of topics that share all tokens"
    " is far below the others.",
    3.0,
    width=4.6,
)
def changes_by_length(e, axes):
    """Share of the inputs whose prediction changes the topic, by the length of the input: medians
    over trials, and half of them. The topics share none, three or all of six tokens.
    """
    length = e["length"][0]
    for shared, colour in zip(e.levels("shared"), kit.COLOURS, strict=False):
        rows = e.where(shared=shared)
        kit.band(
            axes[0], length, rows["changes"], colour, shares=(0.25, 0.75), label=f"{shared} shared"
        )
    axes[0].set(xscale="log", xlabel="tokens of the input", ylabel="share of changes")
    axes[0].set_ylim(bottom=0)
    axes[0].set_xticks(length, [f"{x:g}" for x in length])
    axes[0].minorticks_off()
    kit.legend(axes[0])
