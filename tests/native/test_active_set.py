"""The method of active sets against optimality conditions and contradictions."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from attsvm import native


def _solve(A, b, cap, equal, start=None):
    """Outcome, multipliers and steps of one programme of rows ``A``, from a start or from zero."""
    m = len(A)
    G, slope, steps = A @ A.T, np.empty(m), ctypes.c_int64()
    lam = np.zeros(m) if start is None else start.copy()
    gram, sides, multipliers, slopes = (
        native.address(x, float, *x.shape) for x in (G, b, lam, slope)
    )
    state = native.ActiveSet(m, A.shape[1])
    given = native.address(cap, float, m), native.address(equal, np.uint8, m), state
    if start is not None:
        native.library.active_set_begin(gram, *given, multipliers)
    outcome = native.library.active_set(
        gram, sides, *given, 1e-13, 1000, multipliers, slopes, steps
    )
    return outcome, lam, steps.value


def _residual(A, b, cap, equal, lam):
    slope = A @ (lam @ A) - b
    inner = (equal == 1) | ((lam > 0) & (lam < cap))
    missed = np.where(inner, abs(slope), np.where(lam <= 0, -slope, slope))
    assert (lam[equal == 0] >= 0).all()
    assert (lam <= cap).all()
    return missed.max()


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("capped", [False, True])
@pytest.mark.parametrize("equalities", [0, 4])
def test_multipliers_meet_the_optimality_conditions(seed, capped, equalities):
    rng = np.random.default_rng(seed)
    m, d = 40, 12 if capped else 50
    A = rng.standard_normal((m, d)) / d**0.5
    b = rng.uniform(0.2, 1.0, m)
    equal = np.zeros(m, np.uint8)
    equal[:equalities] = 1
    cap = np.full(m, 0.3 if capped else np.inf)
    cap[:equalities] = np.inf
    out, lam, _ = _solve(A, b, cap, equal)
    assert out == native.SOLVED
    # slopes are sums of some forty terms of size one
    assert _residual(A, b, cap, equal, lam) < 1e-12
    again, warm, steps = _solve(A, b, cap, equal, lam)
    assert again == native.SOLVED
    assert steps <= 1
    np.testing.assert_allclose(warm, lam, rtol=0, atol=1e-10)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("equalities", [0, 3])
def test_a_contradiction_comes_with_its_multipliers(seed, equalities):
    rng = np.random.default_rng(seed)
    A, b = rng.standard_normal((40, 6)), np.ones(40)
    equal = np.zeros(40, np.uint8)
    equal[:equalities] = 1
    out, lam, _ = _solve(A, b, np.full(40, np.inf), equal)
    assert out == native.CONTRADICTION
    assert (lam[equal == 0] >= 0).all()
    assert np.abs(lam @ A).max() < 1e-11 * np.abs(lam).max() * np.abs(A).max()
    assert lam @ b > 0


@pytest.mark.parametrize("seed", range(10))
def test_equalities_that_follow_from_others_contradict_nobody(seed):
    """Also where multipliers are so large that rounding hides it."""
    rng = np.random.default_rng(seed)
    A = rng.standard_normal((6, 9)) / 3.0
    A[1] = A[0] + 1e-2 * rng.standard_normal(9)
    b = np.array([0.5, 0.8, 0.3, 0.0, 0.0, 0.4])
    shares = rng.standard_normal((2, 3))
    A[3:5], b[3:5] = shares @ A[:3], shares @ b[:3]
    equal, cap = np.array([1, 1, 1, 1, 1, 0], np.uint8), np.full(6, np.inf)
    out, lam, _ = _solve(A, b, cap, equal)
    assert out == native.SOLVED
    assert np.abs(lam).max() > 100.0
    assert _residual(A, b, cap, equal, lam) < 1e-11
    b[3] += 1e-2
    out, lam, _ = _solve(A, b, cap, equal)
    assert out == native.CONTRADICTION
    assert np.abs(lam @ A).max() < 1e-11 * np.abs(lam).max()
    assert lam @ b > 0


def test_rows_that_stand_twice_are_solved():
    rng = np.random.default_rng(0)
    A = np.repeat(rng.standard_normal((15, 20)), 3, axis=0)
    b, cap, equal = np.ones(45), np.full(45, np.inf), np.zeros(45, np.uint8)
    out, lam, _ = _solve(A, b, cap, equal)
    assert out == native.SOLVED
    assert _residual(A, b, cap, equal, lam) < 1e-12
