"""Interior points of small programmes: against exact solutions, on what they must not answer."""

from __future__ import annotations

import math

import numpy as np
import pytest
from instances import sphere

from attsvm.geometry import Lp
from attsvm.margins import Margins
from attsvm.solvers import max_margin
from attsvm.solvers.programme.programme import equilibrate, explicit_rows
from attsvm.solvers.small.interior import interior_point


def written(margins: Margins) -> tuple[np.ndarray, np.ndarray]:
    p = equilibrate(margins, None)
    return explicit_rows(p, np.arange(p.m)), p.b


@pytest.mark.parametrize("p", [1.0, 1.25, 1.75, 2.0, math.inf])
def test_points_prove_each_other(p: float) -> None:
    for seed in range(20):
        A, b = written(sphere(6, 8, 10, seed))
        w, dual, systems = interior_point(A, b, p)
        q = {1.0: math.inf, math.inf: 1.0}.get(p, p / (p - 1.0) if p > 1.0 else math.inf)
        top = np.linalg.norm(w, p) / (A @ w / b).min()
        assert (dual >= 0.0).all()
        assert 1.0 - b @ dual / np.linalg.norm(dual @ A, q) / top <= 1e-10
        assert 0 < systems < 40


@pytest.mark.parametrize("norm", ["l1", "lp:1.75", "linf"])
def test_a_contradiction_is_left_to_its_proof(norm: str) -> None:
    D = np.array([[1.0, 0.0], [-1.0, 0.0]])
    margins = Margins(
        D, np.ones((2, 1)), np.array([0, 1, 2]), np.ones(2), np.zeros(2, int), np.zeros(2, int)
    )
    assert max_margin(margins, norm).status == "infeasible"
    w, dual, _ = interior_point(*written(margins), Lp(1.0).p)
    assert not w.any()
    assert not dual.any()


def test_rows_that_ask_for_nothing() -> None:
    margins = sphere(6, 8, 10, 3)
    rhs = margins.rhs.copy()
    rhs[::3] = 0.0
    from dataclasses import replace

    for norm in ("l1", "linf"):
        solution = max_margin(replace(margins, rhs=rhs), norm)
        assert solution.status == "optimal"
        assert solution.kkt().stationarity <= 1e-9
