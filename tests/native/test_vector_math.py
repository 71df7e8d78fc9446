"""Exponentials and signed powers against extended precision, of every level that runs here."""

from __future__ import annotations

import ctypes

import mpmath as mp
import numpy as np
import pytest

from attsvm import native

LEVELS = ["baseline", "avx2"] if native.library.fast_processor() else ["baseline"]


@pytest.fixture(params=LEVELS)
def core(request: pytest.FixtureRequest) -> ctypes.CDLL:
    return native.open_library(request.param)


def units_off(found: np.ndarray, exact: list[mp.mpf]) -> float:
    """Largest error in units of the last place."""
    pairs = zip(found, exact, strict=True)
    return max(float(abs(mp.mpf(x) - y) / mp.mpf(np.spacing(x))) for x, y in pairs)


def exponentials(core: ctypes.CDLL, x: np.ndarray) -> np.ndarray:
    out = np.empty_like(x)
    core.exponentials(x.ctypes.data, out.ctypes.data, x.size)
    return out


def signed_powers(core: ctypes.CDLL, y: np.ndarray, whole: int, rest: float) -> np.ndarray:
    out = np.empty_like(y)
    core.signed_powers(y.ctypes.data, out.ctypes.data, y.size, whole, rest)
    return out


def test_exponentials_are_within_a_unit_in_the_last_place(core: ctypes.CDLL) -> None:
    rng = np.random.default_rng(0)
    x = -np.concatenate(
        [rng.uniform(0, 1, 501), rng.uniform(0, 708, 501), 10 ** rng.uniform(-20, 2, 201)]
    )
    with mp.workprec(120):
        assert units_off(exponentials(core, x), [mp.exp(mp.mpf(each)) for each in x]) < 1.0


def test_exponentials_of_nothing_and_of_what_is_far_below(core: ctypes.CDLL) -> None:
    found = exponentials(core, np.array([0.0, -0.0, -708.5, -1e300, -np.inf]))
    assert found.tolist() == [1.0, 1.0, 0.0, 0.0, 0.0]


@pytest.mark.parametrize("rest", [0.001, 1 / 7, 1 / 3, 0.25, 0.5, 0.75, 0.999])
def test_powers_below_one_are_within_two_units(core: ctypes.CDLL, rest: float) -> None:
    rng = np.random.default_rng(1)
    y = np.concatenate(
        [
            10 ** rng.uniform(-300, 300, 401),
            rng.uniform(0.5, 2, 401),
            1 + 10 ** rng.uniform(-16, -1, 101),
            10 ** rng.uniform(-323, -308, 51),  # no normal numbers
        ]
    )
    with mp.workprec(120):
        exact = [mp.power(mp.mpf(each), mp.mpf(rest)) for each in y]
        assert units_off(signed_powers(core, y, 0, rest), exact) < 2.0


@pytest.mark.parametrize("whole", [1, 2, 3, 4, 10])
@pytest.mark.parametrize("rest", [0.0, 1 / 3])
def test_signed_powers_round_once_a_product(core: ctypes.CDLL, whole: int, rest: float) -> None:
    y = np.random.default_rng(2).standard_normal(301)
    with mp.workprec(120):
        exact = [
            mp.sign(each) * mp.power(abs(mp.mpf(each)), whole + mp.mpf(rest)) for each in y.tolist()
        ]
        bound = 2.0 + min(whole, 4)
        assert units_off(signed_powers(core, y, whole, rest), exact) < bound


def test_powers_of_what_is_no_normal_number(core: ctypes.CDLL) -> None:
    y = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, -8.0])
    found = signed_powers(core, y, 0, 1 / 3)
    assert found[:2].tolist() == [0.0, 0.0]
    assert np.signbit(found[1])
    assert found[2:4].tolist() == [np.inf, -np.inf]
    assert np.isnan(found[4])
    assert found[5] == pytest.approx(-2.0, rel=1e-15)
