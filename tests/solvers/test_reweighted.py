"""Newton's method for strictly convex gauges: derivatives in extended precision, programmes that
splitting leaves to it, answers of others, and near-equalities that the judge drew.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import extended
import mpmath
import numpy as np
import peer
import pytest
from instances import sphere
from judge.run import one

from attsvm.margins import Margins
from attsvm.norms import Lp, Norm, Schatten, parse_norm
from attsvm.norms.lifts import Lifted
from attsvm.solvers import MarginSolution, max_margin, reweighted, splitting
from attsvm.solvers.iterate import Iterate, Stop
from attsvm.solvers.outcomes import Request
from attsvm.solvers.programme import equilibrate
from attsvm.solvers.proofs import certify_hard
from attsvm.solvers.splitting import SplittingOptions

HARD = ["lp:1.1", "lp:1.75", "lp:2.5", "lp:10", "schatten:1.5", "schatten:3"]


# Splitting ends where it has hardly begun.
BRIEF = SplittingOptions(compiled_brief=5, attempts=(5,))


def solve_without_splitting(
    margins: Margins, name: str, slack: float | None = None
) -> MarginSolution:
    norm = parse_norm(name)
    request = Request(norm.tolerance, slack, None, None)
    return replace(splitting.solve(margins, norm, request, BRIEF), geometry=norm)


def half_square(norm: Any, X: Any) -> Any:
    """Of a matrix of mpmath."""
    sizes = [abs(x) for x in X]
    if isinstance(norm, Schatten):
        sizes = list(mpmath.svd_r(X, compute_uv=False))
    p = mpmath.mpf(norm.p)
    return mpmath.fsum(s**p for s in sizes) ** (2 / p) / 2


@pytest.mark.parametrize("norm", [Lp(2.0), Lp(3.0), Lp(7.5), Schatten(2.5), Schatten(6.0)])
@pytest.mark.parametrize("shape", [(2, 3), (3, 2), (1, 2), (2, 2)])
def test_a_frame_holds_gradient_and_hessian(norm: Any, shape: tuple[int, int]) -> None:
    """Against differences of the half square in fifty digits."""
    rng = np.random.default_rng(0)
    X, h = rng.standard_normal(shape), mpmath.mpf("1e-15")
    at = reweighted.hessian_frame(norm, X)
    k = X.size
    units = np.eye(k)
    with mpmath.workdps(50):

        def f(*steps: Any) -> Any:
            moved = mpmath.matrix(X.tolist())
            for unit, step in steps:
                moved = moved + step * mpmath.matrix(at.back(unit).tolist())
            return half_square(norm, moved)

        slopes = [float((f((u, h)) - f((u, -h))) / (2 * h)) for u in units]
        bends = np.array(
            [
                [float((f((u, h), (v, h)) - f((u, h)) - f((v, h)) + f()) / h**2) for v in units]
                for u in units
            ]
        )
    hessian = np.diag(at.curvature) + at.share * np.outer(at.gradient, at.gradient) / at.size**2
    np.testing.assert_allclose(at.gradient, slopes, rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(hessian, bends, rtol=1e-11, atol=1e-11)
    others = rng.standard_normal((5, *shape))
    turned = at.turn(others.copy())
    np.testing.assert_allclose([at.back(v) for v in turned], others, atol=1e-14)
    np.testing.assert_allclose(
        turned @ turned.T, np.einsum("iab,jab->ij", others, others), atol=1e-13
    )
    np.testing.assert_allclose(at.point, at.turn(X[None].copy())[0], atol=1e-14)


def soft_gap(solution: MarginSolution) -> float:
    """Between the objectives, in extended precision."""
    margins, C = solution.margins, solution.slack
    A, b, lam = extended.rows(margins), margins.rhs, solution.dual
    assert C is not None
    assert (lam >= 0.0).all()
    assert (lam <= C).all()
    missed = np.maximum(b - np.einsum("cab,ab->c", A, solution.W), 0)
    primal = extended.value(solution.geometry, solution.W) ** 2 / 2 + C * missed.sum()
    pull = extended.dual_value(solution.geometry, np.einsum("c,cab->ab", lam, A))
    return float(1 - (b @ lam - pull**2 / 2) / primal)


@pytest.mark.parametrize("name", [*HARD, "lp:20", "schatten:10"])
@pytest.mark.parametrize("slack", [None, 1.0])
@pytest.mark.parametrize("margins", [sphere(6, 8, 10, 0), sphere(9, 6, 4, 1)])
def test_programmes_are_solved_without_splitting(
    margins: Margins, slack: float | None, name: str
) -> None:
    found = solve_without_splitting(margins, name, slack)
    assert (found.status, found.solver) == ("optimal", "reweighted Newton")
    if slack is None:
        extended.assert_proved(found)
    else:
        assert soft_gap(found) <= 1e-9


@pytest.mark.parametrize("name", ["lp:1.5", "lp:1.75", "lp:3", "lp:8"])
def test_least_norms_are_those_of_clarabel(name: str) -> None:
    margins, norm = sphere(5, 7, 6, 4), parse_norm(name)
    found = solve_without_splitting(margins, name)
    assert (found.status, found.solver) == ("optimal", "reweighted Newton")
    assert found.norm == pytest.approx(peer.least(margins, norm, found.norm), rel=1e-7)


@pytest.mark.parametrize("name", HARD)
def test_steps_converge_fast(name: str) -> None:
    """At the end each step squares what is missing."""
    margins, norm = sphere(6, 8, 10, 0), parse_norm(name)
    assert isinstance(norm, Lifted)
    p, start = equilibrate(margins, None), max_margin(margins)
    size = float(norm.value(np.ldexp(start.W, -p.weight_exponent)))
    errors: list[float] = []

    def error(norm: Norm, W: Any, dual: Any) -> float:
        return certify_hard(margins, norm, *p.restored(W * size, dual * size)).error

    def consider(W: Any, dual: Any) -> float:
        errors.append(error(norm, W, dual))
        return errors[-1]

    iterate = Iterate(
        np.ldexp(start.W, -p.weight_exponent) / size, p.scaled_dual(start.dual) / size
    )
    unit = replace(p, b=p.b / size)
    reweighted.finish_by_reweighting(unit, norm, iterate, error, consider, Stop(3e-10, math.inf))
    assert len(errors) <= 16
    assert errors[-1] <= 3e-10
    near = [(a, b) for a, b in itertools.pairwise(errors) if 1e-5 < a < 1e-2]
    assert near
    assert all(b <= max(0.3 * a, 100.0 * a * a) for a, b in near)


@pytest.mark.parametrize("name", [*HARD, "lp:1.5", "lp:3"])
@pytest.mark.parametrize("slack", [None, 0.5])
def test_what_splitting_answers_is_left_to_it(name: str, slack: float | None) -> None:
    for margins in (sphere(6, 8, 10, 1), sphere(12, 10, 8, 2)):
        found = max_margin(margins, name, slack=slack)
        assert (found.status, found.solver) == ("optimal", "splitting")


@pytest.mark.parametrize("name", ["lp:1.5", "lp:3", "schatten:1.5", "schatten:3"])
def test_rows_of_zeros_cost_their_slack(name: str) -> None:
    margins = sphere(6, 6, 5, 2)
    silent = margins.differences.copy()
    silent[[4, 9]] = 0.0
    queries = margins.queries.copy()
    queries[-1] = 0.0
    margins = replace(margins, differences=silent, queries=queries)
    assert max_margin(margins, name).status == "infeasible"
    found = solve_without_splitting(margins, name, 0.7)
    assert (found.status, found.solver) == ("optimal", "reweighted Newton")
    still = np.append([4, 9], np.flatnonzero(margins.sequence == 5))
    np.testing.assert_array_equal(found.slacks[still], 1.0)
    np.testing.assert_allclose(found.dual[still], 0.7, rtol=1e-12)
    assert soft_gap(found) <= 1e-9


@pytest.mark.parametrize("norm", [Lp(1.5), Lp(3.0), Schatten(1.5), Schatten(3.0)])
@pytest.mark.parametrize("slack", [None, 1.0])
def test_nothing_is_made_of_points_without_a_direction(norm: Any, slack: float | None) -> None:
    p = equilibrate(sphere(4, 5, 4, 0), slack)

    def consider(W: Any, dual: Any) -> float:
        raise AssertionError("there was nothing to consider")

    def error(norm: Any, W: Any, dual: Any) -> float:
        raise AssertionError("there was nothing to judge")

    for W in (np.zeros((4, 4)), np.full((4, 4), np.inf)):
        start = W, np.full(p.m, W[0, 0])
        with np.errstate(all="ignore"):
            reweighted.finish_by_reweighting(
                p, norm, Iterate(*start), error, consider, Stop(1e-12, math.inf)
            )


@pytest.mark.parametrize("norm", [Lp(1.5), Lp(3.0), Schatten(3.0)])
def test_steps_end_with_the_time_or_without_progress(norm: Any) -> None:
    margins = sphere(6, 8, 10, 0)
    p = equilibrate(margins, None)
    start = max_margin(margins)
    point = Iterate(np.ldexp(start.W, -p.weight_exponent), p.scaled_dual(start.dual))
    considered: list[float] = []

    def consider(W: Any, dual: Any) -> float:
        considered.append(1.0)
        return 1.0

    def error(norm: Any, W: Any, dual: Any) -> float:
        raise AssertionError("an exponent of three is the first one tried")

    reweighted.finish_by_reweighting(p, norm, point, error, consider, Stop(1e-12, -math.inf))
    assert len(considered) == 1
    options = reweighted.ReweightedOptions(idle=8, least_curvatures=(1e-6,), least_factor=4.0)
    reweighted.finish_by_reweighting(
        p, norm, point, error, consider, Stop(1e-12, math.inf), options
    )
    assert 1 < len(considered) <= 12


def test_norms_it_is_meant_for() -> None:
    meant = ["lp:1.001", "lp:1.75", "lp:20", "lp:1000", "schatten:1.1", "schatten:10"]
    others = ["l1", "linf", "nuc", "spec", "rows", "maxrow"]
    for name in meant + others:
        assert reweighted.is_curved(parse_norm(name)) is (name in meant)


@pytest.mark.parametrize(
    ("kind", "norm", "seed"),
    [
        ("near-equalities", "lp:1.5", 70000200),
        ("near-equalities", "lp:1.75", 70001631),
        ("near-equalities", "lp:2.5", 70000956),
        ("near-equalities", "lp:3", 70001685),
        ("near-equalities", "schatten:1.5", 70000794),
        ("soft", "lp:2.5", 70000607),
        ("soft-hostile", "lp:1.75", 70000932),
        ("soft-hostile", "lp:10", 70002417),
        ("soft-hostile", "lp:10", 911000167),
        ("soft-hostile", "schatten:3", 70001175),
    ],
)
def test_programmes_on_which_splitting_crawls(kind: str, norm: str, seed: int) -> None:
    """Judged in exact arithmetic, in tenths of a second where splitting alone takes many."""
    line = one(kind, norm, seed)
    assert line.status == "optimal", line.message
    assert line.seconds < 2.0
    assert not line.wrong
    assert not line.misreported
