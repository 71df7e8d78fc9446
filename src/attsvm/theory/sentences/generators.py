"""Random data that is realizable by construction: an injective collocation, and a partial order for
every query.

Generators of Huang, Liang and Yang, *Non-asymptotic Convergence of Training Transformers for
Next-token Prediction* (2024); the paper says only "randomly generated realizable dataset" with 20
tokens, so sizes and order of the draws are ours. Each is one NumPy generator
(``default_rng(seed)``) drawn in the stated order, so a seed fixes the bits. Sentences may
also be drawn from a priority graph.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike

from attsvm.base.errors import InputError
from attsvm.theory.sentences.embeddings import Embedding, embed
from attsvm.theory.sentences.partial_order import partial_order
from attsvm.theory.sentences.sentence_data import NextTokenData

SentenceAndWinner = tuple[list[int], int]


def collocations(n: ArrayLike) -> NextTokenData:
    r"""The data set :math:`\mathcal D_0=\{((x),n(x))\}` of all one-token sentences, with one-hot
    embeddings.

    Raises:
        InputError: a following token outside the vocabulary.

    Example:
        >>> from attsvm.theory.sentences import collocations
        >>> data = collocations([1, 2, 0])
        >>> [sentence.tolist() for sentence in data.sentences], data.labels.tolist()
        ([[0], [1], [2]], [1, 2, 0])
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
    of heads and 4 to 8 for that of tails. With probability 0.2 q is the only head and the tails are
    the first others. Otherwise the heads are the first others and the tails q and the next ones. A
    sentence has 2 to 6 tokens: one head, tails with replacement, shuffled, then q. The embeddings
    come last.

    Args:
        K: tokens, at least 5.
        per_query: sentences per query.
        seed: one integer.
        embeddings: see :func:`~attsvm.theory.sentences.embed`, with d = K.

    Returns:
        The K collocations, then the K ``per_query`` sentences by query, equally weighted.

    Raises:
        InputError: a vocabulary of fewer than five tokens, or no sentence per query.

    Example:
        >>> from attsvm.theory.sentences import bipartite, check_realizable
        >>> check_realizable(bipartite(K=8, per_query=2, seed=0)).findings
        ()
    """

    def draw(q: int, rng: np.random.Generator) -> list[SentenceAndWinner]:
        others = rng.permutation(np.delete(np.arange(K), q))
        n_heads, n_tails = int(rng.integers(1, 4)), int(rng.integers(4, 9))
        if rng.random() < 0.2:
            heads, tails = np.array([q]), others[:n_tails]
        else:
            heads, tails = others[:n_heads], others[n_heads : n_heads + n_tails]

        pairs = []
        for _ in range(per_query):
            length = int(rng.integers(2, 7))
            head = int(heads[rng.integers(len(heads))])
            first = [] if head == q else [head]
            body = first + tails[rng.integers(len(tails), size=length - 1 - len(first))].tolist()
            pairs.append(([*(body[k] for k in rng.permutation(len(body))), q], head))
        return pairs

    return _realizable(K, per_query, seed, embeddings, 5, draw)


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
        embeddings: see :func:`~attsvm.theory.sentences.embed`, with d = K.

    Returns:
        The K collocations, then the K ``per_query`` sentences by query, equally weighted.

    Raises:
        InputError: a vocabulary of fewer than two tokens, or no sentence per query.

    Example:
        >>> from attsvm.theory.sentences import check_realizable, total
        >>> check_realizable(total(K=20, per_query=4, seed=0)).findings
        ()
    """

    def draw(q: int, rng: np.random.Generator) -> list[SentenceAndWinner]:
        rank = rng.permutation(K)

        pairs = []
        for _ in range(per_query):
            length = int(rng.integers(2, 7))
            sentence = [*rng.integers(K, size=length - 1).tolist(), q]
            pairs.append((sentence, min(sentence, key=lambda v: int(rank[v]))))
        return pairs

    return _realizable(K, per_query, seed, embeddings, 2, draw)


