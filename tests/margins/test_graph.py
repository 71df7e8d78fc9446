"""Token-priority graphs: components of hand-made graphs, rows by loops, the golden example."""

from __future__ import annotations

import numpy as np
import pytest
from explicit import least_distance, matrices
from hypothesis import given
from hypothesis import strategies as st

from attsvm.errors import InputError
from attsvm.margins import graph_margins, order_arcs, order_margins, strong_components


def reachable(arcs: set[tuple[int, int]], K: int) -> np.ndarray:
    R = np.eye(K, dtype=bool)
    for i, j in arcs:
        R[i, j] = True
    for k in range(K):
        R |= R[:, [k]] & R[[k], :]
    return R


def test_components_of_hand_made_graphs() -> None:
    queries, component = strong_components(
        [(2, 0, 1), (2, 1, 0), (2, 1, 2), (2, 2, 3), (2, 3, 4), (2, 4, 2), (7, 5, 6)], 8
    )
    assert queries.tolist() == [2, 7]
    assert component[0].tolist() == [0, 0, 2, 2, 2, 5, 6, 7]
    assert component[1].tolist() == list(range(8))
    assert strong_components(np.zeros((0, 3), dtype=int), 4)[1].shape == (0, 4)


@given(st.integers(0, 10_000))
def test_components_are_mutual_reachability(seed: int) -> None:
    rng = np.random.default_rng(seed)
    K = 6
    arcs = [
        (q, i, j)
        for q in range(2)
        for i in range(K)
        for j in range(K)
        if i != j and rng.random() < 0.25
    ]
    queries, component = strong_components(np.array(arcs).reshape(-1, 3), K)
    for k, q in enumerate(queries):
        R = reachable({(i, j) for g, i, j in arcs if g == q}, K)
        np.testing.assert_array_equal(component[k][:, None] == component[k][None, :], R & R.T)
        for v in range(K):
            assert component[k, v] == np.flatnonzero((R & R.T)[v])[0]


@given(st.integers(0, 10_000))
def test_rows_imply_the_definition_and_follow_from_it(seed: int) -> None:
    rng = np.random.default_rng(seed)
    K = 6
    E = rng.standard_normal((K, 7))
    arcs = [
        (q, i, j)
        for q in range(3)
        for i in range(K)
        for j in range(K)
        if i != j and rng.random() < 0.2
    ]
    margins = graph_margins(E, np.array(arcs).reshape(-1, 3))
    A = matrices(margins)
    equal = margins.equalities
    assert (margins.rhs == np.where(equal, 0.0, 1.0)).all()
    queries = [
        next(q for q in range(3) if np.array_equal(E[q], margins.queries[i]))
        for i in range(margins.n)
    ]
    seen = set()
    for c in range(margins.m):
        k = margins.sequence[c]
        q, i, j = queries[k], int(margins.selected[k]), int(margins.token[c])
        np.testing.assert_allclose(A[c], np.outer(E[i] - E[j], E[q]), atol=1e-13)
        R = reachable({(a, b) for g, a, b in arcs if g == q}, K)
        assert R[i, j]
        assert R[j, i] == equal[c]
        assert equal[c] or (q, i, j) in arcs
        seen.add((q, i, j))
    assert len(seen) == margins.m
    for q in range(3):  # every definition row is met by scores that meet the reduced rows
        R = reachable({(a, b) for g, a, b in arcs if g == q}, K)
        same = R & R.T
        assert sum(1 for g, i, j in seen if g == q and same[i, j]) == K - len(
            {tuple(row) for row in same}
        )
        for g, i, j in arcs:
            if g == q and not same[i, j]:
                assert any(
                    h == q and same[i, a] and same[j, b] for h, a, b in seen if not (same[a, b])
                )


def test_without_cycles_it_is_the_order_programme() -> None:
    arcs = [(0, 1, 2), (0, 2, 3), (0, 1, 3), (4, 3, 0)]
    E = np.random.default_rng(0).standard_normal((5, 5))
    graph, order = graph_margins(E, arcs), order_margins(E, arcs)
    assert graph.equality is None
    for name in ("differences", "queries", "offsets", "rhs", "token", "selected"):
        np.testing.assert_array_equal(getattr(graph, name), getattr(order, name))


def test_golden_cycle() -> None:
    margins = graph_margins(np.eye(4), order_arcs([[1, 2, 0], [2, 1, 0]], [1, 2]))
    assert margins.m == 2  # one equality 1 ~ 2 and one inequality {1, 2} -> 0
    expected = least_distance(margins)
    assert expected is not None
    np.testing.assert_allclose(expected[:, 0], [-2 / 3, 1 / 3, 1 / 3, 0], atol=1e-12)


def test_one_component_has_no_direction() -> None:
    sentences, labels = [[0, 1, 2]] * 6 + [[2, 1, 0]] * 6, [0, 1, 1, 2, 2, 2, 2, 1, 1, 0, 0, 0]
    margins = graph_margins(np.eye(3), order_arcs(sentences, labels))
    assert margins.equalities.all()
    assert margins.m == 4


def test_refusals() -> None:
    with pytest.raises(InputError, match="embeddings has shape"):
        graph_margins(np.ones(3), [[0, 1, 2]])
    with pytest.raises(InputError, match="tokens are numbered 0 to 2"):
        graph_margins(np.eye(3), [[0, 1, 5]])
    with pytest.raises(InputError, match="arcs has dtype float64"):
        strong_components([[0.0, 1.0, 2.0]], 3)
