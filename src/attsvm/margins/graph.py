"""Token-priority graphs: equal priority inside strongly connected components, margins between them."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from attsvm.data import IntArray
from attsvm.margins.checks import reals
from attsvm.margins.next_token import arc_margins, vocabulary_arcs
from attsvm.margins.operator import Margins


def strong_components(arcs: ArrayLike, size: int) -> tuple[IntArray, IntArray]:
    """Strongly connected components of the graph of every query.

    Args:
        arcs: ``(k, 3)`` integers, rows ``(query, winner, loser)``.
        size: number of tokens in the vocabulary.

    Returns:
        The distinct queries, ``(Q,)``, and for each of them the component of every token, ``(Q, size)``, named by its smallest token.

    Raises:
        InputError: arcs of another shape, out of range, or from a token to itself.
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    distinct = vocabulary_arcs(arcs, size)
    queries, graph = np.unique(distinct[:, 0], return_inverse=True)
    nodes = len(queries) * size
    if nodes == 0:
        return queries, np.zeros((0, size), dtype=np.int64)
    start, end = graph * size + distinct[:, 1], graph * size + distinct[:, 2]
    joined = coo_array((np.ones(len(distinct), dtype=np.int8), (start, end)), shape=(nodes, nodes)).tocsr()
    _, label = connected_components(joined, directed=True, connection="strong")
    _, first, inverse = np.unique(label, return_index=True, return_inverse=True)
    components: IntArray = (first[inverse] % size).reshape(len(queries), size).astype(np.int64)
    return queries, components


def graph_margins(embeddings: ArrayLike, arcs: ArrayLike) -> Margins:
    r"""The margins of token-priority graphs, one graph :math:`\mathcal G^{(q)}` per query.

    .. math:: (e_i-e_j)^\top W e_q \ge 1 \quad\text{for arcs } i\to j \text{ between components}, \qquad
              (e_i-e_j)^\top W e_q = 0 \quad\text{inside a strongly connected component}.

    A component of s tokens gives the s - 1 equalities between its smallest token and the others, and two components that are
    joined by several arcs give one inequality (the first arc's): the rest follows. Without cycles these are the margins of
    :func:`~attsvm.margins.order_margins`. A "sequence" of the result is one pair of query and winner; "tokens" are numbers of the
    vocabulary. Solutions are orthogonal to the span of the equalities.
    Programme Graph-SVM of Li et al., *Mechanics of Next Token Prediction with Self-Attention* (2024).

    Args:
        embeddings: ``(K, d)``, one row per token.
        arcs: ``(k, 3)`` integers, rows ``(query, winner, loser)``; see :func:`~attsvm.margins.order_arcs`. Repeated rows count once.

    Raises:
        InputError: embeddings that are not a finite matrix, arcs of another shape, out of range, or from a token to itself.
    """
    E = reals("embeddings", embeddings, (None, None), "(tokens, features), one row per token")
    distinct = vocabulary_arcs(arcs, len(E))
    queries, component = strong_components(distinct, len(E))
    at = np.searchsorted(queries, distinct[:, 0])
    above, below = component[at, distinct[:, 1]], component[at, distinct[:, 2]]
    between = np.flatnonzero(above != below)
    _, first = np.unique(np.stack([at, above, below], axis=1)[between], axis=0, return_index=True)
    strict = distinct[between[first]]
    graph, member = np.nonzero(component != np.arange(len(E)))
    equal = np.stack([queries[graph], component[graph, member], member], axis=1)
    rows = np.concatenate([strict, equal])
    equality = np.arange(len(rows)) >= len(strict)
    order = np.lexsort(rows.T[::-1])
    return arc_margins(E, rows[order], equality[order])
