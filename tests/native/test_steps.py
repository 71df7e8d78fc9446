"""The compiled steps of tensors against float128, at every length, sign and kind of number."""

from __future__ import annotations

import numpy as np
import pytest

from attsvm.native import library
from attsvm.optim.powers import mirror_exponents

Array = np.ndarray
FORMS = {np.float32: "f32", np.float64: "f64"}
# every branch: products, square roots, cube roots, roots alone and beside a whole number
POTENTIALS = [1.05, 1.1, 1.15, 1.2, 1.25, 4 / 3, 1.5, 1.6, 1.75, 1.9, 3.0, 4.0, 5.0, 7 / 3, 2.5]


def moved(g: Array, y: Array, keep: float, lr: float, p: float) -> tuple[Array, Array]:
    """The dual and the weights after a step; the arrays that were handed over stay."""
    g, y, w = g.copy(), y.copy(), np.zeros_like(y)
    inverse = mirror_exponents(p)[1]
    step = getattr(library, f"mirror_step_{FORMS[y.dtype.type]}")
    at = (each.ctypes.data for each in (g, y, w))
    step(*at, y.size, keep, lr, float(inverse.integer), inverse.fraction)
    return y, w


def power(y: Array, p: float) -> Array:
    inverse, size = mirror_exponents(p)[1], np.abs(y.astype(np.longdouble))
    whole, rest = np.longdouble(inverse.integer), np.longdouble(inverse.fraction)
    return np.copysign(size**whole * size**rest, y)


@pytest.mark.parametrize("p", POTENTIALS)
@pytest.mark.parametrize("count", [1, 7, 2048, 5000])
@pytest.mark.parametrize("dtype", FORMS)
def test_a_mirror_step_is_the_formula(dtype: type, count: int, p: float) -> None:
    rng = np.random.default_rng(count)
    y = (rng.standard_normal(count) * 10 ** rng.uniform(-3, 1, count)).astype(dtype)
    g = rng.standard_normal(count).astype(dtype)
    dual, w = moved(g, y, 0.75, 1e-2, p)
    expected = np.longdouble(0.75) * y - np.longdouble(dtype(1e-2)) * g
    # two roundings, of numbers no larger than the two terms
    size = np.spacing(np.maximum(np.abs(0.75 * y), np.abs(1e-2 * g)).astype(dtype))
    assert (np.abs(dual - expected) <= 2 * size).all()
    exact = power(dual, p)
    normal = np.abs(exact) > np.finfo(dtype).tiny
    # two units in float32; a power of a whole number in float64 is up to four products
    units = np.abs(w - exact)[normal] / np.spacing(np.abs(exact[normal]).astype(dtype))
    assert (units <= (2 if dtype is np.float32 else 4)).all()


@pytest.mark.parametrize("p", POTENTIALS)
@pytest.mark.parametrize("dtype", FORMS)
def test_special_numbers_are_what_powers_make_of_them(dtype: type, p: float) -> None:
    tiny = np.finfo(dtype).smallest_subnormal
    y = np.ones(3000, dtype)
    y[:8] = 0.0, -0.0, np.inf, -np.inf, np.nan, tiny, -1.0, np.finfo(dtype).max
    dual, w = moved(np.zeros_like(y), y, 1.0, 1.0, p)
    np.testing.assert_array_equal(dual, y)
    with np.errstate(over="ignore"):
        expected = power(y, p).astype(dtype)
    np.testing.assert_allclose(w[:8], expected[:8], rtol=4 * np.finfo(dtype).eps, atol=tiny)
    assert (np.signbit(w[[0, 1, 2, 3, 6]]) == [False, True, False, True, True]).all()
    np.testing.assert_allclose(w[8:], 1.0, rtol=2 * np.finfo(dtype).eps)


@pytest.mark.parametrize("dtype", FORMS)
@pytest.mark.parametrize("scale", [1.0, 1e-30, 1e30])
def test_a_normalised_step_has_length_lr(dtype: type, scale: float) -> None:
    rng = np.random.default_rng(0)
    m = (scale * rng.standard_normal((3, 37))).astype(dtype)
    m[1] = 0.0
    w = rng.standard_normal((3, 37)).astype(dtype)
    start, step = w.copy(), getattr(library, f"normalized_step_{FORMS[dtype]}")
    step(w.ctypes.data, m.ctypes.data, 3, 37, 0.5, 0.25)
    wide = m.astype(np.longdouble)
    length = np.sqrt((wide**2).sum(axis=1, keepdims=True))
    length[1] = 1.0
    expected = 0.5 * start.astype(np.longdouble) - 0.25 * wide / length
    np.testing.assert_allclose(w, expected.astype(float), rtol=0, atol=2 * np.finfo(dtype).eps)


@pytest.mark.parametrize("dtype", FORMS)
def test_a_step_along_signs(dtype: type) -> None:
    tiny, largest = np.finfo(dtype).smallest_subnormal, np.finfo(dtype).max
    m = np.array([[0.0, -0.0, tiny, -tiny], [largest, -3.0, np.inf, np.nan]], dtype=dtype)
    w = np.arange(8, dtype=dtype).reshape(2, 4)
    getattr(library, f"sign_step_{FORMS[dtype]}")(w.ctypes.data, m.ctypes.data, 2, 4, 0.5, 0.25)
    expected = [[0.0, 0.5, 0.75, 1.75], [1.75, 2.75, np.nan, np.nan]]
    np.testing.assert_array_equal(w, np.array(expected, dtype=dtype))
