"""Entrywise norms: optimality conditions recomputed, independent solvers, invariances, extremes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from instances import prompt, sphere, written_out

from attsvm.datasets import unit_sphere
from attsvm.margins import Margins, optimal_tokens, selection_margins
from attsvm.norms import Frobenius, Lp
from attsvm.solvers import MarginSolution, max_margin

INF = float("inf")
EXPONENTS = [1.0, 1.0001, 1.02, 1.1, 1.5, 1.75, 2.5, 3.0, 5.0, 8.0, 30.0, INF]


def length(v: Any, p: float) -> float:
    """The p-norm written out here."""
    size = np.abs(np.asarray(v)).ravel()
    top = size.max()
    return float(top) if p == INF or top == 0 else float(top * ((size / top) ** p).sum() ** (1 / p))


def conjugate(p: float) -> float:
    return INF if p == 1 else 1.0 if p == INF else p / (p - 1)


def assert_optimal(solution: MarginSolution, p: float, tol: float = 1e-9) -> None:
    """Feasible weights and multipliers that meet in the middle, from tensors written out here."""
    assert solution.status == "optimal", solution.message
    A, b, w, lam = (
        written_out(solution.margins),
        solution.margins.rhs,
        solution.W.ravel(),
        solution.dual,
    )
    size, pull = length(w, p), A.T @ lam
    assert solution.norm == pytest.approx(size, rel=1e-12)
    assert (lam >= 0).all()
    assert (A @ w - b).min() >= -tol
    assert b @ lam / length(pull, conjugate(p)) >= size * (1 - 2 * tol)
    assert b @ lam == pytest.approx(size**2, rel=1e-9)
    # Complementarity in sum: lambda^T (A w - b) is what the gap is made of.
    assert abs(lam @ (A @ w - b)) <= 10 * tol * size**2
    # Hoelder with equality: A^T lambda lies along the dual of w.
    assert pull @ w >= length(pull, conjugate(p)) * size * (1 - 10 * tol)


@pytest.mark.parametrize("p", EXPONENTS)
@pytest.mark.parametrize("seed", [0, 1])
def test_conditions_on_the_random_family(p: float, seed: int) -> None:
    solution = max_margin(sphere(6, 8, 10, seed), Lp(p))
    assert_optimal(solution, p)
    assert solution.unique


@pytest.mark.parametrize("p", [1.0, 1.1, 1.75, 3.0, 10.0, INF])
@pytest.mark.parametrize("instance", [(15, 5, 4, 5014), (5, 15, 4, 9032), (5, 15, 4, 9091)])
def test_cones_of_weights_that_are_almost_empty(
    p: float, instance: tuple[int, int, int, int]
) -> None:
    # The best margin of a unit weight is 2.5e-5, 9e-4 and 6e-4, and rows depend on each other.
    data, head = unit_sphere(*instance)
    solution = max_margin(selection_margins(data, optimal_tokens(data, head)), Lp(p), tol=1e-9)
    assert solution.norm > 200
    assert_optimal(solution, p)


@pytest.mark.parametrize("p", [1.1, 1.75, 3.0, 6.0])
def test_one_constraint_is_hoelder(p: float) -> None:
    a = np.array([3.0, -1.0, 0.5])
    solution = max_margin(prompt([[a.tolist(), [0.0, 0.0, 0.0]]], [0]), Lp(p))
    q = conjugate(p)
    np.testing.assert_allclose(
        solution.W[:, 0], np.sign(a) * np.abs(a) ** (q - 1) / (np.abs(a) ** q).sum(), atol=1e-6
    )


@pytest.mark.parametrize("p", [1.0, 1.3, 4.0, INF])
def test_signed_permutations_and_scales(p: float) -> None:
    margins = sphere(6, 8, 10, 4)
    W = max_margin(margins, Lp(p), tol=1e-10).W
    rng = np.random.default_rng(0)
    rows, columns = rng.permutation(10), rng.permutation(10)
    left, right = rng.choice([-1.0, 1.0], 10), rng.choice([-1.0, 1.0], 10)
    differences, queries = margins.differences[:, rows] * left, margins.queries[:, columns] * right
    turned = Margins(
        differences, queries, margins.offsets, margins.rhs, margins.token, margins.selected
    )
    moved = max_margin(turned, Lp(p), tol=1e-10).W
    np.testing.assert_allclose(
        moved, left[:, None] * W[np.ix_(rows, columns)] * right, atol=1e-5 * np.abs(W).max()
    )
    scaled = Margins(
        1e3 * margins.differences,
        margins.queries,
        margins.offsets,
        margins.rhs,
        margins.token,
        margins.selected,
    )
    np.testing.assert_allclose(
        1e3 * max_margin(scaled, Lp(p), tol=1e-10).W, W, atol=1e-5 * np.abs(W).max()
    )


def test_the_norm_falls_with_the_exponent_and_meets_the_frobenius_norm_at_two() -> None:
    margins = sphere(8, 8, 12, 1)
    norms = [
        max_margin(margins, Lp(p)).norm
        for p in (1, 1.0001, 1.05, 1.5, 1.999, 2, 2.001, 3, 7, 50, 200, INF)
    ]
    assert (np.diff(norms) < 0).all()
    exact = max_margin(margins, Frobenius())
    two = max_margin(margins, Lp(2))
    np.testing.assert_array_equal(two.W, exact.W)
    assert two.unique
    for p in (1.99999, 2.00001):
        np.testing.assert_allclose(max_margin(margins, Lp(p)).W, exact.W, atol=1e-4)


@pytest.mark.parametrize(
    ("p", "key", "unique"),
    [
        (1.0, [1.0, 1.0], False),
        (1.0, [1.0, 0.5], True),
        (INF, [1.0, 0.0], False),
        (INF, [1.0, 0.5], True),
        (1.5, [1.0, 1.0], True),
    ],
)
def test_uniqueness(p: float, key: list[float], unique: bool) -> None:
    solution = max_margin(prompt([[key, [0.0, 0.0]]], [0]), Lp(p))
    assert solution.status == "optimal", solution.message
    assert solution.unique is unique


@pytest.mark.parametrize("p", [1.0, 1.1, 1.75, 3.0, 200.0, INF])
def test_warm_start_gives_the_same_answer(p: float) -> None:
    margins = sphere(10, 8, 16, 0)
    cold = max_margin(margins, Lp(p))
    warm = max_margin(margins, Lp(p), warm_start=cold)
    assert warm.status == "optimal"
    assert warm.norm == pytest.approx(cold.norm, rel=1e-8)
    if 1.0 < p < 10.0:
        assert warm.iterations <= cold.iterations
    useless = max_margin(margins, Lp(p), warm_start=np.zeros(margins.m))
    assert useless.norm == pytest.approx(cold.norm, rel=1e-8)


@pytest.mark.parametrize("p", [1.0, INF])
@pytest.mark.parametrize("seed", [0, 1])
def test_linear_programmes_end_at_a_vertex(p: float, seed: int) -> None:
    """A basis gives weights and multipliers to rounding: as many rows met exactly as entries free
    to move.
    """
    solution = max_margin(sphere(20, 16, 32, seed), Lp(p))
    assert solution.gap <= 1e-13
    size = np.abs(solution.W)
    free = size > 1e-9 * size.max() if p == 1.0 else size < (1 - 1e-9) * size.max()
    assert np.count_nonzero(solution.dual > 1e-9 * solution.dual.max()) == free.sum() + (p == INF)


def test_refusals_and_limits() -> None:
    margins = sphere(6, 8, 10, 0)
    assert max_margin(margins, Lp(2), slack=1.0).status == "optimal"
    short = max_margin(sphere(40, 16, 32, 0), Lp(1), max_seconds=1e-9)
    assert short.status == "inaccurate"
    assert short.gap > 1e-9


@pytest.mark.parametrize("p", [1.0, 1.0 + 1e-9, 1.0001, 200.0, 1000.0, 1e9, INF])
def test_extreme_exponents_at_size_m(p: float) -> None:
    solution = max_margin(sphere(20, 16, 32, 0), Lp(p))
    assert solution.status == "optimal", solution.message
    values = solution.margins(solution.W)
    assert values.min() >= 1 - 1e-12
    pull = solution.margins.adjoint(solution.dual)
    assert solution.dual.sum() / length(pull, conjugate(p)) >= length(solution.W, p) * (1 - 1e-9)
