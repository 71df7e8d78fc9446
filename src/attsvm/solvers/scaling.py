r"""The programme at a scale near one, and its solution brought back.

With :math:`\delta_c=2^a\hat\delta_c`, :math:`z_i=2^b\hat z_i` and right-hand sides
:math:`2^c\hat b` the programme is homogeneous:

.. math:: W=2^{c-a-b}\,\hat W,\qquad \lambda=2^{c-2(a+b)}\,\hat\lambda,\qquad C=2^{c-2(a+b)}\,\hat C
    .

Powers of two are exact, so both programmes have the same solutions, gaps and certificates bit for
bit, and neither a square nor a product of three factors leaves float64 on the way. Violations are
measured in units of :math:`2^c`, the power of two at or below the largest right-hand side.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from attsvm.base.errors import InputError
from attsvm.datasets.attention_data import FloatArray
from attsvm.margins import Margins

_TINY = float(np.finfo(np.float64).tiny)


class OutOfRangeError(InputError):
    """A programme whose solution float64 cannot hold at the scale of its data."""


class Scaling(NamedTuple):
    """A programme with differences, queries and right-hand sides near one.

    Attributes:
        margins: the scaled programme; the given one when nothing had to change.
        tokens: exponent of the power of two by which the differences were divided.
        queries: that of the queries.
        sides: that of the right-hand sides.
    """

    margins: Margins
    tokens: int = 0
    queries: int = 0
    sides: int = 0

    @property
    def weights(self) -> int:
        """``W = 2**weights * W_scaled``."""
        return self.sides - self.tokens - self.queries

    @property
    def multipliers(self) -> int:
        """``dual = 2**multipliers * dual_scaled``, and likewise for the penalty C."""
        return self.sides - 2 * (self.tokens + self.queries)

    @property
    def advice(self) -> str:
        """Advice by what to divide, where the solution leaves float64."""
        exponents = {"tokens": self.tokens, "queries": self.queries, "right-hand sides": self.sides}
        quotients = [f"the {name} by 2.0**{power}" for name, power in exponents.items() if power]
        return "divide " + " and ".join(quotients)

    def penalty(self, slack: float) -> float:
        """The penalty C of the scaled programme.

        Raises:
            InputError: it is not a float64 number, or squares of multipliers up to it are not.
        """
        with np.errstate(over="ignore", under="ignore"):
            scaled = float(np.ldexp(slack, -self.multipliers))
        largest = 2.0**480  # of which squares, times those of rows, are float64 numbers
        if not _TINY <= scaled <= largest:
            advice = self.advice if self.multipliers else "give a smaller one, or none"
            raise OutOfRangeError(
                f"slack {slack:g} leaves the range of float64 at the scale of these margins;"
                f" {advice}"
            )
        return scaled

    def start(self, dual: FloatArray) -> FloatArray | None:
        """Multipliers of the given programme at the scale of this one; ``None`` when they leave
        float64.
        """
        with np.errstate(over="ignore", under="ignore"):
            scaled: FloatArray = np.ldexp(dual, -self.multipliers)
        return scaled if np.isfinite(scaled).all() else None

    def restored(self, W: FloatArray, dual: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Weights and multipliers of the given programme.

        Raises:
            InputError: they are not float64 numbers.
        """
        return (
            self._moved("weights", W, self.weights),
            self._moved("multipliers", dual, self.multipliers),
        )

    def _moved(self, what: str, array: FloatArray, exponent: int) -> FloatArray:
        if exponent == 0:
            return array
        with np.errstate(over="ignore", under="ignore"):
            moved: FloatArray = np.ldexp(array, exponent)
        size = np.abs(array)
        # What is smaller by so much may underflow: it moves no certificate.
        counted = size > 2.0**-40 * size.max(initial=0.0)
        if not np.isfinite(moved).all() or (np.abs(moved[counted]) < _TINY).any():
            power = int(np.frexp(size.max())[1]) + exponent
            raise OutOfRangeError(
                f"the {what} of the solution (about 2.0**{power}) leave the range of float64;"
                f" {self.advice}"
            )
        return moved


def scaled(margins: Margins) -> Scaling:
    """The programme near one: unchanged where it is already, with differences or queries divided by
    a power of two where they are not.

    Raises:
        InputError: a value is not finite.
    """
    D, Z, rhs = margins.differences, margins.queries, margins.rhs
    squares = float(np.vdot(D, D)), float(np.vdot(Z, Z))
    largest = float(np.maximum.reduce(np.abs(rhs), initial=0.0))
    if not math.isfinite(squares[0] + squares[1] + largest):
        refuse_infinite(margins)
    # Margins at a usual scale stay the caller's object.
    a, b = _exponent_where_far(D, squares[0]), _exponent_where_far(Z, squares[1])
    c = _floor_exponent(largest)
    if a == b == c == 0:
        return Scaling(margins)
    near = replace(
        margins,
        differences=_divide_by_power(D, a),
        queries=_divide_by_power(Z, b),
        rhs=_divide_by_power(rhs, c),
    )
    return Scaling(near, a, b, c)


def refuse_infinite(margins: Margins) -> None:
    """Refuse values that are not finite.

    Raises:
        InputError: the first of them, and where it is.
    """
    for name in ("differences", "queries", "rhs"):
        array = getattr(margins, name)
        # finite squares are quicker to see, and make no array
        finite = array.flags.c_contiguous and math.isfinite(np.vdot(array, array))
        if not finite and not np.isfinite(array).all():
            position = np.argwhere(~np.isfinite(array))[0].tolist()
            value = array[tuple(position)]
            raise InputError(
                f"margins.{name} holds {value} at {position}; every value must be finite"
            )


def _exponent_where_far(array: FloatArray, squares: float) -> int:
    """The exponent of the largest entry, or 0 where it is harmless, as the sum of squares shows
    nearly always.
    """
    near = 64  # exponents up to this one are harmless, and cost no copy
    if array.size * 2.0 ** (-2 * near) <= squares <= 2.0 ** (2 * near):
        return 0
    exponent = _floor_exponent(float(np.abs(array).max(initial=0.0)))
    return 0 if abs(exponent) <= near else exponent


def _floor_exponent(largest: float) -> int:
    """The exponent of the power of two at or below a size; 0 for zero."""
    return math.frexp(largest)[1] - 1 if largest > 0.0 else 0


def _divide_by_power(array: FloatArray, exponent: int) -> FloatArray:
    """``array / 2**exponent``. What underflows is below 2**-1000 of the largest."""
    if exponent == 0:
        return array
    with np.errstate(under="ignore"):
        divided: FloatArray = np.ldexp(array, -exponent)
    return divided
