"""Exact solutions near computed ones: programmes with a known solution, an extended-precision
Newton iteration, and what is refused.
"""

from __future__ import annotations

import mpmath
import numpy as np
import pytest
from attsvm.solvers.proofs.isolated import isolated_solution
from instances import sphere

from attsvm.geometry import Nuclear
from attsvm.margins import Margins
from attsvm.solvers import max_margin
from attsvm.solvers.facts import rank_interval, singular_values
from attsvm.solvers.programme.programme import equilibrate


def frame(small: float) -> Margins:
    r"""Rows :math:`v_cv_c^\top` of three vectors at 120 degrees, which sum to a multiple of the
    identity: solution ``diag(1, small)``.

    The rows determine symmetric matrices, so it is the only one.
    """
    angles = 2.0 * np.pi * np.arange(3) / 3.0 + 0.1
    V = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    sides = V**2 @ np.array([1.0, small])
    return Margins(
        V, V, np.arange(4), sides, np.ones(3, dtype=np.int64), np.zeros(3, dtype=np.int64)
    )


@pytest.mark.parametrize(
    ("small", "rank"), [(0.5, 2), (1.001e-3, 2), (0.999e-3, 1), (1e-4, 1), (1e-6, 1)]
)
def test_the_rank_of_a_known_solution(small: float, rank: int) -> None:
    solution = max_margin(frame(small), Nuclear())
    assert solution.rank == solution.rank_bound == solution.rank_proved == rank
    assert solution.unique is True
    np.testing.assert_allclose(solution.W, np.diag([1.0, small]), atol=1e-7)


@pytest.mark.parametrize("offset", [0.0, 1e-7, 1e-6])
def test_the_known_solution_lies_within_the_radius(offset: float) -> None:
    margins = frame(1e-2)
    p = equilibrate(margins, None)
    near = np.diag([1.0, 1e-2]) + offset * np.array([[1.0, -2.0], [3.0, -1.0]])
    found = isolated_solution(
        p, np.ldexp(near, -p.weight_exponent), np.array([1.0, 1.0 + offset, 1.0 - offset])
    )
    assert found is not None
    W, _, radius = found
    assert radius <= 1e-12  # rounding of the sides times a condition number of some 1e2
    assert np.linalg.norm(np.ldexp(W, p.weight_exponent) - np.diag([1.0, 1e-2])) <= np.ldexp(
        radius, p.weight_exponent
    )


@pytest.mark.parametrize(
    "instance", [(5, 15, 4, 7), (5, 15, 4, 48), (5, 15, 4, 75), (5, 5, 20, 43), (15, 5, 5, 62)]
)
def test_singular_values_near_the_threshold(instance: tuple[int, int, int, int]) -> None:
    """Instances of E2.4 whose gap, amplified by their conditioning, leaves the rank open."""
    solution = max_margin(sphere(*instance), Nuclear(), tol=1e-9)
    assert solution.status == "optimal"
    assert solution.rank == solution.rank_bound == solution.rank_proved
    assert solution.gap <= 1e-9


def test_stationarity_holds_in_extended_precision() -> None:
    margins = sphere(5, 5, 3, 8)
    solution = max_margin(margins, Nuclear(), tol=1e-9)
    p = equilibrate(margins, None)
    found = isolated_solution(
        p, np.ldexp(solution.W, -p.weight_exponent), p.scaled_dual(solution.dual)
    )
    assert found is not None
    W, radius = (
        np.ldexp(found.W, p.weight_exponent),
        float(np.ldexp(found.radius, p.weight_exponent)),
    )
    rows = np.flatnonzero(solution.dual > 1e-6 * solution.dual.max())
    with mpmath.workdps(40):
        for c in rows.tolist():
            D, Z = (
                mpmath.matrix(margins.differences[c]),
                mpmath.matrix(margins.queries[margins.sequence[c]]),
            )
            missed = abs((D.T * mpmath.matrix(W) * Z)[0] - margins.rhs[c])
            assert missed <= radius * mpmath.norm(D) * mpmath.norm(Z)
    assert np.linalg.norm(W - solution.W) <= 1e-3 * np.linalg.norm(W)
    assert 0.0 < radius <= 1e-5 * np.linalg.norm(W)


def test_nothing_is_proved_where_solutions_are_many() -> None:
    # every [[1, c], [c, 1]] with |c| <= 1 has nuclear norm 2
    margins = Margins(
        np.eye(2),
        np.eye(2),
        np.array([0, 1, 2]),
        np.ones(2),
        np.ones(2, dtype=np.int64),
        np.zeros(2, dtype=np.int64),
    )
    p = equilibrate(margins, None)
    assert isolated_solution(p, np.ldexp(np.eye(2), -p.weight_exponent), np.ones(2)) is None
    solution = max_margin(margins, Nuclear(), tol=1e-9)
    assert solution.rank_proved is None
    assert solution.unique is False


def test_nothing_is_proved_far_away_or_of_other_weights() -> None:
    margins = frame(0.5)
    p = equilibrate(margins, None)
    rng = np.random.default_rng(0)
    for _ in range(20):
        found = isolated_solution(p, rng.standard_normal((2, 2)), rng.random(3))
        if found is not None:  # Newton steps may lead to the solution, and to nothing else
            np.testing.assert_allclose(
                np.ldexp(found.W, p.weight_exponent), np.diag([1.0, 0.5]), atol=1e-12
            )
    loose = np.array([1.0, 0.0, 0.0])  # an optimum of other rows
    assert (
        isolated_solution(
            p,
            np.ldexp(np.outer(margins.differences[0], margins.queries[0]), -p.weight_exponent),
            loose,
        )
        is None
    )


def test_ranks_of_an_interval() -> None:
    W = np.diag([1.0, 2e-3, 9e-4])
    values = singular_values(W)
    assert rank_interval(values, 0.0) == (2, 2)
    assert rank_interval(values, 2e-4) == (2, 3)
    assert rank_interval(values, 2e-3) == (1, 3)
    assert rank_interval(values, np.inf) == (0, 3)
