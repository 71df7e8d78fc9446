"""What a measured quantity is held against: a threshold, and why it is that one."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attsvm.errors import InputError


@dataclass(frozen=True)
class Expectation:
    """An interval that measured values should lie in.

    Attributes:
        low: smallest value that passes, ``-inf`` for none.
        high: largest value that passes, ``inf`` for none.
        because: the reason for these bounds, one sentence.
        share: share of the values that must pass. 1 for a theorem; less where the theory speaks of
            most instances.
    """

    low: float
    high: float
    because: str
    share: float = 1.0

    def __post_init__(self) -> None:
        if math.isnan(self.low) or math.isnan(self.high) or self.low > self.high:
            raise InputError(f"the bounds are {self.low} and {self.high}; give low <= high")
        if not 0.0 < self.share <= 1.0:
            raise InputError(f"share is {self.share}; give a number above 0 and at most 1")
        if not self.because.strip():
            raise InputError("a threshold needs its reason; say in `because` why it is this one")

    def of(self, share: float) -> Expectation:
        """The same bounds, asked of this share of the values."""
        return replace(self, share=share)

    def passes(self, values: ArrayLike) -> NDArray[np.bool_]:
        """Which values lie inside; NaN never does."""
        array = np.asarray(values, dtype=np.float64)
        return (array >= self.low) & (array <= self.high)

    def worst(self, values: ArrayLike) -> float:
        """The value that decides: with a share below one, the last value that must pass; else the
        worst of all.
        """
        array = np.asarray(values, dtype=np.float64).ravel()
        if np.isnan(array).any():
            return math.nan
        excess = np.maximum(self.low - array, array - self.high)
        order = np.argsort(excess, kind="stable")
        return float(array[order[min(len(array), math.ceil(self.share * len(array) - 1e-9)) - 1]])

    @property
    def threshold(self) -> Any:
        """The bound as a number, or as a pair when there are two; JSON-ready."""
        if math.isinf(self.low):
            return self.high
        return self.low if math.isinf(self.high) else [self.low, self.high]

    def __str__(self) -> str:
        if math.isinf(self.low):
            words = f"at most {self.high:g}"
        elif math.isinf(self.high):
            words = f"at least {self.low:g}"
        else:
            words = f"from {self.low:g} to {self.high:g}"
        return words if self.share == 1.0 else f"{words} in {self.share:.4g} of the instances"


def at_most(bound: float, because: str, share: float = 1.0) -> Expectation:
    """Values up to ``bound``."""
    return Expectation(-math.inf, bound, because, share)


def at_least(bound: float, because: str, share: float = 1.0) -> Expectation:
    """Values from ``bound`` on."""
    return Expectation(bound, math.inf, because, share)


def between(low: float, high: float, because: str, share: float = 1.0) -> Expectation:
    """Values from ``low`` to ``high``."""
    return Expectation(low, high, because, share)


def close_to(value: float, tolerance: float, because: str, share: float = 1.0) -> Expectation:
    """Values within ``tolerance`` of ``value``."""
    return Expectation(value - tolerance, value + tolerance, because, share)


def true(because: str, share: float = 1.0) -> Expectation:
    """Booleans that should be true."""
    return Expectation(1.0, math.inf, because, share)
