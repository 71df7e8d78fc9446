"""Sentences planted from a user's own partial orders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike

from attsvm.data import BoolArray, IntArray
from attsvm.datasets.next_token.data import NextTokenData
from attsvm.datasets.next_token.embeddings import Embedding
from attsvm.datasets.next_token.generators import with_collocations
from attsvm.errors import InputError


def planted(
    order: Mapping[int, Sequence[tuple[int, int]]],
    n: ArrayLike,
    per_query: int = 4,
    longest: int = 6,
    seed: int = 0,
    embeddings: Embedding = "identity",
) -> NextTokenData:
    """Sentences that follow given partial orders: a winner and a random set of tokens below it.

    For every query q of ``order``, in increasing order: the winner is uniform over the tokens above
    q (and q itself, when something lies below it); the losers are a random subset, of random size,
    of what the transitive closure puts below the winner; q comes last.

    Args:
        order: arcs ``(winner, loser)`` by query, each query an acyclic graph; only their transitive
            closure counts.
        n: ``(K,)`` integers, the token that follows each token on its own; all different.
        per_query: sentences per query.
        longest: most tokens in a sentence, at least 2.
        seed: one integer.
        embeddings: see :func:`~attsvm.datasets.next_token.embed`, with d = K.

    Returns:
        The K collocations, then the sentences by query, equally weighted.

    Raises:
        InputError: n that is not injective, an arc outside the vocabulary, a cycle, a query that
            its own order leaves out, or sizes that allow no sentence.
    """
    following = np.asarray(n)
    K = len(following)
    if (
        following.dtype.kind not in "iu"
        or np.unique(following).size != K
        or following.min(initial=0) < 0
        or following.max(initial=0) >= K
    ):
        raise InputError(
            f"n must hold {K} different numbers from 0 to {K - 1}, the token that follows each"
            " token"
        )
    if per_query < 1 or longest < 2:
        raise InputError(
            f"per_query is {per_query} and longest {longest}; they must be at least 1 and 2"
        )
    rng = np.random.default_rng(seed)
    drawn = []
    for q in sorted(order):
        below = _closure(order[q], K, q)
        heads = np.flatnonzero(below[:, q]).tolist()
        if below[q].any():
            heads = sorted([*heads, q])
        if not heads:
            raise InputError(
                f"the order of query {q} does not compare {q} with any token; every sentence of {q}"
                " ends in it"
            )
        for _ in range(per_query):
            head = heads[rng.integers(len(heads))]
            under = np.setdiff1d(np.flatnonzero(below[head]), [q])
            room = min(len(under), longest - 1 - (head != q))
            losers = rng.permutation(under)[: rng.integers(int(head == q), room + 1)].tolist()
            body = rng.permutation([*losers, head] if head != q else losers).tolist()
            drawn.append(([*map(int, body), q], int(head)))
    return with_collocations(following.astype(np.int64), drawn, rng, embeddings)


def _closure(rows: Sequence[tuple[int, int]], K: int, q: int) -> BoolArray:
    """``(K, K)``, whether the row's token lies above the column's."""
    below = np.zeros((K, K), dtype=np.bool_)
    if not 0 <= q < K:
        raise InputError(f"order has query {q}; tokens are numbered 0 to {K - 1}")
    pairs: IntArray = np.asarray(rows, dtype=np.int64).reshape(-1, 2)
    if ((pairs < 0) | (pairs >= K)).any():
        raise InputError(
            f"the order of query {q} holds a token outside 0 to {K - 1}; use numbers of the"
            " vocabulary"
        )
    below[pairs[:, 0], pairs[:, 1]] = True
    for _ in range(max(1, K.bit_length())):  # paths of length up to 2, 4, 8, ...
        below = below | (below @ below)
    if below.diagonal().any():
        raise InputError(
            f"the order of query {q} has a cycle through {int(np.argmax(below.diagonal()))}; give"
            " an acyclic order"
        )
    return below
