"""Programmes of few rows in one compiled call, against a general solver and their conditions."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import nnls

from attsvm.solvers import compiled


def _rows(seed, n=6, T=5, dx=5, dz=4, feasible=True):
    """Differences, queries, offsets and written-out rows of random tokens."""
    rng = np.random.default_rng(seed)
    X, Z, W = (rng.standard_normal(shape) for shape in ((n, T, dx), (n, dz), (dx, dz)))
    best = np.einsum("ntd,de,ne->nt", X, W, Z).argmax(axis=1) if feasible else np.zeros(n, int)
    D = np.concatenate([np.delete(x[k] - x, k, axis=0) for x, k in zip(X, best, strict=True)])
    offsets = np.arange(n + 1) * (T - 1)
    A = (D[:, :, None] * np.repeat(Z, T - 1, axis=0)[:, None, :]).reshape(len(D), -1)
    return D, Z, offsets, A


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("T", [5, 6])
def test_weights_are_those_of_least_distance(seed, T):
    D, Z, offsets, A = _rows(seed, T=T)
    found = compiled.solve_many(D, Z, offsets, np.array([0, len(Z)]), np.ones(len(D)))
    assert found.outcome[0] == compiled.WEIGHTS
    u, _ = nnls(np.vstack([A.T, np.ones(len(A))]), np.eye(A.shape[1] + 1)[-1])
    r = np.append(A.T @ u, u.sum() - 1.0)
    np.testing.assert_allclose(found.W[0].ravel(), -r[:-1] / r[-1], rtol=0, atol=1e-9)
    size, gap, violation, _ = found.figures[0]
    np.testing.assert_allclose(size, np.linalg.norm(found.W[0]), rtol=1e-14)
    np.testing.assert_allclose(found.values, A @ found.W[0].ravel(), rtol=0, atol=1e-12 * size)
    assert gap <= 1e-12
    assert violation <= 1e-12


@pytest.mark.parametrize("seed", range(10))
def test_contradictions_add_up_to_zero(seed):
    D, Z, offsets, A = _rows(seed, n=12, T=8, dx=3, dz=2, feasible=False)
    found = compiled.solve_many(D, Z, offsets, np.array([0, len(Z)]), np.ones(len(D)))
    assert found.outcome[0] == compiled.CONTRADICTION
    lam = found.dual
    assert (lam >= 0.0).all()
    assert lam.sum() > 0.0
    assert np.abs(lam @ A).max() <= 1e-12 * lam.sum() * np.abs(A).max()


@pytest.mark.parametrize("slack", [0.01, 0.3, 10.0])
@pytest.mark.parametrize("seed", range(5))
def test_soft_margins_meet_their_conditions(seed, slack):
    D, Z, offsets, A = _rows(seed, n=12, T=8, dx=3, dz=2, feasible=False)
    D[0], A[0] = 0.0, 0.0  # a margin that is missed whatever the weights are
    found = compiled.solve_many(D, Z, offsets, np.array([0, len(Z)]), np.ones(len(D)), slack)
    assert found.outcome[0] == compiled.WEIGHTS
    lam, missed = found.dual, 1.0 - A @ found.W[0].ravel()
    assert (lam >= 0.0).all()
    assert (lam <= slack * (1.0 + 1e-12)).all()
    np.testing.assert_allclose(A.T @ lam, found.W[0].ravel(), rtol=0, atol=1e-10)
    assert np.abs(missed[(lam > 0.0) & (lam < slack * (1.0 - 1e-9))]).max(initial=0.0) <= 1e-10
    assert missed[lam == 0.0].max(initial=-1.0) <= 1e-10
    assert missed[lam >= slack * (1.0 - 1e-9)].min(initial=1.0) >= -1e-10
    assert lam[0] == pytest.approx(slack)


def test_programmes_beside_others_have_the_same_bits():
    parts = [_rows(seed) for seed in range(20)]
    D, Z = (np.concatenate([part[k] for part in parts]) for k in (0, 1))
    offsets = np.append(0, np.concatenate([part[2][1:] + 24 * k for k, part in enumerate(parts)]))
    many = compiled.solve_many(D, Z, offsets, np.arange(21) * 6, np.ones(len(D)))
    for k, (rows, queries, begin, _) in enumerate(parts):
        one = compiled.solve_many(rows, queries, begin, np.array([0, 6]), np.ones(24))
        np.testing.assert_array_equal(one.W[0], many.W[k])
        np.testing.assert_array_equal(one.dual, many.dual[24 * k : 24 * k + 24])


def test_a_start_at_the_solution_takes_no_step():
    D, Z, offsets, _ = _rows(3)
    arrays = D, Z, offsets, np.array([0, len(Z)]), np.ones(len(D))
    cold = compiled.solve_many(*arrays)
    warm = compiled.solve_many(*arrays, None, cold.dual)
    assert warm.systems[0] == 0
    np.testing.assert_allclose(warm.W, cold.W, rtol=0, atol=1e-12)


def test_sizes_beyond_the_range_are_left_to_others():
    D, Z, offsets, _ = _rows(0)
    found = compiled.solve_many(D * 1e40, Z, offsets, np.array([0, len(Z)]), np.ones(len(D)))
    assert found.outcome[0] == compiled.UNSETTLED
