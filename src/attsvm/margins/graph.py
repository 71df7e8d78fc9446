"""Token-priority graphs: equal priority inside strongly connected components, margins between
them.
"""

from __future__ import annotations

from typing import overload

import numpy as np
from numpy.typing import ArrayLike

from attsvm.data import IntArray
from attsvm.datasets.next_token import NextTokenData, components
from attsvm.margins.checks import reals
from attsvm.margins.next_token import arc_margins, embeddings_and_arcs, vocabulary_arcs
from attsvm.margins.operator import Margins


def strong_components(arcs: ArrayLike, size: int) -> tuple[IntArray, IntArray]:
    """Strongly connected components of the graph of every query.

    Args:
        arcs: ``(k, 3)`` integers, rows ``(query, winner, loser)``.
        size: number of tokens in the vocabulary.

    Returns:
        The distinct queries, ``(Q,)``, and for each of them the component of every token,
        ``(Q, size)``, named by its smallest token.

    Raises:
        InputError: arcs of another shape, out of range, or from a token to itself.
    """
    distinct = vocabulary_arcs(arcs, size)
    queries = np.unique(distinct[:, 0])
    component = np.tile(np.arange(size), (len(queries), 1))
    query, token, first = components(distinct)
    component[np.searchsorted(queries, query), token] = token[first]
    return queries, component


@overload
def graph_margins(embeddings: NextTokenData) -> Margins: ...


@overload
def graph_margins(embeddings: ArrayLike, arcs: ArrayLike) -> Margins: ...


def graph_margins(embeddings: ArrayLike | NextTokenData, arcs: ArrayLike | None = None) -> Margins:
    r"""The margins of token-priority graphs, one graph :math:`\mathcal G^{(q)}` per query.

    .. math:: (e_i-e_j)^\top W e_q \ge 1 \quad\text{for arcs } i\to j \text{ between components},
        \qquad
              (e_i-e_j)^\top W e_q = 0 \quad\text{inside a strongly connected component}.

    A component of s tokens gives the s - 1 equalities between its smallest token and the others,
    and two components that are joined by several arcs give one inequality (the first arc's): the
    rest follows. Without cycles these are the margins of
    :func:`~attsvm.margins.order_margins`. A "sequence" of the result is one pair of query and
    winner; "tokens" are numbers of the vocabulary. Solutions are orthogonal to the span of the
    equalities. Programme Graph-SVM of Li et al., *Mechanics of Next Token Prediction with
    Self-Attention* (2024).

    Args:
        embeddings: ``(K, d)``, one row per token; or
            :class:`~attsvm.datasets.next_token.NextTokenData`, which knows its arcs.
        arcs: ``(k, 3)`` integers, rows ``(query, winner, loser)``; see
            :func:`~attsvm.margins.order_arcs`. Repeated rows count once.

    Raises:
        InputError: embeddings that are not a finite matrix, arcs of another shape, out of range, or
            from a token to itself; data with a sentence whose label no token explains, or two do.
    """
    embeddings, arcs = embeddings_and_arcs(embeddings, arcs)
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
