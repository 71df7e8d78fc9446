"""Hard margins in l1 and linf: small programmes, working sets, equalities, limits, batches."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from instances import sphere, with_rhs, written_out

from attsvm.margins import Margins
from attsvm.solvers import max_margin, polyhedral

NORMS = ("l1", "linf")


def proved_gap(margins: Margins, name: str, W: np.ndarray, dual: np.ndarray) -> float:
    """From the rows written out; multipliers of equalities may have any sign."""
    A, some = written_out(margins), margins.rhs > 0.0
    assert (dual[~margins.equalities] >= 0.0).all()
    norms = (1, np.inf) if name == "l1" else (np.inf, 1)
    scale = ((A @ W.ravel())[some] / margins.rhs[some]).min()
    bound = margins.rhs @ dual / np.linalg.norm(dual @ A, norms[1])
    return float(1.0 - bound * scale / np.linalg.norm(W.ravel(), norms[0]))


def crowded(seed: int, n: int, per: int, d: int) -> Margins:
    """Many rows on few unknowns, which a teacher meets: the cone of weights is narrow."""
    rng = np.random.default_rng(seed)
    D, Z = rng.standard_normal((n * per, d)), rng.standard_normal((n, d))
    values = np.einsum("ca,ca->c", D, np.repeat(Z @ rng.standard_normal((d, d)), per, axis=0))
    D *= np.sign(values)[:, None]
    zeros = np.zeros(n * per, int)
    return Margins(D, Z, np.arange(n + 1) * per, np.ones(n * per), zeros, zeros[:n])


@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize("shape", [(60, 15, 5), (60, 15, 8), (90, 20, 10)])
@pytest.mark.parametrize("seed", range(4))
def test_narrow_cones(name: str, shape: tuple[int, int, int], seed: int) -> None:
    margins = crowded(seed, *shape)
    solution = max_margin(margins, name, tol=1e-9)
    assert solution.status == "optimal", solution.message
    assert solution.solver == polyhedral.SOLVER
    assert proved_gap(margins, name, solution.W, solution.dual) <= 1e-9
    assert max(solution.kkt()) <= 1e-8


@pytest.mark.parametrize("name", NORMS)
def test_rows_that_ask_for_nothing(name: str) -> None:
    for margins in (sphere(6, 8, 10, 3), sphere(30, 16, 20, 3)):
        rhs = margins.rhs.copy()
        rhs[::3] = 0.0
        solution = max_margin(with_rhs(margins, rhs), name)
        assert solution.status == "optimal"
        assert solution.kkt().stationarity <= 1e-9


@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize("size", [(8, 8, 10), (30, 14, 24)])
def test_equalities_keep_rows_of_free_sign(name: str, size: tuple[int, int, int]) -> None:
    plain = sphere(*size, 2)
    equality = np.arange(plain.m) % 11 == 0
    rhs = np.where(equality, np.where(np.arange(plain.m) % 2 == 0, 0.0, -0.25), 1.0)
    margins = replace(plain, equality=equality, rhs=rhs)
    solution = max_margin(margins, name, tol=1e-9)
    assert solution.status == "optimal", solution.message
    missed = (written_out(margins) @ solution.W.ravel() - rhs)[equality]
    assert np.abs(missed).max() <= 1e-9
    assert proved_gap(margins, name, solution.W, solution.dual) <= 1e-8
    assert (solution.dual[equality] < 0.0).any()


@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize(("equalities", "others"), [(1, 0), (3, 0), (2, 4)])
def test_only_equalities_ask_for_anything(name: str, equalities: int, others: int) -> None:
    plain = sphere(equalities + others, 2, 6, 7)
    equality = np.arange(plain.m) < equalities
    margins = replace(plain, equality=equality, rhs=np.where(equality, 1.0 + plain.sequence, 0.0))
    solution = max_margin(margins, name)
    assert solution.status == "optimal", solution.message
    missed = written_out(margins) @ solution.W.ravel() - margins.rhs
    assert np.abs(missed[equality]).max() <= 1e-9
    assert missed.min() >= -1e-9
    assert proved_gap(margins, name, solution.W, solution.dual) <= 1e-8


@pytest.mark.parametrize("name", NORMS)
def test_a_warm_start_at_the_solution_solves_nothing(name: str) -> None:
    margins = sphere(30, 14, 24, 1)
    cold = max_margin(margins, name)
    warm = max_margin(margins, name, warm_start=cold)
    assert warm.status == "optimal"
    assert warm.iterations == 0 < cold.iterations
    np.testing.assert_allclose(warm.W, cold.W, rtol=0, atol=1e-12 * np.abs(cold.W).max())


@pytest.mark.parametrize("name", NORMS)
def test_no_time_gives_certified_figures_and_more_time_the_solution(name: str) -> None:
    margins = sphere(40, 16, 32, 0)
    short = max_margin(margins, name, max_seconds=1e-9)
    assert short.status == "inaccurate"
    assert short.out_of_time
    assert 1e-9 < short.gap <= 1.0
    assert max_margin(margins, name, max_seconds=1e3).gap <= 1e-12


@pytest.mark.parametrize("name", NORMS)
def test_contradictions_are_proved(name: str) -> None:
    for margins in (sphere(6, 8, 2, 1), sphere(60, 16, 3, 1)):
        solution = max_margin(margins, name)
        assert solution.status == "infeasible"
        assert solution.farkas_residual() <= 1e-12
