"""Certificates of infeasibility, checked from tensors written out here, and the sentences that name
them.
"""

from __future__ import annotations

import numpy as np
import pytest
from instances import cross, prompt, sphere, with_rhs, written_out
from scipy.optimize import linprog

from attsvm.data import AttentionData
from attsvm.margins import selection_margins
from attsvm.solvers import MarginSolution, max_margin


def check(solution: MarginSolution) -> None:
    assert solution.status == "infeasible", solution.message
    A, lam = written_out(solution.margins), solution.dual
    assert (lam >= 0).all()
    top = float(solution.margins.rhs @ lam)
    assert top > 0
    assert np.linalg.norm(A.T @ lam) <= 1e-12 * top * max(np.linalg.norm(A, axis=1).max(), 1e-300)
    assert solution.farkas_residual() <= 1e-12
    assert all(np.isinf(r) for r in solution.kkt())
    assert solution.angle_bound() == np.pi
    assert solution.margin == 0.0


def test_verdicts_of_forty_seeds_agree_with_a_linear_programme() -> None:
    infeasible = 0
    for seed in range(40):
        margins = sphere(6, 8, 2, seed)
        A = written_out(margins)
        lp = linprog(
            np.zeros(A.shape[1]), A_ub=-A, b_ub=-margins.rhs, bounds=(None, None), method="highs"
        )
        solution = max_margin(margins)
        assert (solution.status == "infeasible") == (lp.status == 2), (seed, solution.message)
        if solution.status == "infeasible":
            infeasible += 1
            check(solution)
            assert 2 <= np.count_nonzero(solution.dual) <= 5
        else:
            assert solution.status == "optimal"
    assert 25 <= infeasible <= 39


def test_conflict_is_itself_infeasible_and_irreducible() -> None:
    solution = max_margin(sphere(6, 8, 2, 1))
    check(solution)
    conflict = solution.conflict()
    margins = solution.margins
    rows = [
        int(np.flatnonzero((margins.sequence == i) & (margins.token == t))[0])
        for i, _, t in conflict
    ]
    assert (margins.selected[conflict[:, 0]] == conflict[:, 1]).all()
    check(max_margin(margins.restricted(np.array(rows))))
    for left_out in rows:
        rest = np.array([c for c in rows if c != left_out])
        assert max_margin(margins.restricted(rest)).status == "optimal"


def test_message_names_every_sequence_of_a_small_conflict() -> None:
    solution = max_margin(
        prompt(
            [[[1.0, 0.0], [0.0, 0.0]], [[0.0, 2.0], [0.0, 1.0]], [[-1.0, 0.0], [0.0, 0.0]]],
            [0, 1, 0],
        )
    )
    check(solution)
    assert solution.message.startswith(
        "infeasible: no weights select token 0 of sequence 0 and token 0 of sequence 2 together"
        " (certificate over 2 constraints, residual "
    )
    assert sorted(map(tuple, solution.conflict().tolist())) == [(0, 0, 1), (2, 0, 1)]


def test_token_inside_the_hull_of_the_others() -> None:
    solution = max_margin(prompt([[[0.2, 0.2], [1.0, 0.0], [0.0, 1.0], [-1.0, -1.0]]], [0]))
    check(solution)
    assert solution.message.startswith(
        "infeasible: no weights select token 0 of sequence 0 (certificate over 3 constraints"
    )


def test_duplicate_of_the_selected_token() -> None:
    X = np.random.default_rng(0).standard_normal((4, 6, 8))
    X[2, 5] = X[2, 3]
    margins = selection_margins(AttentionData(X, np.ones(4)), np.array([0, 0, 3, 0]))
    solution = max_margin(margins)
    check(solution)
    assert solution.conflict().tolist() == [[2, 3, 5]]
    assert solution.farkas_residual() == 0.0
    assert (
        solution.message
        == "infeasible: token 5 of sequence 2 equals its selected token 3, so no weights can tell"
        " them apart"
    )
    relaxed = max_margin(with_rhs(margins, (margins.sequence != 2).astype(np.float64)))
    assert relaxed.status == "optimal"
    assert relaxed.gap <= 1e-12


def test_zero_query() -> None:
    solution = max_margin(
        cross(
            [[[1.0, 0.0], [0.0, 1.0]], [[1.0, 0.0], [0.0, 1.0]]], [[1.0, 0.0], [0.0, 0.0]], [0, 1]
        )
    )
    check(solution)
    assert (
        solution.message
        == "infeasible: the query of sequence 1 is zero, so no weights can prefer its token 1"
    )


@pytest.mark.parametrize("scale", [1e-100, 1e100])
def test_certificates_at_any_scale(scale: float) -> None:
    rng = np.random.default_rng(7)
    data = AttentionData(
        scale * rng.standard_normal((6, 8, 2)), np.ones(6), rng.standard_normal((6, 2))
    )
    solution = max_margin(selection_margins(data, rng.integers(0, 8, 6)))
    assert solution.status == "infeasible"
    assert solution.farkas_residual() <= 1e-12


@pytest.mark.parametrize("size", [(200, 64, 16), (400, 64, 24)])
def test_large_certificates(size: tuple[int, int, int]) -> None:
    solution = max_margin(sphere(*size, 0))
    assert solution.status == "infeasible", solution.message
    margins, lam = solution.margins, solution.dual / solution.dual.sum()
    assert (lam >= 0).all()
    pulled = np.einsum(
        "ca,ce->ae", lam[:, None] * margins.differences, margins.queries[margins.sequence]
    )
    assert np.linalg.norm(pulled) <= 1e-12
    if size[2] == 16:
        assert len(solution.conflict()) <= 16 * 16 + 1
    assert "more sequences together" in solution.message


def test_barely_feasible_and_barely_infeasible() -> None:
    """Two opposite rivals: the selected token leaves their segment by epsilon, then touches it."""
    for epsilon in (1e-3, 1e-6, 1e-9):
        solution = max_margin(prompt([[[0.0, epsilon], [1.0, 0.0], [-1.0, 0.0]]], [0]))
        assert solution.status == "optimal", solution.message
        assert solution.norm == pytest.approx(1 / epsilon, rel=1e-6)
    check(max_margin(prompt([[[0.0, 0.0], [1.0, 0.0], [-1.0, 0.0]]], [0])))


def test_feasible_solution_has_no_conflict() -> None:
    assert max_margin(sphere(6, 8, 10, 0)).conflict().shape == (0, 3)
