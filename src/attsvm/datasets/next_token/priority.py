"""Random token-priority data: sentences whose label is one of their own tokens."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from attsvm.datasets.next_token.data import NextTokenData
from attsvm.datasets.next_token.embeddings import Embedding, embed
from attsvm.datasets.next_token.partial_order import partial_order
from attsvm.errors import InputError

_ATTEMPTS = 2_000


def priority_graph(
    n: int,
    T: int,
    K: int,
    d: int,
    seed: int,
    cyclic: bool = False,
    embeddings: Embedding = "random",
    correlation: float = 0.5,
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
            :func:`~attsvm.datasets.next_token.embed`.
        correlation: of ``"equi-corr"`` rows.

    Returns:
        Equally weighted data whose labels are winners (``following`` is the identity).

    Raises:
        InputError: a size below one, embeddings that do not exist in d dimensions, or 2000 attempts
            without success.
    """
    if min(n, T, K) < 1:
        raise InputError(f"n, T and K are {n}, {T} and {K}; each must be at least 1")
    rng = np.random.default_rng(seed)
    embed(
        embeddings, K, d, np.random.default_rng(0), correlation
    )  # refuses an impossible dimension before the attempts
    for _ in range(_ATTEMPTS):
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
        drawn = NextTokenData.from_sentences(
            sentences, labels, embeddings=K, following=np.arange(K)
        )
        if bool(partial_order(drawn).cyclic.any()) == cyclic:
            rows = embed(embeddings, K, d, rng, correlation)
            return replace(drawn, embeddings=rows)
    wanted = "with a cycle" if cyclic else "without a cycle"
    raise InputError(
        f"{_ATTEMPTS} draws of {n} sentences of {T} of {K} tokens gave no graph {wanted}; change n,"
        " T or K"
    )
