r"""Next-token prediction: the output matrix, and attention that learns one partial order per query,
or a token-priority graph: equal priority inside strongly connected components, margins between
them.

A sentence is a list of token numbers, its query is its last token, and ``embeddings`` ``(K, d)``
holds a row per token of the vocabulary. Programmes of Huang, Liang and Yang, *Non-asymptotic
Convergence of Training Transformers for Next-token Prediction* (2024).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import ArrayLike

from attsvm.base.errors import InputError
from attsvm.datasets.attention_data import BoolArray, FloatArray, IntArray
from attsvm.margins.checks import integers, reals
from attsvm.margins.operator import Margins
from attsvm.margins.selection import against_rivals, one_hot

if TYPE_CHECKING:
    from attsvm.theory.sentences import NextTokenData


def output_margins(
    embeddings: ArrayLike | NextTokenData,
    following: ArrayLike | None = None,
    classes: int | None = None,
) -> Margins:
    r"""The margins of an output matrix: :math:`(\mathbf 1_{n(x)} - \mathbf 1_v)^\top W e_x \ge 1`
    for all :math:`v\ne n(x)`.

    The weights are ``(K, d)``. With orthonormal embeddings that all have a following token the
    solution is :math:`\sum_x(\mathbf 1_{n(x)}-\frac1K\mathbf 1)e_x^\top`. With any inputs
    :math:`h_i` as rows and their classes as ``following`` it is the multiclass margin of Crammer
    and Singer. A "sequence" is one row of ``embeddings``; "tokens" are classes. Memory is ``n K``
    rows of ``K`` numbers. First of the two programmes of Huang, Liang and Yang (2024).

    Args:
        embeddings: ``(n, d)``, row ``x`` is :math:`e_x`; or
            :class:`~attsvm.theory.sentences.NextTokenData`, which knows the rest.
        following: ``(n,)`` integers, the token :math:`n(x)` that follows ``x`` on its own; -1 where
            none is known (no margins).
        classes: K; the number of rows of ``embeddings`` (a vocabulary that predicts itself) when
            left out.

    Raises:
        InputError: embeddings that are not a finite matrix, ``following`` of another shape, or a
            class that is out of range.

    Example:
        >>> import numpy as np
        >>> import attsvm
        >>> margins = attsvm.output_margins(np.eye(3), following=[1, 2, 0])
        >>> margins.selected.tolist(), margins.m
        ([1, 2, 0], 6)
        >>> attsvm.max_margin(margins).W.round(3).tolist()
        [[-0.333, -0.333, 0.667], [0.667, -0.333, -0.333], [-0.333, 0.667, -0.333]]
    """
    from attsvm.theory.sentences import NextTokenData  # solving alone does not need it

    if isinstance(embeddings, NextTokenData):
        following, embeddings = embeddings.following, embeddings.embeddings
    elif following is None:
        raise InputError(
            "following is missing; give one following token per row of embeddings, or pass"
            " NextTokenData"
        )
    E = _embeddings(embeddings)
    n = integers("following", following)
    if n.shape != (len(E),):
        raise InputError(
            f"following has shape {n.shape}; it must be ({len(E)},), one following token per row of"
            " embeddings"
        )
    K = len(E) if classes is None else int(classes)
    wrong = (n < -1) | (n >= K)
    if wrong.any():
        first = int(np.flatnonzero(wrong)[0])
        raise InputError(
            f"following[{first}] is {n[first]}; classes are 0 to {K - 1}, or -1 where none is known"
        )
    rivals = np.broadcast_to((n >= 0)[:, None], (len(E), K))
    return against_rivals(one_hot(len(E), K), E, np.maximum(n, 0), rivals, kind="class")


def order_arcs(
    sentences: Sequence[ArrayLike],
    labels: ArrayLike,
    following: ArrayLike | None = None,
    missing: Literal["error", "drop"] = "error",
) -> IntArray:
    r"""The arcs ``(query, winner, loser)`` that sentences with their labels imply, each once and
    sorted, ``(k, 3)``.

    The winner of a sentence is its token :math:`x_\star` with :math:`n(x_\star)=y`, or, without
    ``following``, the label itself (the token-priority graphs of Li et al., *Mechanics of Next
    Token Prediction with Self-Attention*, 2024). Every other token of the sentence, the query
    included, loses to it. Repeated tokens and sentences of one token add nothing.

    Args:
        sentences: lists of token numbers, of any lengths; the last one is the query.
        labels: ``(N,)`` integers.
        following: ``(K,)`` integers, :math:`n(x)`, -1 where it is unknown.
        missing: what to do with a sentence whose label no token realises: an error, or ``"drop"``
            its arcs.

    Raises:
        InputError: an empty sentence, a token that is not a number from 0 on (below K with
            ``following``), a label count that differs from the number of sentences, a label that no
            token of its sentence realises, or one that two do.

    Example:
        >>> import attsvm
        >>> attsvm.order_arcs([[0, 1, 2], [1, 2, 2]], labels=[0, 1]).tolist()
        [[2, 0, 1], [2, 0, 2], [2, 1, 2]]
    """
    if missing not in ("error", "drop"):
        raise InputError(f"missing is {missing!r}; use 'error' or 'drop'")
    y = integers("labels", labels)
    if y.shape != (len(sentences),):
        raise InputError(
            f"labels has shape {y.shape}; it must be ({len(sentences)},), one label per sentence"
        )
    n = None if following is None else integers("following", following)
    arcs: set[tuple[int, int, int]] = set()
    for k, sentence in enumerate(sentences):
        tokens = integers(f"sentences[{k}]", sentence)
        if tokens.ndim != 1 or len(tokens) == 0:
            raise InputError(
                f"sentences[{k}] has shape {tokens.shape}; it must be a list of at least one token"
            )
        if (tokens < 0).any() or (n is not None and (tokens >= len(n)).any()):
            raise InputError(
                f"sentences[{k}] holds a token outside 0 to {'K - 1' if n is None else len(n) - 1};"
                " use numbers of the vocabulary"
            )
        distinct = np.unique(tokens)
        winners = distinct[distinct == y[k]] if n is None else distinct[n[distinct] == y[k]]
        if len(winners) > 1:
            raise InputError(
                f"tokens {winners[0]} and {winners[1]} of sentences[{k}] are both followed by"
                f" {y[k]}; make the map injective there"
            )
        if len(winners) == 0:
            if missing == "drop":
                continue
            raise InputError(
                f"no token of sentences[{k}] realises its label {y[k]}; correct it or pass"
                " missing='drop'"
            )
        arcs.update(
            (int(tokens[-1]), int(winners[0]), int(loser))
            for loser in distinct
            if loser != winners[0]
        )
    return np.array(sorted(arcs), dtype=np.int64).reshape(-1, 3)


def order_margins(embeddings: ArrayLike | NextTokenData, arcs: ArrayLike | None = None) -> Margins:
    r"""The margins of query-dependent partial orders: :math:`(e_i - e_j)^\top W e_q \ge 1` for
    every arc :math:`i >_q j`.

    A "sequence" of the result is one pair of query and winner; "tokens" are numbers of the
    vocabulary. An order with a cycle gives margins that no weights meet, and the certificate of the
    solver is that cycle; see :func:`~attsvm.theory.graph_margins` for the programme that turns
    cycles into equalities. Second of the two programmes of Huang, Liang and Yang (2024).

    Args:
        embeddings: ``(K, d)``, one row per token; or
            :class:`~attsvm.theory.sentences.NextTokenData`, which knows its arcs.
        arcs: ``(k, 3)`` integers, rows ``(query, winner, loser)``; see :func:`order_arcs`. Repeated
            rows count once.

    Raises:
        InputError: embeddings that are not a finite matrix, arcs of another shape, out of range, or
            from a token to itself; data with a sentence whose label no token explains, or two do.

    Example:
        >>> import numpy as np
        >>> import attsvm
        >>> arcs = [[2, 0, 1], [2, 1, 2]]  # before token 2, token 0 beats 1 and 1 beats 2
        >>> solution = attsvm.max_margin(attsvm.order_margins(np.eye(3), arcs))
        >>> solution.W[:, 2].round(3).tolist()
        [1.0, 0.0, -1.0]
    """
    E, distinct = _embeddings_and_arcs(embeddings, arcs)
    return arc_margins(E, distinct, np.zeros(len(distinct), dtype=np.bool_))


def _embeddings_and_arcs(
    embeddings: ArrayLike | NextTokenData, arcs: ArrayLike | None
) -> tuple[FloatArray, IntArray]:
    """Checked embeddings ``(K, d)`` and distinct arcs ``(k, 3)``, of data where it is given."""
    from attsvm.theory.sentences import NextTokenData, winners
    from attsvm.theory.sentences import arcs as arcs_of

    if isinstance(embeddings, NextTokenData):
        lost = np.flatnonzero(winners(embeddings) < 0)
        if len(lost):
            raise InputError(
                f"sentence {lost[0]} has no one token that explains its label ({len(lost)} such"
                " sentences); see check_realizable, and pass data.select(winners(data) >= 0) to"
                " leave them out"
            )
        arcs, embeddings = arcs_of(embeddings).arcs, embeddings.embeddings
    elif arcs is None:
        raise InputError(
            "arcs is missing; give rows of query, winner and loser, or pass NextTokenData"
        )
    E = _embeddings(embeddings)
    return E, vocabulary_arcs(arcs, len(E))


def vocabulary_arcs(arcs: ArrayLike, size: int) -> IntArray:
    """``arcs`` checked against a vocabulary of ``size`` tokens, without repeats, sorted."""
    array = integers("arcs", arcs)
    if array.size == 0:
        return np.zeros((0, 3), dtype=np.int64)
    if array.ndim != 2 or array.shape[1] != 3:
        raise InputError(
            f"arcs has shape {array.shape}; it must be (k, 3), rows of query, winner and loser"
        )
    wrong = ((array < 0) | (array >= size)).any(axis=1)
    if wrong.any():
        k = int(np.flatnonzero(wrong)[0])
        raise InputError(f"arcs[{k}] is {array[k].tolist()}; tokens are numbered 0 to {size - 1}")
    loops = array[:, 1] == array[:, 2]
    if loops.any():
        k = int(np.flatnonzero(loops)[0])
        raise InputError(f"arcs[{k}] is {array[k].tolist()}; a token cannot come before itself")
    return np.unique(array, axis=0)


def arc_margins(E: FloatArray, arcs: IntArray, equality: BoolArray) -> Margins:
    """Margins of arcs sorted by query and winner: 1 for an inequality, 0 for an equality."""
    heads, counts = np.unique(arcs[:, :2], axis=0, return_counts=True)
    return Margins(
        E[arcs[:, 1]] - E[arcs[:, 2]],
        E[heads[:, 0]],
        np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        np.where(equality, 0.0, 1.0),
        arcs[:, 2].copy(),
        heads[:, 1].copy(),
        equality if equality.any() else None,
        kind="order",
        origin=heads[:, :1].copy(),
    )


def _embeddings(embeddings: ArrayLike) -> FloatArray:
    return reals("embeddings", embeddings, (None, None), "(tokens, features), one row per token")


def strong_components(arcs: ArrayLike, size: int) -> tuple[IntArray, IntArray]:
    """Strongly connected components of the priority graph of every query, inside which no token has
    priority (Li et al., *Mechanics of Next Token Prediction with Self-Attention*, 2024).

    Args:
        arcs: ``(k, 3)`` integers, rows ``(query, winner, loser)``.
        size: number of tokens in the vocabulary.

    Returns:
        The distinct queries, ``(Q,)``, and for each of them the component of every token,
        ``(Q, size)``, named by its smallest token.

    Raises:
        InputError: arcs of another shape, out of range, or from a token to itself.

    Example:
        >>> import attsvm
        >>> queries, component = attsvm.strong_components([[2, 0, 1], [2, 1, 0], [2, 0, 2]], size=3)
        >>> queries.tolist(), component.tolist()
        ([2], [[0, 0, 2]])
    """
    from attsvm.theory.sentences import components

    distinct = vocabulary_arcs(arcs, size)
    queries = np.unique(distinct[:, 0])
    component = np.tile(np.arange(size), (len(queries), 1))
    query, token, first = components(distinct)
    component[np.searchsorted(queries, query), token] = token[first]
    return queries, component


def graph_margins(embeddings: ArrayLike | NextTokenData, arcs: ArrayLike | None = None) -> Margins:
    r"""The margins of token-priority graphs, one graph :math:`\mathcal G^{(q)}` per query.

    .. math:: &(e_i-e_j)^\top W e_q \ge 1 \quad\text{for arcs } i\to j \text{ between components},
       \\ &(e_i-e_j)^\top W e_q = 0 \quad\text{inside a strongly connected component}.

    A component of s tokens gives the s - 1 equalities between its smallest token and the others,
    and two components that are joined by several arcs give one inequality (the first arc's): the
    rest follows. Without cycles these are the margins of
    :func:`~attsvm.theory.order_margins`. A "sequence" of the result is one pair of query and
    winner; "tokens" are numbers of the vocabulary. Solutions are orthogonal to the span of the
    equalities. Programme Graph-SVM of Li et al., *Mechanics of Next Token Prediction with
    Self-Attention* (2024).

    Args:
        embeddings: ``(K, d)``, one row per token; or
            :class:`~attsvm.theory.sentences.NextTokenData`, which knows its arcs.
        arcs: ``(k, 3)`` integers, rows ``(query, winner, loser)``; see
            :func:`~attsvm.theory.order_arcs`. Repeated rows count once.

    Raises:
        InputError: embeddings that are not a finite matrix, arcs of another shape, out of range, or
            from a token to itself; data with a sentence whose label no token explains, or two do.

    Example:
        >>> import numpy as np
        >>> import attsvm
        >>> arcs = [[2, 0, 1], [2, 1, 0], [2, 0, 2]]  # 0 and 1 tie, and beat 2
        >>> solution = attsvm.max_margin(attsvm.graph_margins(np.eye(3), arcs))
        >>> solution.W[:, 2].round(3).tolist()
        [0.333, 0.333, -0.667]
    """
    E, distinct = _embeddings_and_arcs(embeddings, arcs)
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
