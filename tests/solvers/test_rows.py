"""Working sets: the solution of all rows, certified on all rows, at the price of few."""

from __future__ import annotations

import numpy as np
import pytest

from attsvm import Frobenius, Lp, Nuclear, Schatten, Spectral, max_margin, pair_margins
from attsvm.margins import Margins, PairMargins


def crowded(T: int, d: int, seed: int) -> PairMargins:
    """Feasible: the selections are those of the identity."""
    rng = np.random.default_rng(seed)
    return pair_margins(rng.normal(size=(T, d)), rng.normal(size=(T, d)))


@pytest.mark.parametrize("norm", [Frobenius(), Nuclear(), Spectral(), Lp(1.5), Schatten(3)])
def test_the_solution_of_all_rows(norm) -> None:
    margins = crowded(80, 4, 0)
    found = max_margin(margins, norm)
    assert found.status == "optimal"
    assert found.solver.startswith("working sets")
    written = margins.restricted(np.arange(margins.m))
    assert found.gap <= found.tol
    assert (written(found.W) >= 1 - 1e-9).all()
    some = np.union1d(np.flatnonzero(found.dual), np.arange(0, written.m, 40))
    ordinary = max_margin(written.restricted(some), norm)  # few enough for all rows together
    assert not ordinary.solver.startswith("working sets")
    assert ordinary.norm == pytest.approx(found.norm, rel=2e-6)


def test_rows_of_an_ordinary_programme_too() -> None:
    written = crowded(340, 3, 1)
    ordinary = written.restricted(np.arange(written.m))
    assert type(ordinary) is Margins
    assert max_margin(ordinary).solver.startswith("working sets")
    assert max_margin(ordinary).norm == pytest.approx(max_margin(written).norm, rel=1e-9)


def test_a_contradiction_names_rows_of_the_whole_programme() -> None:
    rng = np.random.default_rng(3)
    keys, queries = rng.normal(size=(90, 3)), rng.normal(size=(90, 3))
    margins = pair_margins(keys, queries, rng.integers(0, np.arange(1, 91)))
    found = max_margin(margins)
    assert found.status == "infeasible"
    assert len(found.dual) == margins.m
    lam = found.dual
    assert (lam >= 0).all()
    size = np.abs(margins.restricted(np.flatnonzero(lam)).differences).max()
    assert np.linalg.norm(margins.adjoint(lam)) <= 1e-9 * lam.sum() * size
    assert len(found.conflict()) <= 10


# where margins contradict each other, half of all rows are missed, and each is in a working set
@pytest.mark.parametrize("contradictory", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_soft_margins_over_all_rows(contradictory: bool) -> None:
    margins = crowded(65, 3, 4)
    if contradictory:
        rng = np.random.default_rng(4)
        keys, queries = rng.normal(size=(70, 3)), rng.normal(size=(70, 3))
        margins = pair_margins(keys, queries, rng.integers(0, np.arange(1, 71)))
    found = max_margin(margins, slack=0.01)
    assert found.status == "optimal"
    assert found.solver.startswith("working sets")
    values = margins(found.W)
    missed = np.count_nonzero(values < 1 - 1e-6)
    assert 100 < missed < margins.m - 100  # neither the hard margin nor the sum of all rows
    primal = 0.5 * np.sum(found.W**2) + 0.01 * np.maximum(1 - values, 0).sum()
    bound = found.dual.sum() - 0.5 * np.sum(margins.adjoint(found.dual) ** 2)
    assert (found.dual >= 0).all()
    assert (found.dual <= 0.01 * (1 + 1e-12)).all()
    assert primal - bound <= 1e-8 * primal
