"""Output matrices and partial orders against loops, worked examples and closed forms."""

from __future__ import annotations

import numpy as np
import pytest
from explicit import same_rows
from hypothesis import given
from hypothesis import strategies as st

from attsvm.errors import InputError
from attsvm.margins import order_arcs, order_margins, output_margins
from attsvm.solvers import max_margin

N = [1, 2, 3, 0]


@given(st.integers(0, 10_000))
def test_output_rows_by_loops(seed: int) -> None:
    rng = np.random.default_rng(seed)
    E = rng.standard_normal((4, 3))
    K = int(rng.integers(2, 6))
    n = rng.integers(-1, K, 4)
    A = []
    for x in range(4):
        for v in range(K):
            if n[x] >= 0 and v != n[x]:
                A.append(np.outer(np.eye(K)[n[x]] - np.eye(K)[v], E[x]))
    same_rows(output_margins(E, n, K), A, [1.0] * len(A))


@given(st.integers(0, 10_000))
def test_order_rows_by_loops(seed: int) -> None:
    rng = np.random.default_rng(seed)
    K, d = 5, 3
    E = rng.standard_normal((K, d))
    arcs = [
        (q, i, j)
        for q in range(K)
        for i in range(K)
        for j in range(K)
        if i != j and rng.random() < 0.2
    ]
    A = [np.outer(E[i] - E[j], E[q]) for q, i, j in arcs]
    shuffled = rng.permutation(np.array(arcs + arcs[:2]).reshape(-1, 3))
    margins = order_margins(E, shuffled)
    same_rows(margins, A, [1.0] * len(A))
    assert margins.selected[margins.sequence].tolist() == [i for _, i, _ in arcs]
    assert margins.token.tolist() == [j for _, _, j in arcs]


def test_golden_bipartite() -> None:
    arcs = order_arcs([[1, 2, 0], [3, 2, 0], [0, 1], [2], [1, 1, 2, 0]], [2, 0, 2, 3, 2], N)
    assert arcs.tolist() == [[0, 1, 0], [0, 1, 2], [0, 3, 0], [0, 3, 2], [1, 1, 0]]
    solution = max_margin(order_margins(np.eye(4), arcs))
    np.testing.assert_allclose(solution.W[:, 0], [-0.5, 0.5, -0.5, 0.5], atol=1e-12)
    np.testing.assert_allclose(solution.W[:, 1], [-0.5, 0.5, 0, 0], atol=1e-12)
    assert not solution.W[:, 2:].any()
    assert solution.norm**2 == pytest.approx(1.5, rel=1e-12)


@pytest.mark.parametrize("tails", [1, 4])
def test_star_and_chain(tails: int) -> None:
    star = max_margin(order_margins(np.eye(6), [(5, 0, k + 1) for k in range(tails)])).W[:, 5]
    np.testing.assert_allclose(
        star[: tails + 1], [tails / (tails + 1)] + [-1 / (tails + 1)] * tails, atol=1e-12
    )
    chain = max_margin(order_margins(np.eye(6), [(0, k, k + 1) for k in range(tails)])).W[:, 0]
    np.testing.assert_allclose(
        chain[: tails + 1], (tails + 2) / 2 - np.arange(1, tails + 2), atol=1e-12
    )


def test_labels_that_name_the_winner() -> None:
    assert order_arcs([[1, 2, 0], [2, 1, 0]], [1, 2]).tolist() == [
        [0, 1, 0],
        [0, 1, 2],
        [0, 2, 0],
        [0, 2, 1],
    ]
    assert order_arcs([[1, 2, 0], [2, 0]], [3, 2], missing="drop").tolist() == [[0, 2, 0]]
    assert order_arcs([], []).shape == (0, 3)


def test_no_arc_at_all() -> None:
    margins = order_margins(np.eye(3), np.zeros((0, 3), dtype=int))
    assert (margins.m, margins.n, margins.shape) == (0, 0, (3, 3))
    assert not max_margin(margins).W.any()


def test_refusals() -> None:
    for call, message in [
        (lambda: order_arcs([[1, 0]], [3]), r"no token of sentences\[0\] realises its label 3"),
        (
            lambda: order_arcs([[1, 0]], [5], [5, 5]),
            r"tokens 0 and 1 of sentences\[0\] are both followed by 5",
        ),
        (lambda: order_arcs([[1, 0], []], [1, 1]), r"sentences\[1\] has shape \(0,\)"),
        (lambda: order_arcs([[1, -1]], [1]), r"sentences\[0\] holds a token outside 0 to K - 1"),
        (lambda: order_arcs([[1, 4]], [1], N), r"outside 0 to 3"),
        (lambda: order_arcs([[1, 0]], [1, 2]), r"labels has shape \(2,\)"),
        (lambda: order_arcs([[1.5, 0]], [1]), r"sentences\[0\] has dtype float64"),
        (lambda: order_arcs([[1, 0]], [1], missing="skip"), "missing is 'skip'"),
        (
            lambda: order_margins(np.eye(3), [[0, 1, 3]]),
            r"arcs\[0\] is \[0, 1, 3\]; tokens are numbered 0 to 2",
        ),
        (lambda: order_margins(np.eye(3), [[0, 1, 1]]), "cannot come before itself"),
        (lambda: order_margins(np.eye(3), [0, 1, 2]), r"arcs has shape \(3,\)"),
        (lambda: order_margins(np.full((3, 3), np.inf), [[0, 1, 2]]), "embeddings holds inf"),
        (lambda: order_margins(np.ones(3), [[0, 1, 2]]), r"embeddings has shape \(3,\)"),
        (lambda: output_margins(np.eye(3), [0, 1]), r"following has shape \(2,\)"),
        (lambda: output_margins(np.eye(3), [0, 1, 3]), r"following\[2\] is 3; classes are 0 to 2"),
    ]:
        with pytest.raises(InputError, match=message):
            call()
