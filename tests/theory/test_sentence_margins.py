"""Programmes of next-token prediction: rows by loops, closed forms, graphs and their cycles, soft
labels.
"""

from __future__ import annotations

from itertools import permutations, product

import numpy as np
import pytest
from explicit import matrices, same, same_rows
from hypothesis import given
from hypothesis import strategies as st

from attsvm.solvers import max_margin
from attsvm.theory import (
    graph_margins,
    log_odds_margins,
    order_arcs,
    order_margins,
    output_margins,
    soft_label_margins,
    strong_components,
)
from attsvm.theory.sentences import arcs, bipartite, priority_graph
from attsvm.theory.soft_label_constraints import soft_labels

SEEDS = st.integers(0, 10_000)


def drawn_arcs(rng: np.random.Generator, queries: int, K: int) -> list[tuple[int, int, int]]:
    every = product(range(queries), permutations(range(K), 2))
    return [(q, i, j) for q, (i, j) in every if rng.random() < 0.2]


@given(SEEDS)
def test_output_rows_by_loops(seed: int) -> None:
    rng = np.random.default_rng(seed)
    E, K = rng.standard_normal((4, 3)), int(rng.integers(2, 6))
    n = rng.integers(-1, K, 4)
    pairs = [(x, v) for x in range(4) for v in range(K) if n[x] >= 0 and v != n[x]]
    A = [np.outer(np.eye(K)[n[x]] - np.eye(K)[v], E[x]) for x, v in pairs]
    same_rows(output_margins(E, n, K), A, [1.0] * len(A))


@given(SEEDS)
def test_order_rows_by_loops(seed: int) -> None:
    rng = np.random.default_rng(seed)
    E, rows = rng.standard_normal((5, 3)), drawn_arcs(rng, 5, 5)
    A = [np.outer(E[i] - E[j], E[q]) for q, i, j in rows]
    margins = order_margins(E, rng.permutation(np.array(rows + rows[:2]).reshape(-1, 3)))
    same_rows(margins, A, [1.0] * len(A))
    assert margins.selected[margins.sequence].tolist() == [i for _, i, _ in rows]
    assert margins.token.tolist() == [j for _, _, j in rows]


def test_arcs_of_sentences() -> None:
    sentences, n = [[1, 2, 0], [3, 2, 0], [0, 1], [2], [1, 1, 2, 0]], [1, 2, 3, 0]
    rows = order_arcs(sentences, [2, 0, 2, 3, 2], n)
    assert rows.tolist() == [[0, 1, 0], [0, 1, 2], [0, 3, 0], [0, 3, 2], [1, 1, 0]]
    W = max_margin(order_margins(np.eye(4), rows)).W
    expected = np.zeros((4, 4))
    expected[:, 0], expected[:2, 1] = [-0.5, 0.5, -0.5, 0.5], [-0.5, 0.5]
    np.testing.assert_allclose(W, expected, atol=1e-12)
    named = order_arcs([[1, 2, 0], [2, 1, 0]], [1, 2])
    assert named.tolist() == [[0, 1, 0], [0, 1, 2], [0, 2, 0], [0, 2, 1]]
    assert order_arcs([[1, 2, 0], [2, 0]], [3, 2], missing="drop").tolist() == [[0, 2, 0]]
    assert order_arcs([], []).shape == (0, 3)


def test_no_arc_asks_for_nothing() -> None:
    margins = order_margins(np.eye(3), np.zeros((0, 3), dtype=int))
    assert (margins.m, margins.n, margins.shape) == (0, 0, (3, 3))
    assert not max_margin(margins).W.any()


def reachable(rows: list[tuple[int, int, int]], query: int, K: int) -> np.ndarray:
    R = np.eye(K, dtype=bool)
    for q, i, j in rows:
        R[i, j] |= q == query
    for k in range(K):
        R |= R[:, [k]] & R[[k], :]
    return R


def test_components_of_hand_made_graphs() -> None:
    cycles = [(2, 0, 1), (2, 1, 0), (2, 1, 2), (2, 2, 3), (2, 3, 4), (2, 4, 2), (7, 5, 6)]
    queries, component = strong_components(cycles, 8)
    assert queries.tolist() == [2, 7]
    assert component.tolist() == [[0, 0, 2, 2, 2, 5, 6, 7], list(range(8))]
    assert strong_components(np.zeros((0, 3), dtype=int), 4)[1].shape == (0, 4)


