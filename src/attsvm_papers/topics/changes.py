r"""Topics as priority orders of tokens, and when a prediction leaves the order of its input.

A topic gives each query q an order of its tokens: its token-priority graph. One layer of attention
with weights W predicts the token of the largest probability, :math:`m_ie^{e_i^\top We_q}` for a
token that the input has :math:`m_i` times. The prediction *changes the topic* where it is not the
token of highest priority that the input has. It can do so only where that token is outnumbered, if
W keeps the order: then :math:`m_j/m_i>e^{(e_i-e_j)^\top We_q}>1`.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from attsvm.theory.sentences import NextTokenData

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]


class Topic(NamedTuple):
    """A topic.

    Attributes:
        queries: the queries ``(Q,)``.
        ranked: ``(Q, S)``, the tokens of each query, the highest priority first.
    """

    queries: IntArray
    ranked: IntArray


def draw_topics(
    K: int, queries: int, size: int, shared: int, rng: np.random.Generator
) -> tuple[Topic, Topic]:
    """Two topics whose sets of ``size`` tokens have ``shared`` in common, of one order of all
    tokens for each query, in which the query is not.
    """
    asking = rng.permutation(K)[:queries]
    first: list[IntArray] = []
    second: list[IntArray] = []
    for query in asking:
        order = rng.permutation(np.setdiff1d(np.arange(K), [query]))
        tokens = rng.permutation(order)[: 2 * size - shared]
        rank = np.argsort(order)[np.searchsorted(np.sort(order), tokens)]
        for topic, members in ((first, slice(size)), (second, slice(size - shared, None))):
            topic.append(tokens[members][np.argsort(rank[members])])
    return Topic(asking, np.array(first)), Topic(asking, np.array(second))


def mixed_data(topics: Sequence[Topic], K: int) -> NextTokenData:
    """The sentences of all topics, with one-hot embeddings: each two tokens of a query and then the
    query, and each token twice; labels are their tokens of highest priority.
    """
    sentences, labels = [], []
    for topic in topics:
        high, low = np.triu_indices(topic.ranked.shape[1])
        for query, ranked in zip(topic.queries, topic.ranked, strict=True):
            last = np.full(len(high), query)
            sentences.append(np.stack([ranked[high], ranked[low], last], axis=1))
            labels.append(ranked[high])
    return NextTokenData.from_sentences(
        list(np.concatenate(sentences)),
        np.concatenate(labels),
        embeddings=np.eye(K),
        following=np.arange(K),
    )


def keeps_order(scores: FloatArray, ranked: IntArray, query: int) -> float:
    """The share of the pairs of a topic's tokens, the query below them, that the scores ``(K,)``
    put in the topic's order.
    """
    along = scores[np.append(ranked, query)]
    first, second = np.triu_indices(len(along), 1)
    return float((along[first] > along[second]).mean())


class Changes(NamedTuple):
    """What becomes of random inputs.

    Attributes:
        share: of the inputs whose prediction changes the topic.
        outnumbered: of these the share in which the predicted token is more frequent than every
            token of higher priority; NaN where there is no change.
    """

    share: float
    outnumbered: float


def count_changes(
    logits: FloatArray, above: BoolArray, length: int, inputs: int, rng: np.random.Generator
) -> Changes:
    """The changes of topic in as many inputs of a length, of tokens with equal chances.

    Args:
        logits: of the tokens ``(S,)``.
        above: ``(S, S)``, whether the first token has the higher priority.
        length: tokens of an input.
        inputs: how many.
        rng: draws them.
    """
    counts = rng.multinomial(length, np.full(len(logits), 1 / len(logits)), size=inputs)
    with np.errstate(divide="ignore"):
        predicted = np.argmax(np.log(counts) + logits, axis=1)
    most_above = np.where(above[:, predicted].T, counts, 0).max(axis=1)
    is_change = most_above > 0
    taken = np.take_along_axis(counts, predicted[:, None], axis=1)[:, 0]
    outnumbers = (taken > most_above)[is_change]
    return Changes(float(is_change.mean()), float(outnumbers.mean()) if is_change.any() else np.nan)
