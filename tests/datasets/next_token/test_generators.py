"""Generated data is realizable by construction, has the stated shape, and a seed fixes it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attsvm.datasets.next_token import (
    Role,
    bipartite,
    check_realizable,
    collocations,
    partial_order,
    planted,
    priority_graph,
    total,
    winners,
)
from attsvm.errors import InputError


@given(st.integers(0, 10_000), st.integers(5, 22), st.integers(1, 5))
def test_bipartite_has_no_confused_tokens(seed: int, K: int, per_query: int) -> None:
    data = bipartite(K, per_query, seed)
    report = check_realizable(data)
    assert report.realizable
    assert report.confused == 0
    assert report.findings == ()
    longer = data.select(data.lengths > 1)
    assert K * per_query == longer.N
    assert data.N == longer.N + K
    assert longer.lengths.max() <= 6
    np.testing.assert_array_equal(np.bincount(longer.queries, minlength=K), per_query)
    for q in report.orders.queries:  # the query is a tail, or the only head
        roles = report.orders.roles_of(int(q))
        assert roles[q] == Role.NON_OPTIMAL or np.flatnonzero(roles == Role.OPTIMAL).tolist() == [q]
        assert (roles == Role.OPTIMAL).sum() <= 3
        assert (roles == Role.NON_OPTIMAL).sum() <= 9


@given(st.integers(0, 10_000), st.integers(2, 12))
def test_total_follows_a_ranking(seed: int, K: int) -> None:
    data = total(K, 6, seed)
    report = check_realizable(data)
    assert report.realizable
    for n in np.flatnonzero(data.lengths > 1):
        assert report.orders.greatest(data.sentences[n]) == winners(data)[n]


def test_total_has_confused_tokens_at_the_size_of_the_paper() -> None:
    assert all(check_realizable(total(seed=seed)).confused > 0 for seed in range(5))


def test_a_seed_fixes_the_bits() -> None:
    for make in (bipartite, total):
        one, two, other = (
            make(seed=4, embeddings="ortho"),
            make(seed=4, embeddings="ortho"),
            make(seed=5),
        )
        for name in ("tokens", "labels", "embeddings"):
            np.testing.assert_array_equal(getattr(one, name), getattr(two, name))
        np.testing.assert_array_equal(one.tokens, make(seed=4).tokens)  # embeddings are drawn last
        assert not np.array_equal(one.following, other.following)
    data = bipartite()
    assert (data.tokens.sum(), data.labels[:5].tolist(), len(data.tokens)) == (
        3286,
        [4, 19, 6, 2, 13],
        353,
    )


def test_collocations() -> None:
    data = collocations([1, 2, 0])
    assert (data.tokens.tolist(), data.labels.tolist(), data.following.tolist()) == (
        [0, 1, 2],
        [1, 2, 0],
        [1, 2, 0],
    )
    assert check_realizable(data).realizable


@given(st.integers(0, 10_000))
def test_planted_sentences_obey_their_order(seed: int) -> None:
    rng = np.random.default_rng(seed)
    K = 7
    order = {}
    for q in range(3):
        rank = rng.permutation(K)
        order[q] = [
            (i, j)
            for i in range(K)
            for j in range(K)
            if rank[i] < rank[j] and (rng.random() < 0.3 or q in (i, j))
        ]
    data = planted(order, rng.permutation(K), per_query=9, longest=5, seed=seed)
    report = check_realizable(data)
    assert report.realizable
    assert data.lengths.max() <= 5
    for q in range(3):
        above = np.zeros((K, K), dtype=bool)
        above[tuple(np.array(order[q]).T)] = True
        for k in range(K):
            above |= above[:, [k]] & above[[k]]
        assert above[tuple(report.orders.of(q).T)].all()


@given(st.integers(0, 10_000), st.booleans())
def test_priority_graphs_are_what_was_asked_for(seed: int, cyclic: bool) -> None:
    data = priority_graph(6, 4, 6, 8, seed, cyclic=cyclic)
    assert bool(partial_order(data).cyclic.any()) == cyclic
    assert (data.lengths == 4).all()
    assert (data.distinct().multiplicities == 1).all()
    np.testing.assert_array_equal(winners(data), data.labels)
    np.testing.assert_allclose(np.linalg.norm(data.embeddings, axis=1), 1.0, rtol=1e-14)


def test_priority_sentences_longer_than_the_vocabulary() -> None:
    data = priority_graph(3, 6, 4, 4, seed=0, embeddings="ortho")
    assert data.distinct().tokens.shape == (3, 4)


def test_a_graph_that_cannot_be_cyclic_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attsvm.datasets.next_token.generators._ATTEMPTS", 20)
    with pytest.raises(
        InputError, match="20 draws of 1 sentences of 2 of 3 tokens gave no graph with a cycle"
    ):
        priority_graph(1, 2, 3, 3, seed=0, cyclic=True)


def test_refusals() -> None:
    for call, message in [
        (lambda: bipartite(K=4), "K is 4 and per_query 4; they must be at least 5 and 1"),
        (lambda: total(per_query=0), "per_query 0"),
        (lambda: planted({0: [(0, 1), (1, 0)]}, [1, 0]), "has a cycle through 0"),
        (lambda: planted({0: [(1, 2)]}, [1, 2, 0]), "does not compare 0 with any token"),
        (lambda: planted({0: [(0, 3)]}, [1, 2, 0]), "outside 0 to 2"),
        (lambda: planted({3: [(0, 1)]}, [1, 2, 0]), "order has query 3"),
        (lambda: planted({0: [(0, 1)]}, [1, 1, 0]), "n must hold 3 different numbers"),
        (lambda: planted({0: [(0, 1)]}, [1, 2, 0], longest=1), "longest 1"),
        (lambda: priority_graph(0, 2, 3, 3, 0), "each must be at least 1"),
        (lambda: priority_graph(4, 2, 5, 3, 0, embeddings="ortho"), "choose d >= 5"),
        (lambda: collocations([1, 5]), r"labels\[1\] is 5"),
    ]:
        with pytest.raises(InputError, match=message):
            call()