@given(SEEDS)
def test_graph_rows_imply_the_definition_and_follow_from_it(seed: int) -> None:
    rng = np.random.default_rng(seed)
    K = 6
    E, rows = rng.standard_normal((K, 7)), drawn_arcs(rng, 3, K)
    margins = graph_margins(E, np.array(rows).reshape(-1, 3))
    equal = margins.equalities
    assert (margins.rhs == np.where(equal, 0.0, 1.0)).all()
    reach = [reachable(rows, q, K) for q in range(3)]
    seen = list(
        zip(
            margins.origin[margins.sequence, 0].tolist(),
            margins.selected[margins.sequence].tolist(),
            margins.token.tolist(),
            strict=True,
        )
    )
    assert len(set(seen)) == margins.m
    for A, tied, (q, i, j) in zip(matrices(margins), equal, seen, strict=True):
        np.testing.assert_allclose(A, np.outer(E[i] - E[j], E[q]), atol=1e-13)
        assert reach[q][i, j]
        assert reach[q][j, i] == tied
        assert tied or (q, i, j) in rows
    queries, component = strong_components(np.array(rows).reshape(-1, 3), K)
    for q, name in zip(queries, component, strict=True):
        alike = reach[q] & reach[q].T
        assert name.tolist() == alike.argmax(axis=1).tolist()
        ties = sum(1 for g, i, j in seen if g == q and alike[i, j])
        assert ties == K - len(set(name.tolist()))
        met = {(name[i], name[j]) for g, i, j in seen if g == q}
        assert met >= {(name[i], name[j]) for g, i, j in rows if g == q and not alike[i, j]}


def test_without_cycles_it_is_the_order_programme_and_one_component_has_no_direction() -> None:
    E = np.random.default_rng(0).standard_normal((5, 5))
    acyclic = [(0, 1, 2), (0, 2, 3), (0, 1, 3), (4, 3, 0)]
    same(graph_margins(E, acyclic), order_margins(E, acyclic))
    whole = order_arcs([[0, 1, 2]] * 3 + [[2, 1, 0]] * 3, [0, 1, 2] * 2)
    margins = graph_margins(np.eye(3), whole)
    assert margins.equalities.all()
    assert margins.m == 4


@given(SEEDS)
def test_data_brings_its_own_arguments(seed: int) -> None:
    data = [bipartite(6, 2, seed, "ortho"), priority_graph(6, 4, 6, 8, seed, cyclic=True)][seed % 2]
    rows = arcs(data).arcs
    same(order_margins(data), order_margins(data.embeddings, rows))
    same(graph_margins(data), graph_margins(data.embeddings, rows))
    same(output_margins(data), output_margins(data.embeddings, data.following))


def drawn_counts(seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    h = rng.standard_normal((4, 3))
    n = rng.integers(1, 6, (4, 5)) * (rng.random((4, 5)) < 0.5)
    n[np.arange(4), rng.integers(0, 5, 4)] += 1
    return h, n


@given(SEEDS)
def test_soft_label_rows_by_loops(seed: int) -> None:
    h, n = drawn_counts(seed)
    p = n / n.sum(axis=1, keepdims=True)
    pairs = [(j, v) for j in range(4) for v in range(5) if v != np.argmax(n[j])]
    A = [np.outer(np.eye(5)[np.argmax(n[j])] - np.eye(5)[v], h[j]) for j, v in pairs]
    equal = [bool(n[j, v]) for j, v in pairs]
    odds = [np.log(p[j].max()) - np.log(p[j, v]) for j, v in pairs if n[j, v]]
    margins = soft_label_margins(h, n)
    same_rows(margins, A, [0.0 if tied else 1.0 for tied in equal], equal)
    assert margins.kind == ("support" if any(equal) else "class")
    inside = [a for a, tied in zip(A, equal, strict=True) if tied]
    same_rows(log_odds_margins(h, n), inside, odds, [True] * len(odds))
    # only supports matter, and counts are as good as shares
    tops = np.where(n == n.max(axis=1, keepdims=True), 9.0, n > 0)  # the same anchors
    same(margins, soft_label_margins(h, p))
    same(margins, soft_label_margins(h, tops))
    np.testing.assert_allclose(log_odds_margins(h, p).rhs, odds)
    hard = n.argmax(axis=1)
    same(alone := soft_label_margins(h, np.eye(5)[hard]), output_margins(h, hard, 5))
    assert alone.kind == "class"


def test_weights_and_entropy_by_hand() -> None:
    labels = soft_labels(np.eye(2), [[1, 1, 0], [0, 0, 6]])
    np.testing.assert_allclose(labels.weights, [0.25, 0.75])
    np.testing.assert_allclose(labels.probabilities, [[0.5, 0.5, 0.0], [0.0, 0.0, 1.0]])
    assert labels.entropy == pytest.approx(0.25 * np.log(2.0), rel=1e-15)
