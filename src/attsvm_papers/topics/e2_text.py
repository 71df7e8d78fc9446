"""Two parts of a text as two topics: which order attention keeps, and when the topic changes.

The K most frequent words of a text; windows of up to six of them whose next word is among them are
sentences, with the last word as query and the next word as label. Consecutive thirds of the text
are two topics: for each query the priorities of its labels over the other words. Normalised descent
on the log loss of the label's attention from zero, 1200 steps of 0.05, on the sentences of both,
and on those of the second alone. 500 random inputs of the words of each query of the first topic,
for each length from 4 to 128. With --text FILE another text is read.

Source: Dynamics of Spontaneous Topic Changes in Next Token Prediction with Self-Attention (Jia and
Diaz-Rodriguez, 2025), read in its abstract, here on text; the text is this project's choice

Notes: Without a file the text is the reference of the Python language that comes with Python, and
differs a little between its versions. Priorities that the two topics together contradict are left
out, and counted.
"""

import numpy as np

from attsvm.theory.next_token import Problem, StepRule, attention_stage
from attsvm.theory.sentences import NextTokenData, partial_order, transitive
from attsvm.training import AtSteps
from attsvm_papers import kit
from attsvm_papers.ntp.text_windows import digest_of_windows, text_windows
from attsvm_papers.topics.changes import count_changes

LENGTHS = (4, 8, 16, 32, 64, 128)
INPUTS = 500
TOKENS = 3  # of a query, at least


def sentences_with_label(windows):
    """The sentences whose label is one of their tokens, and the labels."""
    pairs = [
        (sentence, label)
        for sentence, label in zip(windows.sentences, windows.labels.tolist(), strict=True)
        if label in sentence and len(set(sentence)) > 1
    ]
    return [sentence for sentence, _ in pairs], [label for _, label in pairs]


def data_of_sentences(sentences, labels, K):
    return NextTokenData.from_sentences(
        sentences, labels, embeddings=np.eye(K), following=np.arange(K)
    )


def certain_arcs(first, both):
    """The arcs ``(k, 3)`` of the first topic that are in no cycle of both, and the share of the
    others.
    """
    arcs, mixed = partial_order(first).arcs, partial_order(both)
    cyclic = {tuple(arc) for arc in mixed.arcs[mixed.cyclic].tolist()}
    is_certain = np.array([tuple(arc) not in cyclic for arc in arcs.tolist()])
    return arcs[is_certain], 1.0 - is_certain.mean()


def measure_text(W, arcs, rng):
    """Share of the arcs that W keeps, shares of changes ``(lengths,)``, and how many of the changes
    are outnumbered, among the queries all of whose arcs are kept and among all.
    """
    query, winner, loser = arcs.T
    in_same_order = W[winner, query] > W[loser, query]
    shares, outnumbered, in_order = [], [], []
    for asking in np.unique(query):
        of_query = query == asking
        tokens, position = np.unique(arcs[of_query, 1:], return_inverse=True)
        if len(tokens) < TOKENS:
            continue
        above = np.zeros((len(tokens), len(tokens)), dtype=bool)
        above[tuple(position.reshape(-1, 2).T)] = True
        above = transitive(above)
        changes = [count_changes(W[tokens, asking], above, T, INPUTS, rng) for T in LENGTHS]
        shares.append([change.share for change in changes])
        outnumbered.append([np.nan_to_num(change.outnumbered) for change in changes])
        in_order.append(in_same_order[of_query].all())
    weights, good = np.array(shares), np.array(shares) * outnumbered
    among = np.array(in_order)
    share_in_order = good[among].sum() / max(weights[among].sum(), 1 / INPUTS)
    return in_same_order.mean(), weights.mean(axis=0), share_in_order, good.sum() / weights.sum()


@kit.run(
    K=[200],
    third=range(3),
    digest=lambda at: [digest_of_windows(at.text, at.K)],
    quick={"K": [60], "steps": 800},
)
def run(K, third, digest, text="", lr=0.05, steps=1200):
    windows = text_windows(text, K)
    first, second = (
        sentences_with_label(windows.block((third + shift) % 3, 3)) for shift in (0, 1)
    )
    topic, other, both = (
        data_of_sentences(sentences, labels, K)
        for sentences, labels in (
            first,
            second,
            [a + b for a, b in zip(first, second, strict=True)],
        )
    )
    arcs, contradicted = certain_arcs(topic, both)
    rng = np.random.default_rng([93, third])
    columns = {"length": kit.same(LENGTHS), "contradicted": contradicted, "arcs": len(arcs)}
    for name, data in (("", both), ("_other", other)):
        W = attention_stage(
            Problem.of([data], "log_mass"), StepRule(lr), steps, records=AtSteps([steps])
        ).W[-1, 0]
        measures = measure_text(W, arcs, rng)
        names = ("order", "changes", "outnumbered", "outnumbered_any")
        for column, value in zip(names, measures, strict=True):
            columns[column + name] = np.asarray(value)[None]
    return columns


OTHER = kit.replaced(
    "trained on the other part alone", order="order_other", outnumbered="outnumbered_any_other"
)


@kit.claim(
    kit.at_least(0.98, "rare priorities are learned last"),
    "paper",
    "abstract, here on text; the share is this project's",
    null=OTHER,
    trials="third",
)
def TC5(e):
    """Attention that is trained on two parts of a text keeps the priorities of the first part that
    the two do not contradict: share of them.
    """
    return e["order"]


@kit.claim(
    kit.at_least(1.0, "follows from the order"),
    "paper",
    "abstract, here on text",
    null=OTHER,
    trials="third",
)
def TC6(e):
    """For queries all of whose priorities are kept the topic changes only where the word that is
    predicted outnumbers every word of higher priority: share of the changes.
    """
    return e["outnumbered"]


@kit.picture(
    "When a text changes its topic",
    "Attention that is trained on both parts changes the topic in fewer inputs than attention that"
    " is trained on the other part, at every length.",
    3.0,
    width=4.6,
)
def changes_of_text(e, axes):
    """Share of the inputs whose prediction changes the topic, by the length of the input: median
    over the three thirds as first topic, and their range.
    """
    length = e["length"][0]
    for column, colour, label in (
        ("changes_other", kit.ATTENTION, "trained on the other part"),
        ("changes", kit.BEST, "trained on both parts"),
    ):
        kit.band(axes[0], length, e[column], colour, label=label)
    axes[0].set(
        xscale="log", xlabel="tokens of the input", ylabel="share of changes", ylim=(0, None)
    )
    axes[0].set_xticks(length, [f"{x:g}" for x in length])
    axes[0].minorticks_off()
    kit.legend(axes[0])
