"""float64 numbers as what they are: integers times a power of two. Nothing here rounds."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

Integers = Any  # an object array of Python integers


@dataclass(frozen=True)
class Dyadic:
    """``integers * 2**exponent``, entry by entry."""

    integers: Integers
    exponent: int

    def __matmul__(self, other: Dyadic) -> Dyadic:
        return Dyadic(self.integers @ other.integers, self.exponent + other.exponent)

    def __mul__(self, other: Dyadic) -> Dyadic:
        return Dyadic(self.integers * other.integers, self.exponent + other.exponent)

    def __sub__(self, other: Dyadic) -> Dyadic:
        low = min(self.exponent, other.exponent)
        return Dyadic(self.at(low) - other.at(low), low)

    def at(self, exponent: int) -> Integers:
        """The integers in units of ``2**exponent``, which must not be above the own exponent."""
        return self.integers * (1 << (self.exponent - exponent))

    def fraction(self, *index: int) -> Fraction:
        """One entry."""
        return scaled(self.integers[index], self.exponent)

    def fractions(self) -> list[Fraction]:
        """All entries, flattened."""
        return [scaled(each, self.exponent) for each in self.integers.reshape(-1)]


def scaled(number: int | Fraction, exponent: int) -> Fraction:
    """``number * 2**exponent``."""
    power = 1 << abs(exponent)
    return Fraction(number * power) if exponent >= 0 else Fraction(number, power)


def dyadic(array: Any) -> Dyadic:
    """The array, exactly.

    Raises:
        ValueError: a value that is not finite.
    """
    floats = np.asarray(array, dtype=np.float64)
    if not np.isfinite(floats).all():
        raise ValueError("only finite numbers are integers times a power of two")
    mantissa, exponent = np.frexp(floats)
    exponent = exponent.astype(np.int64)  # room for what stands for zeros
    whole = np.ldexp(mantissa, 53).astype(np.int64)
    if not whole.any():
        return Dyadic(np.zeros(floats.shape, dtype=np.int64).astype(object), 0)
    # the lowest bit that is set keeps integers short: data on a lattice stays small
    lowest = np.where(whole != 0, np.frexp((whole & -whole).astype(np.float64))[1] - 1, 0)
    power = np.where(whole != 0, exponent - 53 + lowest, np.iinfo(np.int64).max)
    low = int(power.min())
    shift = np.where(whole != 0, power - low, 0).astype(object)
    odd = (whole >> lowest).astype(object)
    return Dyadic(np.asarray(odd * 2**shift, dtype=object), low)
