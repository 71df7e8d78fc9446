"""The derived cone of the local theorems, and the local paths inside it."""

from __future__ import annotations

import numpy as np
import pytest

from attsvm.datasets import unit_sphere
from attsvm.margins import selection_margins
from attsvm.selection import optimal_tokens
from attsvm.solvers import max_margin
from attsvm_papers.mmts import local_optima
from attsvm_papers.mmts.local_optima import local_path
from attsvm_papers.tfsvm.local_cones import inside, opening, surplus


def test_margins_move_by_no_more_than_the_cone_allows() -> None:
    data, v = unit_sphere(3, 6, 5, 0)
    solution = max_margin(selection_margins(data, optimal_tokens(data, v)))
    margins = solution.margins
    far = np.delete(margins(solution.W), solution.support)
    assert surplus(solution) == pytest.approx(far.min() - 1.0)
    for movement in (0.01, 0.1, surplus(solution) / 3.0):
        moved = inside(solution, opening(solution, movement), 1.0, 200, np.random.default_rng(1))
        most = max(np.abs(margins(W) - margins(solution.W)).max() for W in moved)
        assert 0.1 * movement < most <= movement * (1 + 1e-12)


@pytest.mark.parametrize("bound", ["nuc", "lp:3"])
def test_local_paths_turn_to_local_directions(bound: str, monkeypatch) -> None:
    monkeypatch.setattr(local_optima, "PATH_SIZES", (300.0, 3000.0))
    found = local_path(bound, [0])
    assert len(found["seed"]) >= 1
    early, late = found["local_gap"].T
    # gaps fall as 1 / R^2; the next order is 1 / R of that, about a percent
    np.testing.assert_allclose(late / early, 0.01, rtol=0.03)
