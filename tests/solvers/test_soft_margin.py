"""The soft margin against its own optimality conditions and against other people's solvers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from instances import prompt, ragged, sphere, written_out
from sklearn.svm import LinearSVC

from attsvm.datasets import unit_sphere
from attsvm.margins import selection_margins
from attsvm.solvers import MarginSolution, max_margin


def objective(A: np.ndarray, w: np.ndarray, C: float) -> float:
    return 0.5 * float(w @ w) + C * float(np.maximum(1 - A @ w, 0).sum())


def assert_soft_optimal(solution: MarginSolution, tol: float = 1e-10) -> None:
    assert solution.status == "optimal", solution.message
    C = solution.slack
    assert C is not None
    A, w, lam = written_out(solution.margins), solution.W.ravel(), solution.dual
    assert (lam >= 0).all()
    assert (lam <= C).all()
    dual = float(lam.sum()) - 0.5 * float(np.sum((A.T @ lam) ** 2))
    assert objective(A, w, C) - dual <= tol * max(objective(A, w, C), 1e-300)
    np.testing.assert_allclose(solution.slacks, np.maximum(1 - A @ w, 0), atol=1e-12)
    assert solution.gap <= 1e-10
    assert solution.violation == 0.0
    residuals = solution.kkt()
    assert residuals.stationarity <= 1e-6
    assert residuals.dual == 0.0
    assert residuals.primal <= 1e-12


@given(st.integers(0, 100_000), st.sampled_from([1e-3, 0.1, 1.0, 10.0, 1e3]), st.booleans())
def test_conditions_over_random_ragged_programmes(seed: int, C: float, feasible: bool) -> None:
    rng = np.random.default_rng(seed)
    margins = ragged(
        rng,
        int(rng.integers(1, 9)),
        int(rng.integers(2, 8)),
        int(rng.integers(1, 5)),
        int(rng.integers(1, 5)),
        feasible,
    )
    if margins.m:
        assert_soft_optimal(max_margin(margins, slack=C), 1e-9)


@pytest.mark.parametrize(
    ("n", "T", "d", "C"), [(70, 16, 6, 1e2), (70, 16, 6, 1e6), (200, 40, 10, 1e4)]
)
def test_thousands_of_rows_that_nothing_separates(n: int, T: int, d: int, C: float) -> None:
    """Most multipliers are at their bound."""
    rng = np.random.default_rng(0)
    data = unit_sphere(n, T, d, seed=0)[0]
    solution = max_margin(selection_margins(data, rng.integers(0, T, n)), slack=C)
    assert_soft_optimal(solution)
    assert (solution.dual == C).mean() > 0.5


@pytest.mark.parametrize("C", [0.05, 1.0, 20.0])
def test_agrees_with_linear_svc(C: float) -> None:
    margins = sphere(10, 8, 3, 0)
    A = written_out(margins)
    # LinearSVC wants two classes: flipping sign of row and label leaves its hinge loss unchanged.
    flip = np.where(np.arange(len(A)) % 2 == 0, 1.0, -1.0)
    svc = LinearSVC(C=C, loss="hinge", fit_intercept=False, tol=1e-10, max_iter=10_000_000).fit(
        A * flip[:, None], flip
    )
    solution = max_margin(margins, slack=C)
    assert_soft_optimal(solution)
    assert objective(A, solution.W.ravel(), C) <= objective(A, svc.coef_.ravel(), C) * (1 + 1e-12)
    np.testing.assert_allclose(
        solution.W.ravel(), svc.coef_.ravel(), atol=2e-4 * max(1.0, solution.norm)
    )


def test_large_penalty_gives_the_hard_margin() -> None:
    margins = sphere(6, 8, 10, 0)
    hard = max_margin(margins)
    soft = max_margin(margins, slack=2.0 * float(hard.dual.max()))
    np.testing.assert_allclose(soft.W, hard.W, atol=1e-10)
    assert soft.slacks.max() <= 1e-12


def test_small_penalty_puts_every_multiplier_at_its_bound() -> None:
    margins = sphere(6, 8, 10, 0)
    solution = max_margin(margins, slack=1e-4)
    np.testing.assert_array_equal(solution.dual, 1e-4)
    np.testing.assert_allclose(solution.W, 1e-4 * margins.adjoint(np.ones(margins.m)), rtol=1e-12)


def test_contradiction_and_duplicates_have_a_soft_solution() -> None:
    solution = max_margin(
        prompt([[[1.0], [0.0]], [[-1.0], [0.0]], [[2.0], [2.0]]], [0, 0, 0]), slack=0.5
    )
    assert_soft_optimal(solution)
    np.testing.assert_allclose(solution.W, 0.0, atol=1e-15)
    np.testing.assert_allclose(solution.slacks, 1.0)


def test_certified_angle_holds() -> None:
    margins = sphere(10, 8, 3, 2)
    exact, rough = (
        max_margin(margins, slack=1.0),
        max_margin(margins, slack=1.0, tol=0.1, max_seconds=1e-9),
    )
    cosine = float(np.sum(exact.W * rough.W)) / (exact.norm * rough.norm)
    assert np.arccos(min(cosine, 1.0)) <= rough.angle_bound() + exact.angle_bound()
