"""Nuclear, spectral and Schatten programmes: proofs recomputed, peers, invariances, published
numbers, infeasible and relaxed rows.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from instances import cross, ragged, sphere, with_rhs, written_out

from attsvm.datasets import unit_sphere
from attsvm.geometry import Frobenius, Norm, Nuclear, Schatten, Spectral
from attsvm.margins import Margins, selection_margins
from attsvm.selection import optimal_tokens
from attsvm.solvers import MarginSolution, max_margin
from attsvm.solvers.programme import equilibrate, reduce

EXPONENTS = [1.0, 1.1, 1.5, 3.0, 10.0, math.inf]

X1 = [[-0.981497, 0.186395], [-1.135572, -0.049839], [-1.456831, 0.114505]]
X2 = [[0.691717, -0.168916], [0.732313, -0.017475], [0.941347, -0.289691]]
E21 = cross([X1, X2], [[0.845011, 0.534748], [-0.636264, -0.771471]], [0, 2])
V1 = [
    [1.0, 0.5],
    [-0.189725, -0.798354],
    [-0.797696, 0.305650],
    [-0.619805, -0.016822],
    [-1.172423, 0.246827],
]
V2 = [
    [1.0, -0.5],
    [-0.757443, 0.102617],
    [-0.830786, 0.676377],
    [-0.813182, 0.006708],
    [-0.613163, -0.054622],
]
E22 = cross([V1, V2], [[-0.539129, -0.842223], [0.952552, 0.304376]], [0, 0])


def published(n: int, T: int, d: int, seed: int) -> Margins:
    data, head = unit_sphere(n, T, d, seed)
    return selection_margins(data, optimal_tokens(data, head))


def singular(W: np.ndarray) -> np.ndarray:
    return np.linalg.svd(W, compute_uv=False)


def schatten(W: np.ndarray, p: float) -> float:
    values = singular(W)
    return float(values[0] * np.linalg.norm(values / values[0], p))


def assert_proved(s: MarginSolution, p: float, tol: float, rounding: float = 1e-13) -> None:
    """Gap and violation recomputed from written-out rows and singular values, the gap to
    ``rounding``.
    """
    assert s.status == "optimal"
    rows = written_out(s.margins)
    assert (s.margins.rhs - rows @ s.W.reshape(-1)).max() <= tol
    assert s.dual.min() >= 0.0
    q = 1.0 if math.isinf(p) else math.inf if p == 1.0 else p / (p - 1.0)
    lower = s.margins.rhs @ s.dual / schatten((s.dual @ rows).reshape(s.W.shape), q)
    assert s.norm == pytest.approx(schatten(s.W, p), rel=1e-12)
    assert lower >= s.norm * (1.0 - tol)
    assert s.gap == pytest.approx(max(0.0, 1.0 - lower / s.norm), abs=rounding)


@pytest.mark.parametrize("p", EXPONENTS)
@pytest.mark.parametrize("shape", [(6, 8, 10), (20, 16, 32)])
def test_gap_of_the_published_family_is_proved(p: float, shape: tuple[int, int, int]) -> None:
    for seed in range(2):
        assert_proved(max_margin(sphere(*shape, seed), Schatten(p), tol=1e-9), p, 1e-9)


@pytest.mark.parametrize("p", EXPONENTS)
@pytest.mark.parametrize(("instance", "size"), [((15, 5, 4, 5014), 2e4), ((5, 15, 4, 9032), 1e3)])
def test_a_cone_of_weights_that_is_almost_empty(
    p: float, instance: tuple[int, int, int, int], size: float
) -> None:
    # The best margin of a unit weight is 2.5e-5 and 9e-4: rows of size one cancel to that, which
    # leaves eleven digits of gap and violation.
    s = max_margin(published(*instance), Schatten(p), tol=1e-9)
    assert s.norm > size
    assert_proved(s, p, 1e-9, rounding=1e-11)


def test_nuclear_optimality_conditions() -> None:
    s = max_margin(sphere(20, 16, 32, 0), Nuclear(), tol=1e-9)
    M = s.margins.adjoint(s.dual)
    M /= np.linalg.norm(M, 2)
    U, sigma, Vt = np.linalg.svd(s.W)
    r = int((sigma > 1e-6 * sigma[0]).sum())
    assert r == s.rank == s.rank_bound == 7
    U, Vt = U[:, :r], Vt[:r]
    N = M - U @ Vt
    assert np.abs(U.T @ N).max() <= 1e-4
    assert np.abs(N @ Vt.T).max() <= 1e-4
    assert np.linalg.norm(N, 2) < 1.0
    slack = s.margins(s.W) - s.margins.rhs
    assert float(s.dual @ slack) <= 1e-8 * float(s.margins.rhs @ s.dual)


@pytest.mark.parametrize(
    ("margins", "norm", "rank", "values"),
    [
        (E21, 9.75481, 1, None),
        (E22, 1.8726, 2, (1.609, 0.2636)),
        (published(2, 3, 4, 0), 1.07218, None, None),
    ],
)
def test_published_nuclear_norms(
    margins: Margins, norm: float, rank: int | None, values: tuple[float, float] | None
) -> None:
    s = max_margin(margins, Nuclear())
    assert s.norm == pytest.approx(norm, rel=3e-5)
    assert s.rank_bound == s.rank
    assert rank is None or s.rank == rank
    if values is not None:
        np.testing.assert_allclose(singular(s.W), values, rtol=2e-4)


def test_published_nuclear_direction() -> None:
    s = max_margin(E21, Nuclear(), tol=1e-9)
    np.testing.assert_allclose(s.W, [[0.48671, 0.46926], [7.00554, 6.75438]], atol=2e-4)
    assert s.unique is True


@pytest.mark.parametrize("p", [1.0, math.inf])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_agrees_with_interior_point(p: float, seed: int) -> None:
    cp = pytest.importorskip("cvxpy")
    margins = ragged(np.random.default_rng(seed), 5, 6, 5, 4, feasible=True)
    W = cp.Variable(margins.shape)
    size = cp.normNuc(W) if p == 1.0 else cp.sigma_max(W)
    rows = written_out(margins)
    problem = cp.Problem(cp.Minimize(size), [rows @ cp.vec(W, order="C") >= margins.rhs])
    problem.solve(solver=cp.CLARABEL)
    assert max_margin(margins, Schatten(p)).norm == pytest.approx(problem.value, rel=1e-6)


@pytest.mark.parametrize("p", EXPONENTS)
def test_rotations_turn_the_solution(p: float) -> None:
    margins = sphere(6, 8, 5, 3)
    rng = np.random.default_rng(0)
    P, Q = (np.linalg.qr(rng.standard_normal((5, 5)))[0] for _ in range(2))
    turned = Margins(
        margins.differences @ P.T,
        margins.queries @ Q.T,
        margins.offsets,
        margins.rhs,
        margins.token,
        margins.selected,
    )
    a, b = max_margin(margins, Schatten(p), tol=1e-9), max_margin(turned, Schatten(p), tol=1e-9)
    assert a.norm == pytest.approx(b.norm, rel=2e-9)
    if not math.isinf(p):
        np.testing.assert_allclose(P @ a.W @ Q.T, b.W, atol=2e-3 * a.norm)


@pytest.mark.parametrize("p", [1.0, 1.5, math.inf])
@pytest.mark.parametrize("exponent", [-140, 140])
def test_any_scale(p: float, exponent: int) -> None:
    margins, scale = sphere(6, 8, 10, 0), 10.0**exponent
    scaled = Margins(
        margins.differences * scale,
        margins.queries,
        margins.offsets,
        margins.rhs,
        margins.token,
        margins.selected,
    )
    plain, other = max_margin(margins, Schatten(p)), max_margin(scaled, Schatten(p))
    assert other.status == "optimal"
    assert other.norm * scale == pytest.approx(plain.norm, rel=1e-6)
    assert other.rank == plain.rank
    bigger = with_rhs(margins, 3.0 * margins.rhs)
    assert max_margin(bigger, Schatten(p)).norm == pytest.approx(3.0 * plain.norm, rel=1e-6)


def test_norms_fall_with_the_exponent() -> None:
    for seed in range(3):
        margins = sphere(6, 8, 10, seed)
        norms = [
            max_margin(margins, Schatten(p), tol=1e-9).norm for p in (1.0, 1.3, 2.0, 4.0, math.inf)
        ]
        assert norms == sorted(norms, reverse=True)
        assert norms[2] == pytest.approx(max_margin(margins, Frobenius()).norm, rel=1e-12)


def test_exponents_near_the_ends_approach_them() -> None:
    margins = sphere(6, 8, 10, 1)
    assert max_margin(margins, Schatten(1.0001), tol=1e-9).norm == pytest.approx(
        max_margin(margins, Nuclear()).norm, rel=1e-3
    )
    assert max_margin(margins, Schatten(200.0), tol=1e-9).norm == pytest.approx(
        max_margin(margins, Spectral()).norm, rel=2e-2
    )


def test_classes_and_exponents_are_the_same_norm() -> None:
    margins = sphere(6, 8, 10, 0)
    for named, p in ((Nuclear(), 1.0), (Spectral(), math.inf)):
        np.testing.assert_array_equal(
            max_margin(margins, named).W, max_margin(margins, Schatten(p)).W
        )


def test_reduction_keeps_the_norm_and_meets_the_margins() -> None:
    margins = sphere(4, 5, 30, 0)
    reduction = reduce(equilibrate(margins, None))
    assert reduction.programme.D.shape[1] == 16
    assert reduction.programme.Z.shape[1] == 4
    B = np.random.default_rng(0).standard_normal((16, 4))
    W = reduction.lifted(B)
    np.testing.assert_allclose(singular(W)[:4], singular(B), rtol=1e-12)
    np.testing.assert_allclose(
        equilibrate(margins, None).values(W), reduction.programme.values(B), atol=1e-13
    )


@pytest.mark.parametrize("p", EXPONENTS)
def test_reduction_equals_full(p: float) -> None:
    """A programme that cannot be reduced, padded by dimensions that no token uses, is reduced back
    to the same answer.
    """
    margins = sphere(9, 4, 5, 2)
    wide = Margins(
        np.pad(margins.differences, ((0, 0), (0, 40))),
        np.pad(margins.queries, ((0, 0), (0, 9))),
        margins.offsets,
        margins.rhs,
        margins.token,
        margins.selected,
    )
    small, large = (
        max_margin(margins, Schatten(p), tol=1e-9),
        max_margin(wide, Schatten(p), tol=1e-9),
    )
    assert small.status == large.status == "optimal"
    assert large.norm == pytest.approx(small.norm, rel=2e-9)
    np.testing.assert_allclose(large.W[5:], 0.0, atol=1e-12)


@pytest.mark.parametrize("norm", [Nuclear(), Spectral(), Schatten(1.5)])
def test_infeasible_programmes_have_the_same_certificate_in_every_norm(norm: Norm) -> None:
    verdicts = []
    for seed in range(12):
        margins = sphere(6, 8, 2, seed)
        s = max_margin(margins, norm)
        verdicts.append(s.status)
        assert s.status == max_margin(margins).status
        if s.status == "infeasible":
            assert s.farkas_residual() <= 1e-12
            assert s.norm == np.inf
            assert s.rank is None
            assert len(s.conflict()) > 0
    assert {"optimal", "infeasible"} >= set(verdicts)
    assert "infeasible" in verdicts


@pytest.mark.parametrize("p", EXPONENTS)
def test_relaxed_rows(p: float) -> None:
    rng = np.random.default_rng(5)
    for seed in range(4):
        margins = sphere(6, 6, 8, seed)
        relaxed = with_rhs(margins, np.repeat(rng.permutation([1.0, 1.0, 1.0, 0.0, 0.0, 1.0]), 5))
        s = max_margin(relaxed, Schatten(p), tol=1e-9)
        assert_proved(s, p, 1e-9)
        assert s.norm <= max_margin(margins, Schatten(p), tol=1e-9).norm * (1 + 1e-8)
    nothing = max_margin(with_rhs(margins, np.zeros(margins.m)), Schatten(p))
    assert nothing.status == "optimal"
    assert nothing.norm == 0.0


def test_rank_experiment() -> None:
    """No solution has a larger numerical rank than the one found, but where a singular value near
    the threshold leaves one open.
    """
    bounds = []
    for n, T, d in [(5, 5, 3), (10, 5, 5), (15, 5, 20), (5, 15, 10)]:
        for seed in range(12):
            s = max_margin(sphere(n, T, d, seed), Nuclear())
            if s.status == "infeasible":
                continue
            assert s.status == "optimal"
            assert s.rank is not None
            assert s.rank_bound is not None
            assert s.rank <= min(n, s.rank_bound)
            bounds.append(s.rank_bound - s.rank)
    assert max(bounds) <= 1
    assert bounds.count(0) >= 0.95 * len(bounds)


@pytest.mark.parametrize(
    "instance", [(5, 5, 2, 56), (10, 5, 20, 16), (5, 15, 3, 84), (15, 5, 5, 44)]
)
def test_small_singular_values_of_the_rank_experiment(instance: tuple[int, int, int, int]) -> None:
    """A true singular value just below the threshold, where the solution is the only one."""
    s = max_margin(sphere(*instance), Nuclear())
    values = singular(s.W) / singular(s.W)[0]
    assert ((values > 1e-4) & (values < 1e-3)).any()
    assert s.unique is True
    assert s.rank is not None
    assert s.rank_bound in (s.rank, s.rank + 1)


def test_a_spectral_solution_is_rarely_alone() -> None:
    margins = sphere(6, 8, 10, 0)
    assert max_margin(margins, Spectral(), tol=1e-9).unique is None
    assert max_margin(margins, Schatten(3.0)).unique is True
    line = cross([[[2.0], [1.0]]], [[0.5]], [0])
    s = max_margin(line, Spectral())
    assert s.norm == pytest.approx(2.0)


def test_a_nuclear_tie() -> None:
    """One row whose pull has a double singular value cannot be had from one rank-one row: two rows
    with orthogonal pairs and one sum.
    """
    D, Z = np.eye(2), np.eye(2)
    margins = Margins(
        np.array([[1.0, 0.0], [0.0, 1.0]]),
        Z,
        np.array([0, 1, 2]),
        np.ones(2),
        np.ones(2, dtype=np.int64),
        np.zeros(2, dtype=np.int64),
    )
    s = max_margin(margins, Nuclear(), tol=1e-9)
    assert s.norm == pytest.approx(2.0, rel=1e-8)
    assert s.unique is None  # every [[1, c], [c, 1]] with |c| <= 1 has nuclear norm 2
    assert s.rank_bound == 2
    assert D.shape == (2, 2)


def test_warm_start_and_time_limit() -> None:
    margins = sphere(20, 16, 32, 0)
    cold = max_margin(margins, Nuclear())
    warm = max_margin(margins, Nuclear(), warm_start=cold)
    assert warm.status == "optimal"
    assert warm.iterations <= cold.iterations
    hurried = max_margin(margins, Spectral(), max_seconds=1e-9)
    assert hurried.status in ("optimal", "inaccurate")
    assert hurried.violation <= 1e-12


def test_default_tolerances() -> None:
    margins = sphere(6, 8, 10, 0)
    assert max_margin(margins, Nuclear()).tol == max_margin(margins, Schatten(math.inf)).tol == 1e-6
    assert max_margin(margins, Schatten(1.5)).tol == max_margin(margins).tol == 1e-9


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 2**32 - 1),
    n=st.integers(1, 7),
    longest=st.integers(2, 6),
    d_x=st.integers(1, 7),
    d_z=st.integers(1, 7),
    p=st.sampled_from([1.0, 1.0001, 1.3, 3.0, 20.0, math.inf]),
    feasible=st.booleans(),
    relaxed=st.booleans(),
)
def test_ragged_programmes(
    seed: int, n: int, longest: int, d_x: int, d_z: int, p: float, feasible: bool, relaxed: bool
) -> None:
    rng = np.random.default_rng(seed)
    margins: Any = ragged(rng, n, longest, d_x, d_z, feasible)
    if relaxed:
        margins = with_rhs(margins, (rng.random(margins.m) < 0.7).astype(float))
    expected = max_margin(margins)
    s = max_margin(margins, Schatten(p), tol=1e-6 if p in (1.0, math.inf) else 1e-8)
    assert s.status == expected.status
    if s.status == "optimal" and s.norm > 0.0:
        assert_proved(s, p, 1e-6)
        assert s.rank is not None
        assert s.rank_bound is None or s.rank <= s.rank_bound


@pytest.mark.parametrize("norm", [Nuclear(), Spectral(), Schatten(1.5)])
def test_equalities(norm: Norm) -> None:
    """The last row of every sequence at zero exactly: feasible, proved, and no smaller than with
    the row left out.
    """
    for seed in range(3):
        margins = sphere(4, 4, 10, seed)
        equal = np.tile([False, False, True], 4)
        rhs = np.where(equal, 0.0, 1.0)
        tied = Margins(
            margins.differences,
            margins.queries,
            margins.offsets,
            rhs,
            margins.token,
            margins.selected,
            equal,
        )
        s = max_margin(tied, norm, tol=1e-7)
        assert s.status == "optimal"
        assert np.abs(tied(s.W)[equal]).max() <= 1e-7
        assert s.norm >= max_margin(margins.restricted(~equal), norm).norm * (1 - 1e-6)
        lower = rhs @ s.dual / norm.dual_value(tied.adjoint(s.dual))
        assert lower >= s.norm * (1 - 1e-7)


def test_the_angle_to_the_frobenius_solution_is_bounded_in_every_norm() -> None:
    margins = sphere(6, 8, 10, 0)
    exact = max_margin(margins).W
    for p in (1.0, 1.9, 2.1, math.inf):
        s = max_margin(margins, Schatten(p))
        angle = math.acos(
            min(1.0, float(np.sum(s.W * exact) / np.linalg.norm(s.W) / np.linalg.norm(exact)))
        )
        assert angle <= s.angle_bound()
