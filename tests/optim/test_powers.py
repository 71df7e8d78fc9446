"""Signed powers against extended precision, with the exponents of the potential p that was written
down.
"""

from __future__ import annotations

from fractions import Fraction

import mpmath
import numpy as np
import pytest
import torch

from attsvm.optim.powers import Exponent, mirror_exponents, signed_powers


def signed_power(y: torch.Tensor, exponent: Exponent) -> torch.Tensor:
    return signed_powers([y], exponent)[0]


EXPONENTS = ["1.05", "1.1", "1.25", "4/3", "1.37", "1.5", "5/3", "1.75", "2", "3", "5", "10", "100"]


def numbers(dtype: torch.dtype = torch.float64) -> torch.Tensor:
    y = torch.randn(300, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    return torch.cat([y, 1e-4 * y, 1e2 * y]).to(dtype)


def ulps(values: torch.Tensor, y: torch.Tensor, exponent: Fraction) -> float:
    """The largest distance to ``sp(y, exponent)``, in units in the last place of the exact
    value.
    """
    spacing = np.float32 if values.dtype == torch.float32 else np.float64
    with mpmath.workdps(40):
        worst = 0.0
        for value, number in zip(values.tolist(), y.tolist(), strict=True):
            exact = mpmath.sign(number) * mpmath.power(
                abs(mpmath.mpf(number)), mpmath.mpf(exponent.numerator) / exponent.denominator
            )
            worst = max(
                worst, float(abs(value - exact) / abs(float(np.spacing(spacing(float(exact))))))
            )
    return worst


@pytest.mark.parametrize("p", EXPONENTS)
def test_both_powers_are_within_four_units_of_extended_precision(p: str) -> None:
    slope = Fraction(p) - 1
    forward, inverse = mirror_exponents(float(Fraction(p)))
    y = numbers()
    # half a rounding of a rest above 1/2 is 5.5e-17, times |ln y| <= 12 of these numbers is 3 to 6
    # units of the power
    bound = 6 if max(forward.fraction, inverse.fraction) > 0.6 and p != "1.75" else 4
    assert ulps(signed_power(y, forward), y, slope) <= bound
    assert ulps(signed_power(y, inverse), y, 1 / slope) <= bound


def test_an_exponent_is_that_of_the_fraction_that_p_stands_for() -> None:
    assert mirror_exponents(1.1) == (Exponent(0, 0.1), Exponent(10, 0.0))
    assert mirror_exponents(4 / 3)[1] == Exponent(3, 0.0)
    p = 2**0.5
    exact = 1 / (Fraction(p) - 1)
    inverse = mirror_exponents(p)[1]
    assert inverse.integer == 2
    assert inverse.fraction == float(exact - 2)


@pytest.mark.parametrize("r", [0.1, 0.25, 0.5, 0.75, 1.0, 4 / 3, 2.0, 2.7, 3.0, 4.0, 10.0, 20.0])
def test_zeros_infinities_and_nan(r: float) -> None:
    exponent = Exponent(int(r), r - int(r))
    y = torch.tensor([0.0, -0.0, float("inf"), float("-inf"), float("nan"), 1.0, -1.0])
    expected = torch.tensor([0.0, 0.0, float("inf"), float("-inf"), float("nan"), 1.0, -1.0])
    torch.testing.assert_close(signed_power(y, exponent), expected, equal_nan=True, rtol=0, atol=0)
