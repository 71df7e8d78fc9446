"""The partial order that the arcs of each query generate, the roles of tokens in it, and what it
says about any sentence.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from attsvm.base.errors import InputError
from attsvm.base.printable import Compact
from attsvm.datasets.attention_data import BoolArray, IntArray
from attsvm.theory.sentences.sentence_data import NextTokenData


class Arcs(NamedTuple):
    """Distinct arcs sorted by query, winner and loser: ``arcs`` ``(k, 3)``, and the first sentence
    that shows each, ``(k,)``.

    Example:
        >>> from attsvm.theory.sentences import NextTokenData, arcs
        >>> data = NextTokenData.from_words(["a b c", "b c c"], ["a", "b"], following=range(3))
        >>> found = arcs(data)
        >>> found.arcs.tolist(), found.sentence.tolist()
        ([[2, 0, 1], [2, 0, 2], [2, 1, 2]], [0, 0, 1])
    """

    arcs: IntArray
    sentence: IntArray


def winners(data: NextTokenData) -> IntArray:
    r"""The token of every sentence that must win its attention ``(N,)``; -1 where no token, or more
    than one, realises the label.

    The token with :math:`n(x_\star)=y`, where n is ``data.following`` (Huang, Liang and Yang 2024).

    Example:
        >>> from attsvm.theory.sentences import NextTokenData, winners
        >>> data = NextTokenData.from_words(["hen", "fox", "hen fox"], ["eats", "runs", "runs"])
        >>> data.names(winners(data))  # of "hen fox" it is the fox that explains "runs"
        ['hen', 'fox', 'fox']
    """
    sentence, token, _ = data.occurrences
    fits = data.following[token] == data.labels[sentence]
    winner_of_sentence = np.full(data.N, -1, dtype=np.int64)
    winner_of_sentence[sentence[fits]] = token[fits]
    winner_of_sentence[np.bincount(sentence[fits], minlength=data.N) > 1] = -1
    return winner_of_sentence


def arcs(data: NextTokenData) -> Arcs:
    """The arcs ``(query, winner, loser)`` of all sentences: the winner of a sentence beats each of
    its other tokens. Sentences without a :func:`winner <winners>` add none.

    Example:
        >>> from attsvm.theory.sentences import NextTokenData, arcs
        >>> data = NextTokenData.from_words(["hen", "fox", "hen fox"], ["eats", "runs", "runs"])
        >>> [data.names(arc) for arc in arcs(data).arcs]  # query, winner, loser
        [['fox', 'fox', 'hen']]
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

    Example:
        >>> import numpy as np
        >>> from attsvm.theory.sentences import components
        >>> queries, tokens, component = components(np.array([[2, 0, 1], [2, 1, 0], [2, 0, 2]]))
        >>> tokens.tolist(), component.tolist()
        ([0, 1, 2], [0, 0, 2])
    """
    if len(rows) == 0:
        return (np.zeros(0, dtype=np.int64),) * 3
    from scipy.sparse.csgraph import connected_components

    K = int(rows[:, 1:].max()) + 1
    nodes, at = np.unique(rows[:, :1] * K + rows[:, 1:], return_inverse=True)
    graph = _adjacency(at, len(nodes))
    _, label = connected_components(graph, directed=True, connection="strong")
    _, first, inverse = np.unique(label, return_index=True, return_inverse=True)
    return nodes // K, nodes % K, first[inverse].astype(np.int64)


def _adjacency(arcs: IntArray, count: int) -> Any:
    """The sparse adjacency matrix of arcs ``(k, 2)`` between so many nodes."""
    from scipy.sparse import coo_array

    ones = np.ones(len(arcs), dtype=np.int8)
    return coo_array((ones, (arcs[:, 0], arcs[:, 1])), shape=(count, count)).tocsr()


class Role(IntEnum):
    """Role of a token in the arcs of a query.

    Example:
        >>> from attsvm.theory.sentences import NextTokenData, Role, partial_order
        >>> data = NextTokenData.from_words(["a b c", "b c c"], ["a", "b"], following=range(3))
        >>> [Role(role).name for role in partial_order(data).roles_of(2)]
        ['OPTIMAL', 'CONFUSED', 'NON_OPTIMAL']
    """

    NON_COMPARABLE = 0  #: no arc
    OPTIMAL = 1  #: wins, never loses
    NON_OPTIMAL = 2  #: loses, never wins
    CONFUSED = 3  #: wins and loses


@dataclass(frozen=True, eq=False, repr=False)
class PartialOrders(Compact):
    """The orders of all queries of a data set, made by :func:`partial_order`.

    The extended order of a query is the transitive closure of its arcs: the smallest partial order
    that explains the data, when the arcs have no cycle.

    Attributes:
        K: size of the vocabulary.
        arcs: ``(k, 3)``, rows ``(query, winner, loser)``, sorted.
        sentence: ``(k,)``, the first sentence that shows each arc.

    Example:
        >>> from attsvm.theory.sentences import NextTokenData, partial_order
        >>> data = NextTokenData.from_words(["a b c", "b c c"], ["a", "b"], following=range(3))
        >>> orders = partial_order(data)
        >>> orders.of(2).tolist(), orders.longest_paths(2)[0].tolist()
        ([[0, 1], [0, 2], [1, 2]], [0, 1, 2])
        >>> orders.greatest([1, 0, 2])
        0
    """

    K: int
    arcs: IntArray
    sentence: IntArray

    @cached_property
    def queries(self) -> IntArray:
        """The queries with at least one arc ``(Q,)``, sorted."""
        return np.unique(self.arcs[:, 0])

    @cached_property
    def cyclic(self) -> BoolArray:
        """Which arcs are part of a cycle ``(k,)``: both ends are in one strongly connected
        component.
        """
        query, token, component = components(self.arcs)
        at = np.searchsorted(query * self.K + token, self.arcs[:, :1] * self.K + self.arcs[:, 1:])
        return component[at[:, 0]] == component[at[:, 1]]

    @property
    def cyclic_queries(self) -> IntArray:
        """The queries whose order has a cycle."""
        return np.unique(self.arcs[self.cyclic, 0])

    def roles_of(self, query: int) -> IntArray:
        """The :class:`Role` of every token of the vocabulary under this query ``(K,)``."""
        wins, loses = (np.isin(np.arange(self.K), column) for column in self.of(query).T)
        return np.select(
            [wins & loses, wins, loses],
            [Role.CONFUSED, Role.OPTIMAL, Role.NON_OPTIMAL],
            Role.NON_COMPARABLE,
        )

    def of(self, query: int) -> IntArray:
        """The arcs ``(winner, loser)`` of this query, ``(k, 2)``."""
        return self.arcs[self._rows(query), 1:]

    def closure(self, query: int) -> BoolArray:
        """Whether the row's token lies above the column's ``(K, K)``: by an arc, or by
        transitivity.
        """
        nodes, _, small = self._closed(query)
        below = np.zeros((self.K, self.K), dtype=np.bool_)
        below[np.ix_(nodes, nodes)] = small
        return below

    def longest_paths(self, query: int) -> IntArray:
        """Arcs on the longest path from the row's token down to the column's ``(K, K)``; 0 where
        none leads there.

        A max-margin solution separates the two scores by at least as much.

        Raises:
            InputError: a query outside the vocabulary, or one whose order has a cycle.
        """
        nodes, ends, below = self._closed(query)
        if below.diagonal().any():
            where = int(nodes[np.argmax(below.diagonal())])
            raise InputError(
                f"the order of query {query} has a cycle through {where}; it has no longest path"
            )
        small = np.zeros(below.shape, dtype=np.int64)
        # whatever lies below a token comes before it
        for winner in np.argsort(below.sum(axis=1), kind="stable"):
            under = ends[ends[:, 0] == winner, 1]
            if len(under):
                reached = np.where(below[under], small[under] + 1, 0)
                reached[np.arange(len(under)), under] = 1
                small[winner] = reached.max(axis=0)
        longest = np.zeros((self.K, self.K), dtype=np.int64)
        longest[np.ix_(nodes, nodes)] = small
        return longest

    def greatest(self, sentence: ArrayLike) -> int:
        """The token of a sentence that the extended order puts above every other one; -1 without
        one.

        The query is the last token. A sentence of one distinct token has that one.
        """
        tokens = np.asarray(sentence, dtype=np.int64)
        distinct = np.unique(tokens)
        nodes, _, below = self._closed(int(tokens[-1]))
        if len(distinct) == 1:
            return int(distinct[0])
        if not np.isin(distinct, nodes).all():
            return -1
        at = np.searchsorted(nodes, distinct)
        above_all = np.flatnonzero(
            (below[np.ix_(at, at)] | np.eye(len(at), dtype=np.bool_)).all(axis=1)
        )
        return int(distinct[above_all[0]]) if len(above_all) == 1 else -1

    def of_greatest_role(self, sentence: ArrayLike) -> int:
        """The only token of a sentence of greatest role, -1 when there are several.

        Without confused tokens a max-margin solution with orthonormal embeddings scores optimal
        tokens above non-comparable ones, and these above non-optimal ones (Huang, Liang and Yang
        2024). Confused tokens have no place in this, so a sentence with one has no answer here; ask
        :meth:`greatest`.
        """
        tokens = np.asarray(sentence, dtype=np.int64)
        distinct = np.unique(tokens)
        roles = self.roles_of(int(tokens[-1]))[distinct]
        if (roles == Role.CONFUSED).any():
            return -1
        rank = np.array([1, 2, 0])[roles]  # non-comparable, optimal, non-optimal
        first = np.flatnonzero(rank == rank.max())
        return int(distinct[first[0]]) if len(first) == 1 else -1

    def cycle(self, query: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """A short cycle of this query: its tokens, each winning against the next and the last
        against the first, and a sentence per arc.

        A cycle of two tokens if there is one, else the shortest through the first cyclic arc. Empty
        without a cycle.
        """
        rows = self._rows(query)
        pairs, sentences = self.arcs[rows, 1:], self.sentence[rows]
        pairs, sentences = pairs[self.cyclic[rows]], sentences[self.cyclic[rows]]
        if len(pairs) == 0:
            return (), ()
        sentence_of_arc = dict(zip(map(tuple, pairs.tolist()), sentences.tolist(), strict=True))
        mutual = next(((i, j) for i, j in sentence_of_arc if (j, i) in sentence_of_arc), None)
        path = mutual or _shortest_back(pairs)
        return path, tuple(sentence_of_arc[arc] for arc in pairwise((*path, path[0])))

    @cached_property
    def _closures(self) -> dict[int, tuple[IntArray, IntArray, BoolArray]]:
        return {}

    def _closed(self, query: int) -> tuple[IntArray, IntArray, BoolArray]:
        """Tokens with an arc, both ends of every arc as positions in them, and the closure among
        them; kept, as sentences share queries.
        """
        if query not in self._closures:
            nodes, ends = np.unique(self.of(query), return_inverse=True)
            below = np.zeros((len(nodes), len(nodes)), dtype=np.bool_)
            below[ends[:, 0], ends[:, 1]] = True
            self._closures[query] = nodes, ends, transitive(below)
        return self._closures[query]

    def _rows(self, query: int) -> slice:
        if not 0 <= query < self.K:
            raise InputError(f"query is {query}; tokens are numbered 0 to {self.K - 1}")
        start, stop = np.searchsorted(self.arcs[:, 0], [query, query + 1])
        return slice(int(start), int(stop))


def partial_order(data: NextTokenData) -> PartialOrders:
    """The orders that the sentences imply, one for every query (Huang, Liang and Yang 2024);
    sentences whose label is not realizable add nothing.

    Example:
        >>> from attsvm.theory.sentences import NextTokenData, partial_order
        >>> data = NextTokenData.from_words(["a b c", "b a c"], ["a", "b"], following=range(3))
        >>> orders = partial_order(data)
        >>> orders.arcs.tolist(), orders.cyclic_queries.tolist()
        ([[2, 0, 1], [2, 0, 2], [2, 1, 0], [2, 1, 2]], [2])
    """
    rows, sentence = arcs(data)
    return PartialOrders(data.K, rows, sentence)


def transitive(below: BoolArray) -> BoolArray:
    """The transitive closure of a relation ``(m, m)``, by paths of length up to 2, 4, 8, ...

    Example:
        >>> import numpy as np
        >>> from attsvm.theory.sentences import transitive
        >>> transitive(np.array([[False, True, False], [False, False, True], [False] * 3])).tolist()
        [[False, True, True], [False, False, True], [False, False, False]]
    """
    size = -1
    while int(below.sum()) > size:
        size = int(below.sum())
        # single precision counts paths of any length as positive, and multiplies fastest
        steps = below.astype(np.float32)
        below = below | (steps @ steps > 0)
    return below


def _shortest_back(pairs: IntArray) -> tuple[int, ...]:
    """The shortest cycle through the first arc of a graph in which every arc is part of one."""
    from scipy.sparse.csgraph import breadth_first_order

    nodes, ends = np.unique(pairs, return_inverse=True)
    graph = _adjacency(ends, len(nodes))
    winner, loser = int(ends[0, 0]), int(ends[0, 1])
    _, before = breadth_first_order(graph, loser, directed=True, return_predecessors=True)
    path = [winner]
    while path[-1] != loser:
        path.append(int(before[path[-1]]))
    return tuple(nodes[[winner, *path[:0:-1]]].tolist())
