"""Random data that is realizable by construction: an injective collocation, and a partial order for
every query.

Generators of Huang, Liang and Yang, *Non-asymptotic Convergence of Training Transformers for
Next-token Prediction* (2024); the paper says only "randomly generated realizable dataset" with 20
tokens, so sizes and order of the draws are ours. Each is one NumPy generator
(``default_rng(seed)``) drawn in the stated order, so a seed fixes the bits.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from attsvm.data import IntArray
from attsvm.datasets.next_token.data import NextTokenData
from attsvm.datasets.next_token.embeddings import Embedding, embed
from attsvm.errors import InputError

Sentence = list[int]
_LENGTHS = (2, 6)  # shortest and longest sentence


def collocations(n: ArrayLike) -> NextTokenData:
    r"""The data set :math:`\mathcal D_0=\{((x),n(x))\}` of all one-token sentences, with one-hot
    embeddings.

    Raises:
        InputError: a following token outside the vocabulary.
    """
    following = np.asarray(n)
    return NextTokenData.from_sentences(
        [[x] for x in range(len(following))], following, embeddings=len(following)
    )


def bipartite(
    K: int = 20, per_query: int = 4, seed: int = 0, embeddings: Embedding = "identity"
) -> NextTokenData:
    """Realizable data without confused tokens: under every query, some tokens only win and some
    only lose.

    Draws: n, a permutation; for each query q a shuffle of the other tokens, 1 to 3 for the number
    of heads and 4 to 8 for that of tails; with probability 0.2 q is the only head and the tails are
    the first others, otherwise the heads are the first others and the tails q and the next ones. A
    sentence has 2 to 6 tokens: one head, tails with replacement, shuffled, then q. The embeddings
    come last.

    Args:
        K: tokens, at least 5.
        per_query: sentences per query.
        seed: one integer.
        embeddings: see :func:`~attsvm.datasets.next_token.embed`, with d = K.

    Returns:
        The K collocations, then the K ``per_query`` sentences by query, equally weighted.

    Raises:
        InputError: a vocabulary of fewer than five tokens, or no sentence per query.
    """

    def sentences(q: int, rng: np.random.Generator) -> Callable[[], tuple[Sentence, int]]:
        others = rng.permutation(np.delete(np.arange(K), q))
        n_heads, n_tails = int(rng.integers(1, 4)), int(rng.integers(4, 9))
        if rng.random() < 0.2:
            heads, tails = np.array([q]), others[:n_tails]
        else:
            heads, tails = others[:n_heads], others[n_heads : n_heads + n_tails]

        def draw() -> tuple[Sentence, int]:
            length = int(rng.integers(_LENGTHS[0], _LENGTHS[1] + 1))
            head = int(heads[rng.integers(len(heads))])
            first = [] if head == q else [head]
            body = first + tails[rng.integers(len(tails), size=length - 1 - len(first))].tolist()
            return [*(body[k] for k in rng.permutation(len(body))), q], head

        return draw

    return _realizable(K, per_query, seed, embeddings, 5, sentences)


def total(
    K: int = 20, per_query: int = 4, seed: int = 0, embeddings: Embedding = "identity"
) -> NextTokenData:
    """Realizable data with confused tokens: every query ranks the whole vocabulary.

    Draws: n, a permutation; for each query a ranking, then its sentences of 2 to 6 tokens, uniform
    with replacement but for the query at the end; the best-ranked token wins. The embeddings come
    last.

    Args:
        K: tokens, at least 2.
        per_query: sentences per query.
        seed: one integer.
        embeddings: see :func:`~attsvm.datasets.next_token.embed`, with d = K.

    Returns:
        The K collocations, then the K ``per_query`` sentences by query, equally weighted.

    Raises:
        InputError: a vocabulary of fewer than two tokens, or no sentence per query.
    """

    def sentences(q: int, rng: np.random.Generator) -> Callable[[], tuple[Sentence, int]]:
        rank = rng.permutation(K)

        def draw() -> tuple[Sentence, int]:
            length = int(rng.integers(_LENGTHS[0], _LENGTHS[1] + 1))
            sentence = [*rng.integers(K, size=length - 1).tolist(), q]
            return sentence, min(sentence, key=lambda v: int(rank[v]))

        return draw

    return _realizable(K, per_query, seed, embeddings, 2, sentences)


def _realizable(
    K: int,
    per_query: int,
    seed: int,
    embeddings: Embedding,
    smallest: int,
    sentences: Callable[[int, np.random.Generator], Callable[[], tuple[Sentence, int]]],
) -> NextTokenData:
    if smallest > K or per_query < 1:
        raise InputError(
            f"K is {K} and per_query {per_query}; they must be at least {smallest} and 1"
        )
    rng = np.random.default_rng(seed)
    n = rng.permutation(K)
    drawn: list[tuple[Sentence, int]] = []
    for q in range(K):
        draw = sentences(q, rng)
        drawn += [draw() for _ in range(per_query)]
    return with_collocations(n, drawn, rng, embeddings)


def with_collocations(
    n: IntArray, drawn: list[tuple[Sentence, int]], rng: np.random.Generator, embeddings: Embedding
) -> NextTokenData:
    """The one-token sentences of n, then the drawn sentences with n of their winners as labels."""
    K = len(n)
    listed = [[x] for x in range(K)] + [sentence for sentence, _ in drawn]
    labels = np.concatenate([n, n[[head for _, head in drawn]]])
    return NextTokenData.from_sentences(listed, labels, embeddings=embed(embeddings, K, K, rng))
