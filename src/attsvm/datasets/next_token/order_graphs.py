r"""The orders that sentences imply: winners, arcs, components and cycles of the graph of every
query.

For a query q, the arc :math:`i\to j` says that token i won a sentence of q that holds j. In
realizable data (Huang, Liang and Yang 2024) the arcs of every query are acyclic, and their
transitive closure is the smallest partial order :math:`>_q` that explains the data; the same arcs
are the token-priority graphs of Li et al. (2024).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from attsvm.data import IntArray
from attsvm.datasets.next_token.data import NextTokenData


class Arcs(NamedTuple):
    """Distinct arcs sorted by query, winner and loser: ``arcs`` ``(k, 3)``, and the first sentence
    that shows each, ``(k,)``.
    """

    arcs: IntArray
    sentence: IntArray


def winners(data: NextTokenData) -> IntArray:
    r"""``(N,)``, the token of every sentence that must win its attention; -1 where no token, or
    more than one, realises the label.

    The token with :math:`n(x_\star)=y`, where n is ``data.following``.
    """
    sentence, token, _ = data.occurrences
    fits = data.following[token] == data.labels[sentence]
    found = np.full(data.N, -1, dtype=np.int64)
    found[sentence[fits]] = token[fits]
    found[np.bincount(sentence[fits], minlength=data.N) > 1] = -1
    return found


def arcs(data: NextTokenData) -> Arcs:
    """The arcs ``(query, winner, loser)`` of all sentences; sentences without a
    :func:`winner <winners>` add none.
    """
    sentence, token, _ = data.occurrences
    best = winners(data)[sentence]
    loses = (best >= 0) & (token != best)
    sentence, K = sentence[loses], data.K
    keys = (data.queries[sentence] * K + best[loses]) * K + token[loses]
    distinct, first = np.unique(keys, return_index=True)
    return Arcs(
        np.stack([distinct // (K * K), distinct // K % K, distinct % K], axis=1), sentence[first]
    )


def components(rows: IntArray) -> tuple[IntArray, IntArray, IntArray]:
    """Strongly connected components of the graphs of all queries, of the tokens that have an arc.

    Args:
        rows: ``(k, 3)``, arcs ``(query, winner, loser)``.

    Returns:
        ``(m,)`` queries, ``(m,)`` tokens and ``(m,)`` components of the nodes, sorted by query and
        token; a component is the position of its first node.
    """
    if len(rows) == 0:
        return (np.zeros(0, dtype=np.int64),) * 3
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    K = int(rows[:, 1:].max()) + 1
    ends = rows[:, :1] * K + rows[:, 1:]
    nodes, at = np.unique(ends, return_inverse=True)
    at = at.reshape(ends.shape)
    graph = coo_array(
        (np.ones(len(rows), dtype=np.int8), (at[:, 0], at[:, 1])), shape=(len(nodes), len(nodes))
    ).tocsr()
    _, label = connected_components(graph, directed=True, connection="strong")
    _, first, inverse = np.unique(label, return_index=True, return_inverse=True)
    return nodes // K, nodes % K, first[inverse].astype(np.int64)
