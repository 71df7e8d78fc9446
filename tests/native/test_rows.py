"""Operators on rows against NumPy."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attsvm.solvers.programme import equilibrate_rows, pull_rows, row_values

SIZES = st.floats(-1e300, 1e300) | st.floats(-1e-300, 1e-300) | st.floats(-2.0, 2.0)


@pytest.mark.parametrize("width", [1, 2, 3, 4, 5, 7, 8, 9, 16, 31])
def test_operators_agree_with_numpy(width):
    rng = np.random.default_rng(width)
    offsets = np.array([0, 0, 3, 4, 9, 9, 15])
    D, moved = rng.standard_normal((15, width)), rng.standard_normal((6, width))
    dual = np.where(rng.random(15) < 0.5, rng.standard_normal(15), 0.0)
    sequence = np.repeat(np.arange(6), np.diff(offsets))
    # a sum of so few numbers of size one is off by a few roundings
    expected = np.einsum("cd,cd->c", D, moved[sequence])
    np.testing.assert_allclose(row_values(D, offsets, moved), expected, rtol=0, atol=1e-14)
    expected = np.zeros((6, width))
    np.add.at(expected, sequence, dual[:, None] * D)
    np.testing.assert_allclose(pull_rows(D, offsets, dual), expected, rtol=0, atol=1e-14)


@given(st.lists(SIZES, min_size=1, max_size=12))
def test_rows_come_to_norms_between_a_quarter_and_one(row):
    unit, exponent = equilibrate_rows(np.array([row]))
    square = sum(Fraction(x) ** 2 for x in unit[0])
    if not any(row):
        assert exponent[0] == 0
        return
    # entries below 2^-1074 of the largest vanish, and the norm is rounded once
    assert Fraction(1, 16) - Fraction(1, 10**12) <= square <= 1 + Fraction(1, 10**12)
    large = [k for k in range(len(row)) if abs(unit[0, k]) > 1e-300]
    assert all(math.ldexp(unit[0, k], int(exponent[0])) == row[k] for k in large)
