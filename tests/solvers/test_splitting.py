"""Splitting: its energies, its projections, and programmes in every norm, hard and soft."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from instances import sphere

from attsvm.margins import Margins
from attsvm.norms import Norm, parse_norm
from attsvm.solvers import max_margin
from attsvm.solvers.energy import Energy
from attsvm.solvers.outcomes import Request
from attsvm.solvers.programme import equilibrate
from attsvm.solvers.splitting import Splitting, SplittingOptions, solve

HARD = ["nuc", "spec", "schatten:1.3", "schatten:3", "rows", "maxrow", "lp:1.1", "lp:1.75", "lp:10"]
SOFT = [*HARD, "l1", "linf"]
INTERPRETED = SplittingOptions(few_rows=0)


@pytest.mark.parametrize("name", SOFT)
@pytest.mark.parametrize("shape", [(5, 7), (7, 5)])
def test_proximal_points_are_those_of_the_norm(name: str, shape: tuple[int, int]) -> None:
    """Of the norm itself or, where its power is the energy, with the threshold that this means;
    from matrix to matrix, as singular vectors and roots are kept.
    """
    norm, rng = parse_norm(name), np.random.default_rng(0)
    X = rng.standard_normal(shape)
    energy = Energy(norm, soft=False)
    degree = energy.gauge.degree
    for t in (0.01, 0.4, 0.41, 1.5, 0.2):
        X = X + 0.1 * rng.standard_normal(shape)
        V = energy.nearest(X, t)
        size = float(norm.value(V))
        expected = norm.prox(X, t * size ** (degree - 1.0)) if size > 0.0 else 0.0 * X
        np.testing.assert_allclose(V, expected, atol=2e-13)
        assert energy.size(X) == pytest.approx(float(norm.value(X)), rel=1e-13)
        assert energy.size(X, dual=True) == pytest.approx(float(norm.dual_value(X)), rel=1e-13)


@pytest.mark.parametrize("name", SOFT)
def test_proximal_points_of_the_half_square(name: str) -> None:
    norm, X = parse_norm(name), np.random.default_rng(1).standard_normal((6, 4))

    class Plain(Norm):
        """The same norm without what compiled code knows of it."""

        value, dual_value, prox = norm.value, norm.dual_value, norm.prox
        name, steepest, subgradient = f"plain {norm.name}", norm.steepest, norm.subgradient

    for t in (0.05, 0.7, 4.0):
        V = Energy(norm, soft=True).nearest(X, t)
        np.testing.assert_allclose(V, norm.prox(X, t * float(norm.value(V))), atol=1e-12)
        np.testing.assert_allclose(V, Energy(Plain(), soft=True).nearest(X, t), atol=1e-12)


@pytest.mark.parametrize("margins", [sphere(6, 8, 10, 0), sphere(12, 6, 5, 1)])
@pytest.mark.parametrize("slack", [None, 0.5])
def test_exact_projections_meet_their_conditions(margins: Margins, slack: float | None) -> None:
    p = equilibrate(margins, slack)
    start = max_margin(margins, slack=slack)
    W, dual = np.ldexp(start.W, -p.weight_exponent), p.scaled_dual(start.dual)
    state = Splitting(p, Energy(parse_norm("nuc"), slack is not None), W, dual, epochs=0)
    C = W + 0.3 * np.random.default_rng(0).standard_normal(W.shape)
    near, lam = state.projection.nearest(C), state.projection.dual
    cap = p.cap * state.t
    room, free = p.values(near) - p.b, lam < cap * (1 - 1e-12)
    np.testing.assert_allclose(near, C + p.adjoint(lam), atol=1e-13)
    assert (lam >= 0.0).all()
    assert (lam <= cap * (1 + 1e-14)).all()
    assert room[free].min() >= -1e-12
    assert np.abs(room[(lam > 0.0) & free]).max(initial=0.0) <= 1e-12
    assert room[~free].max(initial=0.0) <= 1e-12


@pytest.mark.parametrize("name", HARD)
def test_compiled_and_interpreted_iterations_agree(name: str) -> None:
    margins, norm = sphere(8, 6, 7, 3), parse_norm(name)
    compiled = max_margin(margins, norm)
    interpreted = solve(margins, norm, Request(norm.tolerance, None, None, None), INTERPRETED)
    for found in (compiled, interpreted):
        assert found.status == "optimal"
        assert max(found.gap, found.violation) <= min(norm.tolerance, 4e-10)
        assert margins.rhs @ found.dual == pytest.approx(found.norm**2, rel=1e-6)
    assert interpreted.norm == pytest.approx(compiled.norm, rel=1e-9)


@pytest.mark.parametrize("name", SOFT)
@pytest.mark.parametrize("slack", [0.05, 1.0, 30.0])
def test_soft_margins_in_compiled_and_interpreted_iterations(name: str, slack: float) -> None:
    margins, norm = sphere(6, 6, 3, 2), parse_norm(name)
    compiled = max_margin(margins, norm, slack=slack)
    interpreted = solve(margins, norm, Request(norm.tolerance, slack, None, None), INTERPRETED)

    def objective(found):
        return 0.5 * found.norm**2 + slack * float(found.slacks.sum())

    assert compiled.status == interpreted.status == "optimal"
    assert (compiled.dual >= 0.0).all()
    assert (compiled.dual <= slack).all()
    assert objective(interpreted) == pytest.approx(objective(compiled), rel=2e-9)


@pytest.mark.parametrize("name", ["nuc", "lp:3", "rows"])
def test_rows_of_zeros_cost_their_slack(name: str) -> None:
    margins = sphere(6, 6, 3, 2)
    silent = margins.differences.copy()
    silent[4] = 0.0
    margins = replace(margins, differences=silent)
    assert max_margin(margins, name).status == "infeasible"
    found = max_margin(margins, name, slack=0.7)
    assert found.status == "optimal"
    assert found.slacks[4] == 1.0
    assert found.dual[4] == pytest.approx(0.7, rel=1e-12)


@pytest.mark.parametrize("name", ["nuc", "spec", "schatten:3", "lp:1.75", "maxrow"])
def test_a_warm_start_takes_fewer_iterations(name: str) -> None:
    margins = sphere(8, 6, 7, 3)
    first = max_margin(margins, name)
    near = replace(margins, rhs=margins.rhs * np.linspace(1.0, 1.0 + 1e-6, margins.m))
    cold, warm = max_margin(near, name), max_margin(near, name, warm_start=first)
    assert warm.status == cold.status == "optimal"
    assert warm.iterations < cold.iterations
    assert warm.norm == pytest.approx(cold.norm, rel=1e-9)


def test_the_time_limit_is_kept_between_iterations() -> None:
    found = max_margin(sphere(12, 16, 16, 0), "lp:200", max_seconds=1e-6)
    assert found.status in ("optimal", "inaccurate")
    assert math.isfinite(found.norm)
