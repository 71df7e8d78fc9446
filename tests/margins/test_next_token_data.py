"""The programmes of next-token data: closed forms, the sign theorem, longest paths, invariances,
and the cyclic subspace.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attsvm.datasets.next_token import (
    NextTokenData,
    PartialOrders,
    arcs,
    bipartite,
    components,
    priority_graph,
    total,
)
from attsvm.errors import InputError
from attsvm.margins import (
    Margins,
    equality_basis,
    graph_margins,
    order_margins,
    output_margins,
    split,
    strong_components,
)
from attsvm.solvers import max_margin


def same(left: Margins, right: Margins) -> None:
    for name in ("differences", "queries", "offsets", "rhs", "token", "selected", "equalities"):
        np.testing.assert_array_equal(getattr(left, name), getattr(right, name))


@given(st.integers(0, 10_000))
def test_data_brings_its_own_arguments(seed: int) -> None:
    data = [bipartite(6, 2, seed, "ortho"), priority_graph(6, 4, 6, 8, seed, cyclic=True)][seed % 2]
    rows = arcs(data).arcs
    same(order_margins(data), order_margins(data.embeddings, rows))
    same(graph_margins(data), graph_margins(data.embeddings, rows))
    same(output_margins(data), output_margins(data.embeddings, data.following))


@pytest.mark.parametrize("embeddings", ["identity", "ortho"])
def test_the_output_matrix_in_closed_form(embeddings: str) -> None:
    data = bipartite(7, 1, seed=2, embeddings=embeddings)  # type: ignore[arg-type]
    solution = max_margin(output_margins(data))
    target = np.eye(7)[:, data.following] - 1 / 7
    np.testing.assert_allclose(solution.W, target @ data.embeddings, atol=1e-9)
    assert solution.norm == pytest.approx(np.sqrt(6), rel=1e-9)
    assert solution.margin == pytest.approx(1 / np.sqrt(6), rel=1e-9)


def test_gaps_are_at_least_longest_paths() -> None:
    """Longest paths on 200 random acyclic graphs, confused tokens included."""
    rng = np.random.default_rng(1)
    K, programmes, longest = 9, [], []
    for _ in range(200):
        name = rng.permutation(K)
        rows = np.array(
            [(0, name[i], name[j]) for i in range(K) for j in range(i + 1, K) if rng.random() < 0.3]
            or [(0, 1, 2)]
        )
        programmes.append(order_margins(np.eye(K), rows))
        longest.append(
            PartialOrders(K, np.unique(rows, axis=0), np.zeros(0, dtype=np.int64)).longest_paths(0)
        )
    assert max(paths.max() for paths in longest) >= 5
    for solution, paths in zip(max_margin(programmes), longest, strict=True):
        score = solution.W[:, 0]
        gaps = score[:, None] - score[None, :]
        assert (
            gaps[paths > 0] >= paths[paths > 0] - 1e-7
        ).all()  # a path of k arcs may miss k times the solver's 1e-9


def test_unseen_sentences_are_predicted_by_the_closure() -> None:
    """The closure-greatest token of a sentence has the largest score, though
    the pair never met.
    """
    golden = NextTokenData.from_sentences(
        [[0], [1], [2], [3], [1, 2, 0], [2, 3, 0]], [1, 2, 3, 0, 2, 3]
    )
    score = max_margin(order_margins(golden)).W[:, 0]
    np.testing.assert_allclose(score, [-0.75, 1.25, 0.25, -0.75], atol=1e-9)
    data = total(8, 4, seed=3)
    W = max_margin(order_margins(data)).W
    orders = PartialOrders(8, *arcs(data))
    rng = np.random.default_rng(0)
    judged = 0
    for _ in range(300):
        sentence = rng.integers(8, size=4)
        best = orders.greatest(sentence)
        if best >= 0:
            others = np.setdiff1d(sentence, [best])
            assert (W[best, sentence[-1]] - W[others, sentence[-1]] > 1 - 1e-7).all()
            judged += 1
    assert judged > 30


@settings(max_examples=20)
@given(st.integers(0, 10_000))
def test_the_graph_programme_knows_only_the_graph(seed: int) -> None:
    """P4-E7: repeated sentences, weights and arcs that follow from others change nothing; a
    rotation of E rotates W.
    """
    data = priority_graph(6, 4, 6, 6, seed, cyclic=bool(seed % 2))
    W = max_margin(graph_margins(data)).W
    repeated = data.select([*range(6), 0, 3, 3])
    np.testing.assert_allclose(max_margin(graph_margins(repeated)).W, W, atol=1e-9)
    Q = np.linalg.qr(np.random.default_rng(seed).standard_normal((6, 6)))[0]
    turned = max_margin(graph_margins(replace(data, embeddings=data.embeddings @ Q))).W
    np.testing.assert_allclose(turned, Q.T @ W @ Q, atol=1e-7 * np.linalg.norm(W))
    rows = arcs(data).arcs
    orders = PartialOrders(6, rows, np.zeros(len(rows), dtype=np.int64))
    closed = np.array(
        [
            (q, i, j)
            for q in orders.queries
            for i, j in np.argwhere(orders.closure(int(q)))
            if i != j
        ]
    )
    np.testing.assert_allclose(
        max_margin(graph_margins(data.embeddings, closed)).W, W, atol=1e-7 * np.linalg.norm(W)
    )


@given(st.integers(0, 10_000))
def test_solutions_are_orthogonal_to_the_cyclic_subspace(seed: int) -> None:
    data = priority_graph(6, 4, 6, 8, seed, cyclic=True)
    margins = graph_margins(data)
    basis = equality_basis(margins)
    np.testing.assert_allclose(
        np.einsum("kij,lij->kl", basis, basis), np.eye(len(basis)), atol=1e-13
    )
    W = max_margin(margins).W
    assert np.abs(np.einsum("kij,ij->k", basis, W)).max() < 1e-10 * max(
        1.0, float(np.linalg.norm(W))
    )
    inside, outside = split(W, margins)
    np.testing.assert_allclose(inside + outside, W, atol=1e-13)
    rows = arcs(data).arcs
    query, token, component = components(rows)
    queries, dense = strong_components(rows, data.K)
    at = np.searchsorted(queries, query)
    np.testing.assert_array_equal(dense[at, token], token[component])


def test_refusals() -> None:
    for call, message in [
        (lambda: order_margins(np.eye(2)), "arcs is missing"),  # type: ignore[call-overload]
        (lambda: graph_margins(np.eye(2)), "arcs is missing"),  # type: ignore[call-overload]
        (lambda: output_margins(np.eye(2)), "following is missing"),  # type: ignore[call-overload]
        (
            lambda: order_margins(NextTokenData.from_sentences([[0, 1]], [0])),
            "sentence 0 has no one token that explains its label",
        ),
    ]:
        with pytest.raises(InputError, match=message):
            call()
