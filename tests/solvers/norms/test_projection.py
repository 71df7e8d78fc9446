"""Exact projections onto the margins: the conditions of optimality, dependent rows, and narrow
cones.
"""

from __future__ import annotations

import numpy as np
import pytest
from instances import sphere

from attsvm.datasets import unit_sphere
from attsvm.margins import Margins, selection_margins
from attsvm.selection import optimal_tokens
from attsvm.solvers import max_margin
from attsvm.solvers.norms.projection import is_narrow, projected
from attsvm.solvers.programme.programme import equilibrate


def narrow() -> Margins:
    """70 rows in 16 dimensions, at most four of a sequence independent; the best margin of a unit
    weight is 9e-4.
    """
    data, head = unit_sphere(5, 15, 4, 9032)
    return selection_margins(data, optimal_tokens(data, head))


@pytest.mark.parametrize("margins", [sphere(4, 6, 20, 0), sphere(10, 5, 5, 3), narrow()])
@pytest.mark.parametrize("seed", range(5))
def test_a_projection_meets_the_conditions_of_its_programme(margins: Margins, seed: int) -> None:
    p = equilibrate(margins, None, None)
    rows, b = np.einsum("cd,ce->cde", p.D, p.Z[p.sequence]).reshape(p.m, -1), p.b
    rng = np.random.default_rng(seed)
    centre = rng.standard_normal((p.D.shape[1], p.Z.shape[1]))
    found = projected(p, centre, np.zeros(p.m))
    assert found is not None
    W, dual = found
    slack = rows @ W.reshape(-1) - b
    size = 1e-12 * max(1.0, float(np.linalg.norm(W)))
    assert slack.min() > -size
    assert dual.min() >= 0.0
    assert np.abs(dual * slack).max() <= size * dual.max(initial=1.0)
    # W - C is the pull of the multipliers, which may be large and cancel
    np.testing.assert_allclose(
        (W - centre).reshape(-1),
        dual @ rows,
        atol=1e-15 * float(np.abs(dual) @ np.abs(rows).max(axis=1)) + size,
    )


def test_narrow_cones_are_known_by_the_frobenius_solution() -> None:
    for margins, expected in ((sphere(6, 8, 10, 0), False), (narrow(), True)):
        p = equilibrate(margins, None, None)
        assert is_narrow(np.ldexp(max_margin(margins).W, -p.weight_exponent)) == expected
