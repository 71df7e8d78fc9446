"""Many next-token data sets of one vocabulary size as arrays with a leading axis of runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from attsvm.base.errors import InputError
from attsvm.base.printable import Compact
from attsvm.datasets.attention_data import FloatArray, IntArray
from attsvm.theory.sentences.partial_order import winners
from attsvm.theory.sentences.sentence_data import NextTokenData


@dataclass(frozen=True, eq=False, repr=False)
class NextTokenBatch(Compact):
    """R data sets, padded to the largest number of sentences N and of distinct tokens J.

    A padded sentence is the single token 0 with label 0 and weight 0, so that its attention is
    finite and it adds nothing. Padding inside a sentence is
    :class:`~attsvm.theory.sentences.Distinct`'s: the query, with multiplicity 0.

    Attributes:
        tokens: ``(R, N, J)``, distinct tokens.
        multiplicities: ``(R, N, J)``, 0 on padding.
        queries: ``(R, N)``.
        labels: ``(R, N)``.
        winners: ``(R, N)``, the token that must win; -1 where a label is not realizable, and the
            token itself in a padded sentence.
        weights: ``(R, N)``, every row sums to 1.
        embeddings: ``(R, K, d)``.

    Example:
        >>> from attsvm.theory.sentences import NextTokenData, stack
        >>> one = NextTokenData.from_words(["a b c"], ["a"], following=range(3))
        >>> two = NextTokenData.from_words(["a b", "c a"], ["b", "c"], following=range(3))
        >>> stack([one, two]).winners.tolist()  # the second sentence of the first set is padding
        [[0, 0], [1, 2]]
    """

    tokens: IntArray
    multiplicities: IntArray
    queries: IntArray
    labels: IntArray
    winners: IntArray
    weights: FloatArray
    embeddings: FloatArray

    @property
    def star(self) -> IntArray:
        """The column of ``tokens`` that holds the winner ``(R, N)``; -1 without one."""
        is_winner = (self.tokens == self.winners[..., None]) & (self.multiplicities > 0)
        return np.where(is_winner.any(axis=-1), is_winner.argmax(axis=-1), -1)


def stack(data: Sequence[NextTokenData]) -> NextTokenBatch:
    """Pad data sets that share K and d to one batch.

    Raises:
        InputError: no data, or data of different K or d.

    Example:
        >>> from attsvm.theory.sentences import priority_graph, stack
        >>> data = [priority_graph(n=4, T=3, K=5, d=8, seed=seed) for seed in range(10)]
        >>> stack(data).tokens.shape
        (10, 4, 3)
    """
    if not data:
        raise InputError("there is no data to stack; give at least one data set")
    for r, sentences in enumerate(data):
        if sentences.embeddings.shape != data[0].embeddings.shape:
            raise InputError(
                f"data set {r} has embeddings {sentences.embeddings.shape}, data set 0"
                f" {data[0].embeddings.shape}; stack data of one K and d"
            )
    distinct_tokens = [sentences.distinct() for sentences in data]
    shape = (
        len(data),
        max(sentences.N for sentences in data),
        max(distinct.tokens.shape[1] for distinct in distinct_tokens),
    )
    tokens, multiplicities = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64)
    multiplicities[..., 0] = 1
    queries, labels, winning = (np.zeros(shape[:2], dtype=np.int64) for _ in range(3))
    weights = np.zeros(shape[:2])
    for r, (sentences, distinct) in enumerate(zip(data, distinct_tokens, strict=True)):
        J = distinct.tokens.shape[1]
        tokens[r, : sentences.N] = sentences.queries[:, None]
        tokens[r, : sentences.N, :J] = distinct.tokens
        multiplicities[r, : sentences.N, :J] = distinct.multiplicities
        queries[r, : sentences.N], labels[r, : sentences.N], weights[r, : sentences.N] = (
            sentences.queries,
            sentences.labels,
            sentences.weights,
        )
        winning[r, : sentences.N] = winners(sentences)
    return NextTokenBatch(
        tokens,
        multiplicities,
        queries,
        labels,
        winning,
        weights,
        np.stack([sentences.embeddings for sentences in data]),
    )
