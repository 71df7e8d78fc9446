"""Interior points without factorisations: the systems that they solve, where the path ends, and
that programmes whose systems are too large are solved this way.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from streamed import Selections

from attsvm import AttentionData, Margins, max_margin, selection_margins
from attsvm.solvers import frobenius, interior_large
from attsvm.solvers.programme import equilibrate, explicit_rows


def written(blocks: Selections) -> Margins:
    data = AttentionData(blocks.X, np.ones(len(blocks.X)), blocks.Z, blocks.mask)
    return selection_margins(data, blocks.selected)


@pytest.mark.parametrize("crowded", [0.0, 100.0])
def test_a_step_solves_its_equations(crowded: float, monkeypatch) -> None:
    monkeypatch.setattr(interior_large, "_CROWDED", crowded)
    monkeypatch.setattr(interior_large, "_SHARE", 1e-12)
    monkeypatch.setattr(interior_large, "_SILENT", 0.0)
    p = equilibrate(written(Selections(40, 6, 5, 0)), None)
    rng = np.random.default_rng(0)
    lam, s, missing = 10.0 ** rng.uniform(-2, 1, (3, p.m))
    left, wanted = rng.standard_normal((5, 5)), rng.standard_normal(p.m)
    system = interior_large._System(p, lam, s, missing, left, 1e-11)
    assert system._few == (crowded > 0.0)
    for _ in range(2):  # again from what was found
        step, ds, dual_step = system.step(wanted, 1.0)
        A = explicit_rows(p, np.arange(p.m))
        np.testing.assert_allclose(ds, A @ step.ravel() + missing, atol=1e-8)
        np.testing.assert_allclose(step.ravel(), A.T @ dual_step + left.ravel(), atol=1e-8)
        np.testing.assert_allclose(s * dual_step + lam * ds, wanted, atol=1e-8)
        wanted = wanted + 0.1


def test_the_path_ends_at_the_solution() -> None:
    margins = written(Selections(120, 12, 6, 1))
    expected = max_margin(margins)
    p = equilibrate(margins, None)
    errors = []
    for W, dual in interior_large.path(p, np.zeros(p.m), math.inf):
        W, dual = p.restored(W, dual)
        assert (dual >= 0.0).all()
        lower = dual.sum() / max(np.linalg.norm(margins.adjoint(dual)), 1e-300)
        upper = np.linalg.norm(W) / max(margins(W).min(), 1e-300)
        assert lower <= expected.norm * (1.0 + 1e-12)  # each is a bound, wherever the path is
        assert upper >= expected.norm * (1.0 - 1e-12)
        errors.append(1.0 - lower / upper)
        if errors[-1] <= 1e-8:
            break
    assert errors[-1] <= 1e-8
    assert len(errors) <= 40


def test_programmes_of_many_positive_multipliers_are_solved_this_way(monkeypatch) -> None:
    blocks = Selections(400, 20, 12, 2, each=10)
    expected = max_margin(written(blocks))
    monkeypatch.setattr(frobenius, "LARGEST_SYSTEM", 20)
    monkeypatch.setattr("attsvm.solvers.pivoting.LARGEST_SYSTEM", 20)
    found = max_margin(Margins.from_blocks(blocks, blocks.count), tol=1e-6)
    assert len(expected.support) > 40
    assert found.solver == "blocks, interior points"
    assert found.status == "optimal"
    assert found.gap <= 1e-6
    assert found.norm == pytest.approx(expected.norm, rel=1e-6)
