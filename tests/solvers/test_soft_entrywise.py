"""Soft margins in entrywise norms: duality written out here, CLARABEL, the limits of the penalty,
the proximal map of the squared norm.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import cvxpy
import numpy as np
import pytest
from instances import prompt, sphere, with_rhs, written_out

from attsvm.cli import main
from attsvm.norms import Lp
from attsvm.solvers import MarginSolution, max_margin

INF = float("inf")
EXPONENTS = [1.0, 1.0001, 1.1, 1.75, 3.0, 8.0, INF]


def length(v: Any, p: float) -> float:
    size = np.abs(np.asarray(v)).ravel()
    top = size.max(initial=0.0)
    return float(top) if p == INF or top == 0 else float(top * ((size / top) ** p).sum() ** (1 / p))


def assert_soft_optimal(solution: MarginSolution, p: float, tol: float = 1e-9) -> None:
    """Primal and dual objective from tensors written out here; equal up to ``tol`` of the
    primal.
    """
    assert solution.status == "optimal", solution.message
    C = solution.slack
    assert C is not None
    A, b, w, lam = (
        written_out(solution.margins),
        solution.margins.rhs,
        solution.W.ravel(),
        solution.dual,
    )
    assert (lam >= 0).all()
    assert (lam <= C).all()
    missed = np.maximum(b - A @ w, 0)
    q = INF if p == 1 else 1.0 if p == INF else p / (p - 1)
    primal = 0.5 * length(w, p) ** 2 + C * missed.sum()
    assert primal - (b @ lam - 0.5 * length(A.T @ lam, q) ** 2) <= 2 * tol * primal
    np.testing.assert_allclose(solution.slacks, missed, atol=1e-12 * max(1.0, solution.norm))
    assert set(np.flatnonzero(missed > 1e-12)) <= set(solution.support)


@pytest.mark.parametrize("C", [1e-3, 0.3, 30.0])
@pytest.mark.parametrize("p", EXPONENTS)
def test_objectives_meet(p: float, C: float) -> None:
    solution = max_margin(sphere(10, 8, 3, 0), Lp(p), slack=C)
    assert_soft_optimal(solution, p)
    assert solution.unique


@pytest.mark.parametrize("p", [1.0, 1.5, 3.0, INF])
def test_agrees_with_clarabel(p: float) -> None:
    margins, C = sphere(6, 8, 10, 1), 0.4 if p < INF else 0.004
    A = written_out(margins)
    w = cvxpy.Variable(A.shape[1])
    norm = cvxpy.pnorm(w, p) if 1 < p < INF else cvxpy.norm(w, "inf" if p == INF else 1)
    problem = cvxpy.Problem(
        cvxpy.Minimize(0.5 * cvxpy.square(norm) + C * cvxpy.sum(cvxpy.pos(1 - A @ w)))
    )
    problem.solve(solver=cvxpy.CLARABEL)
    solution = max_margin(margins, Lp(p), slack=C)
    assert solution.slacks.max() > 0.01
    ours = 0.5 * solution.norm**2 + C * solution.slacks.sum()
    assert ours <= problem.value * (1 + 1e-9)
    assert ours == pytest.approx(problem.value, rel=1e-6)  # what its interior point promises
    if 1 < p < INF:
        np.testing.assert_allclose(solution.W.ravel(), w.value, atol=1e-3 * solution.norm)


@pytest.mark.parametrize("p", EXPONENTS)
def test_beyond_the_largest_multiplier_the_margin_is_hard(p: float) -> None:
    margins = sphere(6, 8, 10, 0)
    hard = max_margin(margins, Lp(p))
    soft = max_margin(margins, Lp(p), slack=1.5 * float(hard.dual.max()))
    assert soft.norm == pytest.approx(hard.norm, rel=1e-7)
    assert soft.slacks.max() <= 1e-7
    below = max_margin(margins, Lp(p), slack=0.2 * float(hard.dual.max()))
    assert 0.5 * below.norm**2 + below.slack * below.slacks.sum() < 0.5 * hard.norm**2 * (1 - 1e-6)


@pytest.mark.parametrize("p", [1.0, 1.5, 3.0])
def test_small_penalty_puts_every_multiplier_at_its_bound(p: float) -> None:
    margins = sphere(6, 8, 10, 0)
    C = 1e-5
    solution = max_margin(margins, Lp(p), slack=C)
    np.testing.assert_allclose(solution.dual, C, rtol=1e-12)
    pull = C * margins.adjoint(np.ones(margins.m))
    assert solution.norm == pytest.approx(float(Lp(p).dual_value(pull)), rel=1e-9)
    assert float((pull * solution.W).sum()) == pytest.approx(solution.norm**2, rel=1e-9)


@pytest.mark.parametrize("p", [1.0, 1.5, 3.0, INF])
def test_contradictions_have_a_soft_solution(p: float) -> None:
    solution = max_margin(
        prompt([[[1.0], [0.0]], [[-1.0], [0.0]], [[2.0], [2.0]]], [0, 0, 0]), Lp(p), slack=0.5
    )
    assert_soft_optimal(solution, p)
    np.testing.assert_allclose(solution.W, 0.0, atol=1e-12)


def test_a_flat_direction_is_not_called_unique() -> None:
    """With one missed row no row is met exactly: only its norm is known of a solution of p = 1."""
    margins = prompt([[[1.0, 1.0], [0.0, 0.0]]], [0])
    assert max_margin(margins, Lp(1), slack=0.1).unique is not True
    assert max_margin(margins, Lp(INF), slack=0.1).unique is True
    assert max_margin(with_rhs(margins, np.zeros(1)), Lp(1), slack=0.1).unique is True


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng, path = np.random.default_rng(0), tmp_path / "d.npz"
    X, z = rng.standard_normal((8, 5, 2)), rng.standard_normal((8, 2))
    np.savez(path, X=X, y=np.ones(8), z=z)
    options = ["--tokens", "first", "--slack", "0.5", "--norm", "lp:1.75", "--json"]
    assert main(["solve", str(path), *options]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert (printed["status"], printed["slack"]) == ("optimal", 0.5)
