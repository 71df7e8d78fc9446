"""Sentences that were not trained on, in the groups of the generalisation protocol of ntp-4."""

from collections.abc import Iterator

import numpy as np

from attsvm.datasets.next_token import NextTokenData, PartialOrders

GROUPS = {
    "G1": "known head, unseen losers",
    "G2": "head, 2 non-comparable, 2 losers",
    "G3": "no head: 1 non-comparable, 3 losers",
    "G4": "lengths 10 to 40, one head",
    "G5": "ordered by transitivity only",
    "G6": "two heads",
    "G7": "unseen query",
    "G8": "token of no order",
}
Sentence = tuple[int, ...]
Case = tuple[list[int], int]
"""A sentence, and the token that should win its attention."""
_TRIES = 40  # per wanted sentence: some queries have few combinations


class UnseenSentences:
    """Draws test sentences of one trained data set; none repeats another, and none is a training
    sentence as a multiset with its query.

    Args:
        data: what was trained on.
        orders: its partial orders.
        per_query: sentences per query and group.
        rng: the generator of all draws.
    """

    def __init__(
        self, data: NextTokenData, orders: PartialOrders, per_query: int, rng: np.random.Generator
    ) -> None:
        self._orders, self._per_query, self._rng, self._K = orders, per_query, rng, data.K
        self._trained = {_multiset_and_query(sentence.tolist()) for sentence in data.sentences}

    def cases(self, group: str) -> list[Case]:
        """The sentences of a group under all queries that allow it.

        G7 and G8 speak of the last token of the vocabulary, which the data must mention in its
        collocation only.
        """
        if group == "G7":
            return self._unseen_query(self._K - 1)
        if group == "G8":
            return [*self._outsider(self._K - 1)]
        cases: list[Case] = []
        for q in self._orders.queries.tolist():
            known = set(self._trained)
            for case in self._draws(group, q):
                if _multiset_and_query(case[0]) not in known:
                    known.add(_multiset_and_query(case[0]))
                    cases.append(case)
                    if len(known) - len(self._trained) == self._per_query:
                        break
        return cases

    def _draws(self, group: str, q: int) -> Iterator[Case]:
        roles = self._orders.roles_of(q)
        heads, losers, free = (np.flatnonzero(roles == role) for role in (1, 2, 0))
        others = losers[losers != q]
        if group == "G5":
            yield from self._transitive(q)
            return
        rng = self._rng
        for _ in range(_TRIES * self._per_query):
            head = [int(rng.choice(heads))]
            if group == "G1":
                other_tokens = (
                    rng.choice(others, rng.integers(1, 5)).tolist() if len(others) else []
                )
            elif group == "G2":
                if len(free) < 2 or len(others) < 2:
                    return
                other_tokens = [
                    *rng.choice(free, 2, replace=False),
                    *rng.choice(others, 2, replace=False),
                ]
            elif group == "G3":
                if len(free) < 1 or len(others) < 3 or q in heads:
                    return
                head, other_tokens = (
                    [int(rng.choice(free))],
                    rng.choice(others, 3, replace=False).tolist(),
                )
            elif group == "G4":
                length = int(rng.integers(10, 41))
                other_tokens = rng.choice(
                    np.flatnonzero((roles != 1) & (np.arange(self._K) != q)),
                    length - 1 - (head[0] != q),
                ).tolist()
            elif group == "G6":
                if len(heads) < 2:
                    return
                pair = rng.choice(heads, 2, replace=False).tolist()
                head, other_tokens = (
                    pair[:1],
                    [pair[1], *rng.choice(others, min(2, len(others)), replace=False).tolist()],
                )
            else:
                raise ValueError(group)
            body = [v for v in (*head, *map(int, other_tokens)) if v != q]
            yield [*(body[k] for k in rng.permutation(len(body))), q], head[0]

    def _transitive(self, q: int) -> Iterator[Case]:
        """Pairs that the data never compared under q, with q below both or one of them."""
        closure = self._orders.closure(q)
        direct = np.zeros_like(closure)
        direct[tuple(self._orders.of(q).T)] = True
        for i, j in np.argwhere(closure & ~direct).tolist():
            sentence = [v for v in (i, j) if v != q] + [q]
            if i == q or closure[i, q]:
                yield sentence, i

    def _unseen_query(self, q: int) -> list[Case]:
        """Random sentences of a query that was never trained, each with its most frequent token
        (the smallest of several).
        """
        cases = []
        for _ in range(self._per_query):
            sentence = [*self._rng.integers(self._K - 1, size=self._rng.integers(2, 8)).tolist(), q]
            cases.append((sentence, int(np.bincount(sentence, minlength=self._K).argmax())))
        return cases

    def _outsider(self, token: int) -> Iterator[Case]:
        """A token without arcs among losers, with every head and without one."""
        for q in self._orders.queries.tolist():
            roles = self._orders.roles_of(q)
            losers = np.setdiff1d(np.flatnonzero(roles == 2), [q])
            for head in np.flatnonzero(roles == 1).tolist():
                yield [token, *(v for v in (head, *losers[:2].tolist()) if v != q), q], head
            if roles[q] == 2:
                yield [token, *losers[:3].tolist(), q], token


def most_frequent_is_unique(sentence: list[int]) -> bool:
    """Whether one token occurs more often than every other."""
    counts = np.sort(np.bincount(sentence))
    return bool(len(counts) == 1 or counts[-1] > counts[-2])


def _multiset_and_query(sentence: list[int]) -> Sentence:
    return (*sorted(sentence), sentence[-1])
