"""Next tokens of a text.

The K most frequent words of a text; every window of up to six of them is a sentence, its last
word the query, the word after it the label. What follows a word on its own is the injective map
that most of a third of the text obeys. The sentences of that third that are realizable together
are trained on by two-stage normalised descent, with steps of 0.2 and 2 over the root of K;
sentences of the next third that no training sentence equals as a multiset with its query are
predicted. Beside it, random orders of as many tokens and sentences, and the same sentences where
all winners of a query weigh the same. With --text FILE another text is read.

Source: Huang, Liang and Yang (2024), Algorithm 1, here on text; the text is this project's choice

Notes: Without a file the text is the reference of the Python language that comes with Python, and
differs a little between its versions. The paper's theorem is for realizable data; of its conditions
on frequencies only the abstract was read.
"""

import math

import numpy as np

from attsvm.theory import sentences
from attsvm.theory.next_token import StepRule, two_stage
from attsvm.theory.sentences import (
    NextTokenData,
    Role,
    check_realizable,
    partial_order,
    winners,
)
from attsvm.training import LogSpaced, direction_gap
from attsvm_papers import kit
from attsvm_papers.ntp.predicted_tokens import highest_scored, other_query
from attsvm_papers.ntp.text_windows import digest_of_windows, text_windows
from attsvm_papers.ntp.two_stages import attention_solutions, shares_of_right, sums_of_arcs


@kit.run(
    K=[200],
    third=range(3),
    digest=lambda at: [digest_of_windows(at.text, at.K)],
    quick={"K": [60], "steps": 2000},
    medium={"K": [200, 500, 2000]},
    name="of_text",
)
def train_on_text(K, third, digest, text="", first_steps=2000, steps=16_000, rates=(0.2, 2.0)):
    all_windows = text_windows(text, K)
    training_windows, test_windows = (
        all_windows.block(third, 3),
        all_windows.block((third + 1) % 3, 3),
    )
    following = training_windows.collocation()
    rng = np.random.default_rng([8, third])
    shuffled_labels, shuffled_again = (rng.permutation(training_windows.labels) for _ in range(2))
    columns = {
        "explained_again": (
            winners(training_windows.data(following, shuffled_again))[K:] >= 0
        ).mean()
    }
    for name, labels in (("_shuffled", shuffled_labels), ("", training_windows.labels)):
        data = training_windows.data(following, labels)
        blameless = check_realizable(data).blameless
        columns["explained" + name] = (winners(data)[K:] >= 0).mean()
        columns["realizable" + name] = blameless[K:].mean()
    data = data.select(blameless)
    synthetic = sentences.total(K, max(1, round((data.N - K) / K)), third)
    first, second = (StepRule(rate / math.sqrt(K)) for rate in rates)
    sets = [data, synthetic, _with_even_winners(data)]
    trajectory = two_stage(
        sets, first, second, (first_steps, steps), records=LogSpaced(60)
    ).attention
    (W, _, W_even), problem = trajectory.W[-1], trajectory.problem
    leads, leads_even = _leads_over_winners(data, W), _leads_over_winners(data, W_even)
    is_held = leads > 0.0
    solutions = attention_solutions([data, synthetic])
    (selected,) = attention_solutions([data.select(~is_held)])
    cosine = trajectory.cosine([*solutions, solutions[0]])
    alike = sums_of_arcs(solutions)[0]
    columns |= {
        "cosine": cosine[:, 0],
        "cosine_synthetic": cosine[:, 1],
        "cosine_even": cosine[-1, 2],
        "cosine_alike": 1.0 - direction_gap(W, alike),
        "cosine_chosen": 1.0 - direction_gap(W, selected),
        "held": is_held.sum(),
        "lead": _least_lead(leads, is_held),
        "lead_even": _least_lead(leads_even, is_held),
        "log_gap": trajectory.log_gap[:, 0],
        "log_gap_synthetic": trajectory.log_gap[:, 1],
        "accuracy": shares_of_right(problem, trajectory.W[-1])[0],
        "accuracy_start": shares_of_right(problem, trajectory.W[0])[0],
        "lengths": trajectory.norm[-1, 0] / solutions.norm[0],
        "step": trajectory.steps,
    }
    for name, target in (("", solutions[0].W), ("_alike", alike)):
        for of_queries, value in _cosines_of_queries(data, W, target).items():
            columns[of_queries + name] = value
    columns |= _predict_ahead(test_windows, training_windows, data, W)
    return {name: np.asarray(value)[None] for name, value in columns.items()}