def _realizable(
    K: int,
    per_query: int,
    seed: int,
    embeddings: Embedding,
    smallest: int,
    draw: Callable[[int, np.random.Generator], list[SentenceAndWinner]],
) -> NextTokenData:
    """The collocations of a random permutation, and the sentences that ``draw`` gives to every
    query.
    """
    if smallest > K or per_query < 1:
        raise InputError(
            f"K is {K} and per_query {per_query}; they must be at least {smallest} and 1"
        )
    rng = np.random.default_rng(seed)
    n = rng.permutation(K)
    pairs = [pair for q in range(K) for pair in draw(q, rng)]
    sentences = [[x] for x in range(K)] + [sentence for sentence, _ in pairs]
    labels = np.concatenate([n, n[[winner for _, winner in pairs]]])
    return NextTokenData.from_sentences(sentences, labels, embeddings=embed(embeddings, K, K, rng))


def priority_graph(
    n: int,
    T: int,
    K: int,
    d: int,
    seed: int,
    cyclic: bool = False,
    embeddings: Embedding = "random",
    correlation: float = 0.5,
    attempts: int = 2_000,
) -> NextTokenData:
    """Sentences of T tokens that are drawn anew until every priority graph is acyclic, or until at
    least one is not.

    A sentence holds T distinct tokens; when T > K, all K in random order and T - K more at random.
    Its label is uniform over the vocabulary and drawn again from the sentence if it is not in it.
    The recipe of the code of Li et al., *Mechanics of Next Token Prediction with Self-Attention*
    (2024); the numbers are NumPy's: ``default_rng(seed)``, all sentences of an attempt in turn,
    each followed by its label, and the embeddings last.

    Args:
        n: sentences.
        T: tokens per sentence.
        K: tokens in the vocabulary.
        d: dimension of the embeddings.
        seed: one integer.
        cyclic: ask for a cycle instead of none.
        embeddings: ``"random"`` (the paper's), ``"ortho"``, ``"equi-corr"`` or ``"identity"``; see
            :func:`~attsvm.theory.sentences.embed`.
        correlation: of ``"equi-corr"`` rows.
        attempts: sets of sentences that are drawn at most.

    Returns:
        Equally weighted data whose labels are winners (``following`` is the identity).

    Raises:
        InputError: a size below one, embeddings that do not exist in d dimensions, or no success in
            ``attempts``.

    Example:
        >>> import attsvm
        >>> from attsvm.theory.sentences import priority_graph
        >>> data = priority_graph(n=4, T=3, K=5, d=8, seed=0, cyclic=True)
        >>> data.N, data.lengths.tolist(), attsvm.graph_svm(data).acyclic
        (4, [3, 3, 3, 3], False)
    """
    if min(n, T, K) < 1:
        raise InputError(f"n, T and K are {n}, {T} and {K}; each must be at least 1")
    rng = np.random.default_rng(seed)
    # refuses an impossible dimension before the attempts
    embed(embeddings, K, d, np.random.default_rng(0), correlation)
    for _ in range(attempts):
        sentences, labels = [], []
        for _ in range(n):
            sentence = rng.permutation(K)[:T]
            if T > K:
                sentence = np.concatenate([sentence, rng.integers(K, size=T - K)])
            label = int(rng.integers(K))
            if label not in sentence:
                label = int(sentence[rng.integers(T)])
            sentences.append(sentence)
            labels.append(label)
        data = NextTokenData.from_sentences(sentences, labels, embeddings=K, following=np.arange(K))
        if bool(partial_order(data).cyclic.any()) == cyclic:
            rows = embed(embeddings, K, d, rng, correlation)
            return replace(data, embeddings=rows)
    cycles = "with a cycle" if cyclic else "without a cycle"
    raise InputError(
        f"{attempts} draws of {n} sentences of {T} of {K} tokens gave no graph {cycles}; change n,"
        " T or K"
    )
