"""Generated data is realizable by construction, has the stated shape, and a seed fixes it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attsvm.base.errors import InputError
from attsvm.theory.sentences import (
    Role,
    bipartite,
    check_realizable,
    collocations,
    partial_order,
    priority_graph,
    total,
    winners,
)


@given(st.integers(0, 10_000), st.integers(5, 22), st.integers(1, 5))
def test_bipartite_has_no_confused_tokens(seed: int, K: int, per_query: int) -> None:
    data = bipartite(K, per_query, seed)
    report = check_realizable(data)
    assert report.findings == ()
    longer = data.select(data.lengths > 1)
    assert data.N == longer.N + K
    assert longer.lengths.max() <= 6
    np.testing.assert_array_equal(np.bincount(longer.queries, minlength=K), per_query)
    for q in report.orders.queries:  # the query is a tail, or the only head
        roles = report.orders.roles_of(int(q))
        assert not (roles == Role.CONFUSED).any()
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
    orders = partial_order(total())
    assert any((orders.roles_of(q) == Role.CONFUSED).any() for q in range(20))


@pytest.mark.parametrize("make", [bipartite, total])
def test_a_seed_fixes_the_bits(make) -> None:
    one, two = make(seed=4, embeddings="ortho"), make(seed=4, embeddings="ortho")
    for name in ("tokens", "labels", "embeddings"):
        np.testing.assert_array_equal(getattr(one, name), getattr(two, name))
    np.testing.assert_array_equal(one.tokens, make(seed=4).tokens)  # embeddings are drawn last
    assert not np.array_equal(one.following, make(seed=5).following)
    data = bipartite()
    assert (data.tokens.sum(), data.labels[:5].tolist()) == (3286, [4, 19, 6, 2, 13])


def test_collocations() -> None:
    data = collocations([1, 2, 0])
    assert data.tokens.tolist() == [0, 1, 2]
    assert data.labels.tolist() == data.following.tolist() == [1, 2, 0]


@given(st.integers(0, 10_000), st.booleans())
def test_priority_graphs_are_what_was_asked_for(seed: int, cyclic: bool) -> None:
    data = priority_graph(6, 4, 6, 8, seed, cyclic=cyclic)
    assert bool(partial_order(data).cyclic.any()) == cyclic
    assert (data.lengths == 4).all()
    assert (data.distinct().multiplicities == 1).all()
    np.testing.assert_array_equal(winners(data), data.labels)
    np.testing.assert_allclose(np.linalg.norm(data.embeddings, axis=1), 1.0, rtol=1e-14)
    longer = priority_graph(3, 6, 4, 4, seed, embeddings="ortho")  # than the vocabulary
    assert longer.distinct().tokens.shape == (3, 4)


def test_refusals() -> None:
    for call, message in [
        (lambda: bipartite(K=4), "K is 4 and per_query 4; they must be at least 5 and 1"),
        (lambda: total(per_query=0), "per_query 0"),
        (lambda: priority_graph(0, 2, 3, 3, 0), "each must be at least 1"),
        (lambda: priority_graph(4, 2, 5, 3, 0, embeddings="ortho"), "choose d >= 5"),
        (
            lambda: priority_graph(1, 2, 3, 3, seed=0, cyclic=True, attempts=20),
            "20 draws of 1 sentences of 2 of 3 tokens gave no graph with a cycle",
        ),
    ]:
        with pytest.raises(InputError, match=message):
            call()