@kit.run(output=[3.0, 10.0], times=[1, 100, 10_000], name="skewed")
def train_on_skewed_chain(output, times, chain=8, course_steps=30_000):
    """A chain of words, each above the next in sentences that occur so many ``times``, and one
    above all of them in a single sentence; the output matrix is trained to length ``output``.
    """
    K, top, query = chain + 2, 0, chain + 1
    following = np.roll(np.arange(K), -1)
    pairs = [(word, word + 1) for word in range(1, chain)] + [(top, 1)]
    data = NextTokenData.from_sentences(
        [*([word] for word in range(K)), *([*pair, query] for pair in pairs)],
        np.concatenate([following, following[[winner for winner, _ in pairs]]]),
        weights=np.array([*(1.0,) * K, *(float(times),) * (chain - 1), 1.0]),
    )
    first_steps = round(output * math.sqrt(K - 1) / 0.2)
    trajectory = two_stage(
        data, StepRule(0.2), StepRule(0.05), (first_steps, course_steps), records=LogSpaced(60)
    ).attention
    return {"skewed_cosine": trajectory.cosine(attention_solutions([data]))[-1]}


def _with_even_winners(data):
    """The same sentences, each divided by how many of its query have its winner."""
    pairs = data.K * data.queries + winners(data)
    _, group, counts = np.unique(pairs, return_inverse=True, return_counts=True)
    return NextTokenData.from_sentences(
        data.sentences, data.labels, weights=1.0 / counts[group], following=data.following
    )


def _leads_over_winners(data, W):
    """By how much the best other word of each sentence leads its winner ``(N,)``; NaN where there
    is no other word.
    """
    scores, leads = data.embeddings @ W @ data.embeddings.T, np.full(data.N, np.nan)
    for n, (sentence, winner) in enumerate(zip(data.sentences, winners(data), strict=True)):
        rivals = np.setdiff1d(sentence, winner)
        if len(rivals):
            leads[n] = scores[rivals, sentence[-1]].max() - scores[winner, sentence[-1]]
    return leads


def _least_lead(leads, is_held):
    """The least lead in the sentences that another word holds, in units of the least margin of the
    other sentences; NaN where no sentence is held.
    """
    return leads[is_held].min() / -np.nanmax(leads[~is_held]) if is_held.any() else np.nan


def _cosines_of_queries(data, W, target):
    """The cosine of what belongs to queries without confused tokens, and to those with them; NaN
    where there are none. Embeddings are those of the identity, so a query has a column.
    """
    orders = partial_order(data)
    queries = orders.queries.tolist()
    is_confused = np.array([(orders.roles_of(q) == Role.CONFUSED).any() for q in queries])
    columns = {"plain": orders.queries[~is_confused], "confused": orders.queries[is_confused]}
    return {
        name: 1.0 - direction_gap(W[:, own], target[:, own]) if len(own) else np.nan
        for name, own in columns.items()
    }


def _predict_ahead(test_windows, training_windows, data, W):
    """Predictions of sentences that were not trained on and in which one token is above all others
    in the orders of training.
    """
    trained = {(*sorted(sentence), sentence[-1]) for sentence in training_windows.sentences}
    orders, following = partial_order(data), data.following
    other_scores = other_query(W)
    third_scores = other_query(other_scores)
    outcomes = []
    for sentence, label in zip(test_windows.sentences, test_windows.labels.tolist(), strict=True):
        query, best = sentence[-1], orders.greatest(sentence)
        if best < 0 or len(set(sentence)) == 1 or (*sorted(sentence), query) in trained:
            continue
        own_choice, other_choice, third_choice = (
            highest_scored(sentence, data, scores) for scores in (W, other_scores, third_scores)
        )
        right = (
            following[choice] == label for choice in (own_choice, query, other_choice, third_choice)
        )
        outcomes.append((own_choice == best, other_choice == best, *right))
    names = ("agree", "agree_other", "right", "right_query", "right_other", "right_third")
    means = np.mean(np.reshape(outcomes, (-1, 6)), axis=0) if outcomes else np.full(6, np.nan)
    return dict(zip(names, means, strict=True))


DIRECTION = "ntp, abstract: to the direction of the max-margin solution"
DONE = {"weights 20 times as long as the solution": lambda e: e["lengths"] >= 20.0}
OTHER = kit.replaced("the scores of another query", agree="agree_other")


TEXT = {"part": "of_text"}


@kit.claim(
    kit.at_least(2.0, "twice as many as by chance"),
    reference="realizable data, on text",
    where=TEXT,
    null=kit.replaced("next words shuffled once more", explained="explained_again"),
)
def TX1(e):
    """Of the next words of a text, more follow from a word of the sentence than where they are
    shuffled.
    """
    return e["explained"] / e["explained_shuffled"]


@kit.claim(
    kit.at_least(0.99, "8 degrees"),
    assumes=DONE,
    where=TEXT,
    null=kit.replaced("the sum of all arcs", cosine_chosen="cosine_alike"),
)
def TX2(e):
    """Trained on the realizable part, the query-key matrix points along the max-margin solution of
    the sentences whose winner it attends to.
    """
    return e["cosine_chosen"]


