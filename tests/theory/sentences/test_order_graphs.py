"""Winners, arcs, roles, closures, chains and cycles against definitions written as loops."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attsvm.base.errors import InputError
from attsvm.theory import order_arcs
from attsvm.theory.sentences import (
    NextTokenData,
    Role,
    arcs,
    partial_order,
    total,
    transitive,
    winners,
)

K = 6


def sampled(seed: int, n: int = 12) -> NextTokenData:
    """Sentences with labels that nobody made consistent."""
    rng = np.random.default_rng(seed)
    sentences = [rng.integers(K, size=rng.integers(1, 6)) for _ in range(n)]
    return NextTokenData.from_sentences(
        sentences, rng.integers(K, size=n), embeddings=K, following=rng.permutation(K)
    )


def relation(pairs: np.ndarray) -> np.ndarray:
    R = np.zeros((K, K), dtype=bool)
    R[pairs[:, 0], pairs[:, 1]] = True
    return R


@given(st.integers(0, 10_000))
def test_arcs_by_loops(seed: int) -> None:
    data = sampled(seed)
    rows, sentence = arcs(data)
    expected = order_arcs(data.sentences, data.labels, data.following, missing="drop")
    np.testing.assert_array_equal(rows, expected)
    best = winners(data)
    for (q, i, j), n in zip(rows.tolist(), sentence.tolist(), strict=True):
        assert n == next(
            m
            for m in range(data.N)
            if data.queries[m] == q and best[m] == i and j in data.sentences[m]
        )


def test_a_label_that_two_tokens_explain_has_no_winner() -> None:
    data = NextTokenData.from_sentences([[0, 1, 2], [0, 2], [2]], [3, 3, 3], following=[3, 3, 0, 1])
    assert winners(data).tolist() == [-1, 0, -1]
    assert arcs(data).arcs.tolist() == [[2, 0, 2]]


@given(st.integers(0, 10_000))
def test_closure_cycles_and_roles_by_loops(seed: int) -> None:
    orders = partial_order(sampled(seed, 25))
    roles = {
        (False, False): Role.NON_COMPARABLE,
        (True, False): Role.OPTIMAL,
        (False, True): Role.NON_OPTIMAL,
        (True, True): Role.CONFUSED,
    }
    for q in range(K):
        R = relation(orders.of(q))
        W = R.copy()
        for k in range(K):
            W |= W[:, [k]] & W[[k], :]
        np.testing.assert_array_equal(orders.closure(q), W)
        np.testing.assert_array_equal(transitive(R), W)
        mine = orders.arcs[:, 0] == q
        np.testing.assert_array_equal(
            orders.cyclic[mine], [W[j, i] for _, i, j in orders.arcs[mine]]
        )
        assert (q in orders.cyclic_queries) == W.diagonal().any()
        tokens, sentences = orders.cycle(q)
        assert bool(tokens) == W.diagonal().any()
        for i, j, n in zip(tokens, (*tokens[1:], *tokens[:1]), sentences, strict=True):
            assert R[i, j]
            assert [q, i, j] in orders.arcs[orders.sentence == n].tolist()
        assert len(set(tokens)) == len(tokens)
        assert [*orders.roles_of(q)] == [roles[R[v].any(), R[:, v].any()] for v in range(K)]


def test_a_cycle_of_two_goes_before_a_long_one_which_is_found_whole() -> None:
    two = NextTokenData.from_sentences(
        [[1, 2, 0], [2, 3, 0], [3, 1, 0], [3, 4, 0], [4, 3, 0]],
        [1, 2, 3, 3, 4],
        following=np.arange(5),
    )
    assert partial_order(two).cycle(0) == ((3, 4), (3, 4))
    data = NextTokenData.from_sentences(
        [[1, 2, 0], [2, 3, 0], [3, 4, 0], [4, 1, 0], [5, 1, 0]],
        [1, 2, 3, 4, 5],
        following=np.arange(6),
    )
    orders = partial_order(data)
    assert orders.cycle(0) == ((1, 2, 3, 4), (0, 1, 2, 3))
    assert orders.cycle(1) == ((), ())


@settings(max_examples=10)  # each enumerates 2000 paths per query
@given(st.integers(0, 10_000))
def test_longest_paths_and_greatest_tokens_by_enumeration(seed: int) -> None:
    orders = partial_order(total(K, 3, seed))
    for q in range(K):
        R = relation(orders.of(q))
        longest = np.zeros((K, K), dtype=int)
        for size in range(2, K + 1):
            for path in itertools.permutations(range(K), size):
                if all(R[i, j] for i, j in itertools.pairwise(path)):
                    longest[path[0], path[-1]] = size - 1
        np.testing.assert_array_equal(orders.longest_paths(q), longest)
        for sentence in np.random.default_rng(seed).integers(K, size=(5, 4)):
            sentence[-1], tokens = q, {*sentence[:-1].tolist(), q}
            found = [v for v in tokens if all(longest[v, u] for u in tokens - {v})]
            assert orders.greatest(sentence) == (found[0] if found else -1)


def test_roles_decide_where_nothing_is_confused() -> None:
    golden = NextTokenData.from_sentences(
        [[0], [1], [2], [3], [1, 2, 0], [3, 2, 0], [0, 1]], [1, 2, 3, 0, 2, 0, 2]
    )
    orders = partial_order(golden)
    assert orders.of_greatest_role([2, 0, 1]) == 1
    assert orders.of_greatest_role([2, 3, 0]) == 3
    assert orders.of_greatest_role([1, 3, 0]) == -1  # a tie of heads
    # no sentence of query 1 compares token 2, only its role does
    assert orders.greatest([2, 0, 1]) == -1
    assert orders.of_greatest_role([3, 0, 1]) == 1  # token 3 has no arc under query 1
    little = NextTokenData.from_sentences([[0], [1], [2], [3], [1, 0]], [1, 2, 3, 0, 2])
    assert partial_order(little).of_greatest_role([3, 0]) == 3  # without arcs, before a loser
    confused = partial_order(
        NextTokenData.from_sentences(
            [[1, 2, 0], [2, 3, 0]], [1, 2], embeddings=4, following=np.arange(4)
        )
    )
    assert confused.greatest([1, 3, 0]) == 1  # by transitivity alone
    assert confused.of_greatest_role([1, 2, 0]) == -1


def test_refusals() -> None:
    orders = partial_order(
        NextTokenData.from_sentences([[1, 0], [0, 1, 0]], [1, 0], following=[0, 1])
    )
    for call, message in [
        (lambda: orders.closure(2), "query is 2; tokens are numbered 0 to 1"),
        (lambda: orders.longest_paths(0), "has a cycle through 0; it has no longest path"),
        (lambda: orders.roles_of(-1), "query is -1"),
    ]:
        with pytest.raises(InputError, match=message):
            call()
