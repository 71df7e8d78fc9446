"""Interior points of l1 and linf against duality, from the rows written out."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from attsvm import native
from attsvm.solvers import polyhedral


def _programme(rng, n, per, dx, dz, equalities=0):
    """Rows that a teacher meets, the first of some sequences with equality."""
    W, Z = rng.standard_normal((dx, dz)), rng.standard_normal((n, dz)) / dz**0.5
    D = rng.standard_normal((n * per, dx)) / dx**0.5
    values = np.einsum("ca,ca->c", D, np.repeat(Z @ W.T, per, axis=0))
    D *= np.sign(values)[:, None]
    b = rng.uniform(0.5, 1.0, n * per)
    equal = np.arange(equalities) * per
    b[equal] = 0.0
    free = np.zeros(n * per, np.uint8)
    free[equal] = 1
    offsets = np.arange(n + 1) * per
    p = native.ProgrammeRows(D, Z, b, np.full(n * per, np.inf), offsets, free)
    A = (D[:, :, None] * np.repeat(Z, per, axis=0)[:, None, :]).reshape(n * per, -1)
    return p, A, b, free


def _points(m, k, box):
    """Entries count alike; five iterations without half the gap end the method."""
    return native.Interior(m, np.ones(k), box, 5)


def _gap(A, b, free, box, w, lam):
    values, some = A @ w, b > 0.0
    ratio = (values[some] / b[some]).min()
    assert (lam[free == 0] >= 0.0).all()
    assert np.abs(values[free == 1]).max(initial=0.0) <= 1e-12 * np.abs(w).max()
    norms = (np.inf, 1) if box else (1, np.inf)
    bound = lam @ b / np.linalg.norm(lam @ A, norms[1])
    return 1.0 - bound * ratio / np.linalg.norm(w, norms[0])


@pytest.mark.parametrize("box", [False, True])
@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("size", [(6, 7, 10, 10, 0), (5, 6, 10, 12, 3), (20, 8, 12, 14, 0)])
def test_points_end_at_a_vertex(box, seed, size):
    p, A, b, free = _programme(np.random.default_rng(seed), *size)
    for blas in (None, native.blas()):
        at = _points(*A.shape, box)
        assert native.library.interior_begin(p, at)
        assert native.library.interior(p, at, blas, 1e-13, 60)
        assert at.gap <= 1e-11  # what a basis of condition 1e4 leaves
        assert 0 < at.systems < 30
        w, lam = at.arrays["best_w"], at.arrays["best_lam"]
        assert _gap(A, b, free, box, w, lam) <= 1e-11
        size_of = np.abs(w)
        movable = size_of < (1 - 1e-9) * size_of.max() if box else size_of > 1e-9 * size_of.max()
        assert np.count_nonzero(lam) <= np.count_nonzero(movable) + box


@pytest.mark.parametrize("box", [False, True])
def test_one_iteration_at_a_time_is_the_same_as_all(box):
    p, A, *_ = _programme(np.random.default_rng(3), 6, 7, 10, 10)
    found = []
    for steps in (60, 1):
        at = _points(*A.shape, box)
        native.library.interior_begin(p, at)
        for _ in range(60 // steps):
            native.library.interior(p, at, None, 1e-13, steps)
        found.append(at.arrays["best_w"])
    np.testing.assert_allclose(found[0], found[1], rtol=0, atol=1e-12 * np.abs(found[0]).max())


@pytest.mark.parametrize("box", [False, True])
def test_a_contradiction_has_no_points(box):
    D, Z = np.array([[1.0, 0.0], [-1.0, 0.0]]), np.ones((1, 1))
    b, offsets = np.ones(2), np.array([0, 2])
    p = native.ProgrammeRows(D, Z, b, b, offsets, np.zeros(2, np.uint8))
    at = _points(2, 2, box)
    native.library.interior_begin(p, at)
    native.library.interior(p, at, None, 1e-13, 60)
    assert not at.gap < 1.0


@pytest.mark.parametrize("box", [False, True])
@pytest.mark.parametrize("power", [-80, 80])
def test_many_programmes_are_solved_in_the_units_of_the_caller(box, power):
    rng = np.random.default_rng(0)
    parts = [_programme(rng, 4, 5, 6, 7)[0].arrays for _ in range(5)]
    D, Z, b = (np.concatenate([part[name] for part in parts]) for name in ("D", "Z", "b"))
    offsets, instances = np.arange(21) * 5, np.arange(6) * 4
    near, far = [], []
    for scale, found in ((1.0, near), (2.0**power, far)):
        W, lam = np.zeros((5, 6, 7)), np.zeros(100)
        gap, systems = np.zeros(5), np.zeros(5, np.int64)
        p = native.ProgrammeRows(scale * D, Z, b, b, offsets, np.zeros(100, np.uint8))
        of = [native.address(x, x.dtype.type, *x.shape) for x in (W, lam, gap, systems)]
        at = native.address(instances, np.int64, 6)
        for part in ((0, 2), (2, 5)):
            assert native.library.interior_many(p, at, *part, box, 1e-13, *of)
        found.extend([W, lam, gap, systems])
    np.testing.assert_array_equal(near[0], far[0] * 2.0**power)
    np.testing.assert_array_equal(near[1], far[1] * 2.0 ** (2 * power))
    assert (near[2] <= 1e-13).all()
    squares = (np.abs(near[0]).max(axis=(1, 2)) if box else np.abs(near[0]).sum(axis=(1, 2))) ** 2
    np.testing.assert_allclose((near[1] * b).reshape(5, -1).sum(axis=1), squares, rtol=1e-12)


def test_structs_hold_what_the_library_wrote():
    at = _points(3, 4, True)
    assert ctypes.sizeof(at) == 19 * 8
    assert at.gap == np.inf
    assert polyhedral.SOLVER == "interior points"