@kit.claim(
    kit.at_least(0.99, "8 degrees"),
    "paper",
    reference=DIRECTION,
    assumes=DONE,
    where=TEXT,
    null=kit.replaced("the sum of all arcs", plain="plain_alike"),
)
def TX3(e):
    """Trained on the realizable part of a text, the query-key matrix points along the max-margin
    solution of all its sentences, in the queries without confused words: none that wins one
    sentence and loses another.
    """
    return e["plain"]


@kit.claim(
    kit.at_least(0.99, "8 degrees"),
    "paper",
    reference=DIRECTION,
    assumes=DONE | {"queries with confused words": lambda e: np.isfinite(e["confused"])},
    where=TEXT,
    null=kit.replaced("the sum of all arcs", confused="confused_alike"),
    explanation="A confused word that wins many sentences of a query holds one whose winner is"
    " rare: the gradient of that sentence vanishes sooner than those of all others (TX10).",
    failure="not reproduced",
)
def TX3b(e):
    """Trained on the realizable part of a text, the query-key matrix points along the max-margin
    solution of all its sentences, in the queries with confused words.
    """
    return e["confused"]


@kit.claim(
    kit.at_least(0.99, "one sentence in a hundred may keep its first choice"),
    "paper",
    reference="ntp, Figure 2, on text",
    assumes=DONE,
    where=TEXT,
    null=kit.replaced("before attention is trained", accuracy="accuracy_start"),
)
def TX4(e):
    """Trained on the realizable part of a text, the model predicts its sentences."""
    return e["accuracy"]


@kit.claim(
    kit.at_least(0.99, "the order of training decides"),
    "paper",
    reference="ntp, generalisation to unseen sentences, on text",
    assumes=DONE,
    where=TEXT,
    null=OTHER,
)
def TX5(e):
    """In sentences of another part of the text, attention goes to the word that is first in the
    orders of training.
    """
    return e["agree"]


@kit.claim(
    kit.at_least(0.05, "one word in twenty"),
    where=TEXT,
    null=kit.replaced("the scores of a third query", right="right_third"),
)
def TX6(e):
    """In sentences of another part of the text, attention predicts more next words than with the
    scores of another query.
    """
    return e["right"] - e["right_other"]


@kit.claim(
    kit.close_to(0.0, 0.05, "one word in twenty"),
    where=TEXT,
    null=kit.replaced("the scores of another query", right="right_other"),
)
def TX7(e):
    """In sentences of another part of the text, attention predicts about as many next words as what
    follows the query alone: in text, the last word mostly decides.
    """
    return e["right"] - e["right_query"]


@kit.claim(
    kit.at_most(0.9, "26 degrees away"),
    where={"part": "skewed", "output": 3.0, "times": 100},
    null=kit.exchanged("equal frequencies", "times", 100, 1),
)
def TX8(e):
    """Realizable data are not enough where frequencies differ a hundredfold: training stays away
    from the max-margin solution of a chain of words with a rare one above it.
    """
    return e["skewed_cosine"]


@kit.claim(
    kit.at_least(0.99, "8 degrees"),
    assumes=DONE,
    where=TEXT,
    null=kit.replaced("the sum of all arcs", cosine_even="cosine_alike"),
)
def TX9(e):
    """Where all winners of a query weigh the same, however many sentences they win, training points
    along the max-margin solution of all sentences.
    """
    return e["cosine_even"]


@kit.claim(
    kit.at_least(1.0, "below it the pull of the sentence outlasts all others, as in mmts-9 T3f"),
    assumes=DONE | {"a sentence that is held": lambda e: np.isfinite(e["lead"])},
    where=TEXT,
    null=kit.replaced("trained with winners of equal weight", lead="lead_even"),
)
def TX10(e):
    """A sentence that keeps attending to another word than its winner is held by a lead of more
    than the least margin of all other sentences: ratio.
    """
    return e["lead"]


@kit.picture(
    "Training on sentences of a text",
    "Two panels over the step: cosines that rise to one, and loss gaps that fall, for text and for"
    " random orders.",
    2.8,
    columns=2,
    width=7.0,
    name="course",
)
def draw_training(e, axes):
    """Left: cosine of the query-key matrix to the max-margin solution. Right: what the loss is
    above its least value. A line per third of the text, and per random order of as many tokens.
    """
    left, right = axes
    e = e.where(**TEXT)
    for kind, colour, label in (
        ("", kit.TRAINED, "text"),
        ("_synthetic", kit.FAINT, "random orders"),
    ):
        for ax, column in ((left, "cosine"), (right, "log_gap")):
            lines = ax.plot(e["step"][:, 1:].T, e[column + kind][:, 1:].T, color=colour)
            lines[0].set_label(label)
    for ax in (left, right):
        ax.set_xscale("log")
        ax.set_xlabel("step of the second stage")
    left.set_ylabel("cosine")
    right.set_ylabel("log of the loss gap")
    kit.legend_below(left, 2)
