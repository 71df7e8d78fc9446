"""Nuclear, spectral and Schatten programmes: proofs recomputed, peers, invariances, published
numbers, infeasible and relaxed rows.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from instances import cross, sphere, written_out

from attsvm.datasets import unit_sphere
from attsvm.margins import Margins, optimal_tokens, selection_margins
from attsvm.norms import Frobenius, Nuclear, Schatten, Spectral
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


def test_default_tolerances() -> None:
    margins = sphere(6, 8, 10, 0)
    assert max_margin(margins, Nuclear()).tol == max_margin(margins, Schatten(math.inf)).tol == 1e-6
    assert max_margin(margins, Schatten(1.5)).tol == max_margin(margins).tol == 1e-9


def test_the_angle_to_the_frobenius_solution_is_bounded_in_every_norm() -> None:
    margins = sphere(6, 8, 10, 0)
    exact = max_margin(margins).W
    for p in (1.0, 1.9, 2.1, math.inf):
        s = max_margin(margins, Schatten(p))
        angle = math.acos(
            min(1.0, float(np.sum(s.W * exact) / np.linalg.norm(s.W) / np.linalg.norm(exact)))
        )
        assert angle <= s.angle_bound()
