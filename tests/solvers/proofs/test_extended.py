"""The dual method with many digits, against exact arithmetic and the ordinary solver."""

from __future__ import annotations

import time
from fractions import Fraction

import numpy as np
import pytest
from attsvm.solvers.proofs.extended import Contradiction, DualActiveSet, search
from instances import prompt, ragged, sphere

from attsvm.margins import Margins
from attsvm.solvers import max_margin
from attsvm.solvers.programme.programme import equilibrate


def found(margins: Margins, slack: float | None = None) -> tuple[DualActiveSet, object]:
    return search(equilibrate(margins, slack), time.monotonic() + 30.0)


@pytest.mark.parametrize("slack", [None, 1e-3, 1.0, 1e6])
def test_the_solution_of_the_ordinary_solver(slack: float | None) -> None:
    for seed in range(12):
        margins = ragged(np.random.default_rng(seed), 4, 4, 3, 2, feasible=True)
        if margins.m == 0:
            continue
        p = equilibrate(margins, slack)
        state, solved = found(margins, slack)
        ordinary = max_margin(margins, slack=slack)
        assert (solved is True) == (ordinary.status == "optimal")
        if solved is True:
            W, dual = p.restored(*state.point())
            np.testing.assert_allclose(W, ordinary.W, rtol=1e-9, atol=1e-9 * np.abs(W).max())
            np.testing.assert_allclose(margins.adjoint(dual), W, atol=1e-9 * np.abs(W).max())
            assert (dual >= 0.0).all()
            assert slack is None or (dual <= slack * (1 + 1e-15)).all()


def test_angles_far_below_rounding() -> None:
    """Two rows at an angle of 2 epsilon from opposite: the solution is known in closed form."""
    for epsilon in (2.0**-20, 2.0**-50, 2.0**-80):
        margins = prompt([[[0.0, 0.0], [-1.0, -epsilon], [1.0, -epsilon]]], [0])
        state, solved = found(margins)
        assert solved is True
        W, _ = equilibrate(margins, None).restored(*state.point())
        np.testing.assert_allclose(W * epsilon, [[0.0], [1.0]], rtol=1e-15, atol=1e-60)


def test_contradictions_are_exact() -> None:
    for seed in range(20):
        margins = sphere(6, 8, 2, seed)
        state, solved = found(margins)
        assert isinstance(solved, Contradiction) == (max_margin(margins).status == "infeasible")
        if isinstance(solved, Contradiction):
            p = state.programme
            assert (solved.dual >= 0.0).all()
            assert np.count_nonzero(solved.dual) <= 5
            pulled = p.adjoint(solved.dual)
            assert np.abs(pulled).max() <= 1e-14 * solved.dual.sum()


def test_rows_that_look_dependent_to_320_bits_get_more() -> None:
    tiny = 2.0**-300
    margins = prompt([[[0.0, 0.0], [-1.0, -tiny], [1.0, -tiny]]], [0])
    state, solved = found(margins)
    assert solved is True
    assert state.bits > 1000
    W, _ = equilibrate(margins, None).restored(*state.point())
    np.testing.assert_allclose(W * tiny, [[0.0], [1.0]], rtol=1e-15, atol=1e-60)


def test_the_nearest_weights_that_meet_the_margins() -> None:
    rng = np.random.default_rng(1)
    margins = ragged(rng, 4, 4, 3, 2, feasible=True)
    p = equilibrate(margins, None)
    start = rng.standard_normal((3, 2))
    state, solved = search(p, time.monotonic() + 30.0, start)
    assert solved is True
    near, dual = state.point()
    assert (p.values(near) >= p.b - 1e-13).all()
    np.testing.assert_allclose(near - start, p.adjoint(dual), atol=1e-12)
    assert np.abs(dual * (p.values(near) - p.b)).max() <= 1e-12


def test_a_demand_is_met_after_rounding() -> None:
    margins = prompt([[[0.0, 0.0], [-1.0, -1e-7], [1.0, -1.1e-7]]], [0])
    state, solved = found(margins)
    assert solved is True
    p = state.programme
    effect = 2.0**-53 * np.abs(p.D) @ np.abs(state.point()[0])[:, 0]
    assert state.demand(effect) is True
    W = state.point()[0][:, 0]
    exact = [
        sum(Fraction(float(d)) * Fraction(float(w)) for d, w in zip(row, W, strict=True))
        for row in p.D
    ]
    assert all(v >= Fraction(float(b)) for v, b in zip(exact, p.b, strict=True))
