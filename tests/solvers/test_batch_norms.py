"""Many small programmes of other norms in one call: each is proved, agrees with an independent
solver, and has the bits that it has alone.
"""

from __future__ import annotations

import itertools
import math

import cvxpy
import numpy as np
import pytest
from instances import cross, ragged, sphere, with_rhs, written_out

from attsvm.datasets.attention_data import AttentionData
from attsvm.margins import Margins, MarginsBatch, selection_margins
from attsvm.norms import Norm, parse_norm
from attsvm.solvers import compiled, max_margin, max_margin_batch

NORMS = ("nuc", "spec", "l1", "linf")


def entries(norm: Norm, W: np.ndarray, *, dual: bool = False) -> float:
    """The norm, or its dual, by NumPy alone."""
    if norm.name in ("nuc", "spec"):
        return float(np.linalg.norm(W, "nuc" if (norm.name == "nuc") != dual else 2))
    p = norm.p  # type: ignore[attr-defined]
    if dual:
        p = {1.0: math.inf, math.inf: 1.0}.get(p) or p / (p - 1.0)
    return float(np.linalg.norm(W.ravel(), p))


def proved_gap(margins: Margins, norm: Norm, W: np.ndarray, dual: np.ndarray) -> float:
    """The duality gap from the written-out rows."""
    A = written_out(margins)
    values, some = A @ W.ravel(), margins.rhs > 0.0
    assert (dual >= 0.0).all()
    scale = (values[some] / margins.rhs[some]).min()
    pulled = (A.T @ dual).reshape(margins.shape)
    lower = margins.rhs @ dual / entries(norm, pulled, dual=True)
    return 1.0 - lower * scale / entries(norm, W)


def least_norm(margins: Margins, name: str) -> float:
    """CLARABEL's optimum."""
    W = cvxpy.Variable(margins.shape)
    value = {
        "nuc": cvxpy.normNuc,
        "spec": cvxpy.sigma_max,
        "l1": lambda W: cvxpy.norm(cvxpy.vec(W, order="C"), 1),
        "linf": lambda W: cvxpy.norm(cvxpy.vec(W, order="C"), "inf"),
    }[name]
    limits = written_out(margins) @ cvxpy.vec(W, order="C") >= margins.rhs
    problem = cvxpy.Problem(cvxpy.Minimize(value(W)), [limits])
    return float(problem.solve(solver="CLARABEL"))


def degenerate() -> Margins:
    """Tokens twice, equal queries, and rows that ask for nothing."""
    rng = np.random.default_rng(5)
    X, Z = rng.standard_normal((4, 6, 8)), rng.standard_normal((4, 5))
    X[2, 5], X[1, 4], Z[3] = X[2, 0], X[1, 3], Z[1]
    margins = selection_margins(AttentionData(X, np.ones(4), Z), np.array([0, 0, 3, 0]))
    rhs = np.where(np.arange(margins.m) % 5 == 0, 0.0, 1.0 + np.arange(margins.m) % 3)
    return with_rhs(margins, rhs)


def mixture() -> list[Margins]:
    """Several shapes; feasible, contradictory, degenerate and with nothing to ask."""
    rng = np.random.default_rng(3)
    tied = cross(
        [[[1.0, 0.0], [0.0, 1.0]], [[0.0, 1.0], [1.0, 0.0]]], [[1.0, 0.0], [0.0, 2.0]], [0, 0]
    )
    one = sphere(6, 8, 10, 3)
    return [
        sphere(6, 8, 10, 0),
        sphere(6, 8, 2, 1),
        degenerate(),
        tied,
        with_rhs(one, np.zeros(one.m)),
        with_rhs(one, np.where(np.arange(one.m) % 3 == 0, 0.0, 1.0 + np.arange(one.m))),
        cross(
            [[[1.0, 0.0], [0.0, 1.0]], [[1.0, 0.0], [0.0, 1.0]]], [[1.0, 0.0], [0.0, 0.0]], [0, 1]
        ),
        ragged(rng, 5, 6, 5, 4, feasible=True),
        ragged(rng, 7, 9, 3, 2, feasible=False),
        selection_margins(AttentionData(np.ones((2, 1, 3)), np.ones(2)), np.zeros(2, int)),
        sphere(6, 8, 10, 1),
    ]


@pytest.mark.parametrize("name", NORMS)
def test_a_mixture_is_solved_as_each_alone_and_as_another_solver_does(name: str) -> None:
    programmes, norm = mixture(), parse_norm(name)
    batch = max_margin_batch(programmes, norm, tol=1e-9)
    for k, (margins, solution) in enumerate(zip(programmes, batch, strict=True)):
        alone = max_margin(margins, norm, tol=1e-9)
        assert solution.margins is margins
        for name_of in ("status", "norm", "gap", "violation", "solver", "message", "geometry"):
            assert getattr(solution, name_of) == getattr(alone, name_of), (k, name_of)
        for name_of in ("rank", "rank_bound", "unique"):
            assert getattr(solution, name_of) == getattr(alone, name_of), (k, name_of)
        for one, other in ((solution.W, alone.W), (solution.dual, alone.dual)):
            np.testing.assert_array_equal(one, other)
        np.testing.assert_array_equal(batch.W[k], solution.W)
        np.testing.assert_array_equal(batch.dual[batch.rows[k] : batch.rows[k + 1]], solution.dual)
        assert batch.gap[k] == solution.gap
        if solution.status == "optimal" and margins.rhs.any():
            assert proved_gap(margins, norm, solution.W, solution.dual) <= 1e-9
            assert solution.norm == pytest.approx(least_norm(margins, name), rel=1e-5)
    assert [s.status for s in batch].count("infeasible") == 3
    assert [s.status for s in batch].count("optimal") == 8


@pytest.mark.parametrize("name", NORMS)
def test_the_random_family_is_optimal(name: str) -> None:
    programmes = [sphere(6, 8, 10, seed) for seed in range(40)]
    batch = max_margin_batch(MarginsBatch.stack(programmes), name, tol=1e-9)
    assert batch.optimal.all()
    for k in range(0, 40, 9):
        part = batch.dual[batch.rows[k] : batch.rows[k + 1]]
        assert proved_gap(programmes[k], parse_norm(name), batch.W[k], part) <= 1e-9
        assert (part == 0.0).any()  # rows that are not active have no multiplier


@pytest.mark.parametrize("name", ["nuc", "spec", "linf"])
def test_the_neighbours_of_a_programme_leave_its_bits_alone(name: str) -> None:
    programmes = [sphere(6, 8, 10, seed) for seed in range(12)]
    forth = max_margin_batch(programmes, name)
    back = max_margin_batch([sphere(6, 8, 2, 1), *reversed(programmes[:5])], name)
    for k in range(5):
        np.testing.assert_array_equal(forth.W[k], back.W[5 - k])
        assert forth.gap[k] == back.gap[5 - k]


def test_shares_are_consecutive_and_cover_everything() -> None:
    rows = np.array([0, 5, 5, 400, 401, 1000])
    shares = compiled.balanced_ranges(rows)
    assert shares[0][0] == 0
    assert shares[-1][1] == 5
    assert all(one[1] == other[0] for one, other in itertools.pairwise(shares))
    assert compiled.balanced_ranges(np.array([0, 7])) == [(0, 1)]
