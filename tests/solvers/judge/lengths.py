r"""Norms of exactly known matrices between two fractions.

* Entrywise: powers by ``exp`` and ``ln`` of :mod:`decimal`, which round correctly; what 40 digits
  leave open is added on either side. :math:`p=1,\infty` are exact, :math:`p=2` is an integer root.
* Singular values: a float64 decomposition :math:`U S V^\top` is only a guess. Exactly computed,
  :math:`E=G-USV^\top` and the distances :math:`\epsilon_U=\|U^\top U-1\|_F`, :math:`\epsilon_V`
  from orthonormality prove

  .. math:: \sqrt{(1-\epsilon_U)(1-\epsilon_V)}\,\|S\|_p-\sqrt k\|E\|_F \;\le\; \|G\|_p \;\le\;
      \sqrt{(1+\epsilon_U)(1+\epsilon_V)}\,\|S\|_p+\sqrt k\|E\|_F ,

  because :math:`\|USV^\top\|_p` lies between :math:`\sigma_{\min}(U)\sigma_{\min}(V)\|S\|_p` and
  :math:`\sigma_{\max}(U)\sigma_{\max}(V)\|S\|_p`, and :math:`\|E\|_p\le\sqrt k\|E\|_F`.
"""

from __future__ import annotations

import decimal
import math
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np

from .dyadic import Dyadic, dyadic, scaled

_BITS = 200  # entries are cut to this many bits of the largest: far below what is to be decided
_CONTEXT = decimal.Context(prec=40, Emin=decimal.MIN_EMIN, Emax=decimal.MAX_EMAX)
_SLACK = Fraction(1, 10**30)  # 40 digits, less those of exponents up to 1e6 and of 1e3 additions

Bounds = tuple[Fraction, Fraction]


@dataclass(frozen=True)
class Gauge:
    """A norm as the judge knows it: the p-norm of the entries or of the singular values."""

    spectral: bool
    p: float

    def bounds(self, matrix: Dyadic) -> Bounds:
        """Fractions below and above the norm of the matrix."""
        return _bounds(self.spectral, _exponent(self.p), matrix)

    def dual_bounds(self, matrix: Dyadic) -> Bounds:
        """Fractions below and above the dual norm."""
        return _bounds(self.spectral, _conjugate(self.p), matrix)


FROBENIUS = Gauge(False, 2.0)


def gauge(name: str) -> Gauge:
    """``fro``, ``nuc``, ``spec``, ``l1``, ``linf``, ``lp:P``, ``schatten:P``."""
    single = {
        "fro": FROBENIUS,
        "nuc": Gauge(True, 1.0),
        "spec": Gauge(True, math.inf),
        "l1": Gauge(False, 1.0),
        "linf": Gauge(False, math.inf),
    }
    if name in single:
        return single[name]
    family, _, number = name.partition(":")
    return Gauge({"lp": False, "schatten": True}[family], float(number))


def root_bounds(number: Fraction) -> Bounds:
    """Fractions around the square root."""
    if number == 0:
        return Fraction(0), Fraction(0)
    top, bottom = number.numerator, number.denominator
    shift = max(0, 2 * _BITS - (top.bit_length() - bottom.bit_length()))
    shift += shift % 2
    root = math.isqrt((top << shift) // bottom)
    return scaled(root, -shift // 2), scaled(root + 1, -shift // 2)


def _exponent(p: float) -> Fraction | None:
    return None if math.isinf(p) else Fraction(p)


def _conjugate(p: float) -> Fraction | None:
    if math.isinf(p):
        return Fraction(1)
    return None if p == 1.0 else Fraction(p) / (Fraction(p) - 1)


def _bounds(spectral: bool, p: Fraction | None, matrix: Dyadic) -> Bounds:
    if not matrix.integers.any():
        return Fraction(0), Fraction(0)
    if spectral and p != 2:
        if min(matrix.integers.shape) > 1:
            return _of_singular_values(matrix, p)
        p = Fraction(2)  # one singular value, the length of the vector
    return _of_entries(matrix, p)


def _of_entries(matrix: Dyadic, p: Fraction | None) -> Bounds:
    sizes = [abs(each) for each in matrix.integers.reshape(-1)]
    largest = max(sizes)
    if p is None:
        return (scaled(largest, matrix.exponent),) * 2
    if p == 1:
        return (scaled(sum(sizes), matrix.exponent),) * 2
    if p == 2:
        return root_bounds(scaled(sum(each * each for each in sizes), 2 * matrix.exponent))
    cut = max(0, largest.bit_length() - _BITS)
    unit = Decimal(largest >> cut)
    below, above = Fraction(0), Fraction(0)
    with decimal.localcontext(_CONTEXT):
        power = Decimal(p.numerator) / Decimal(p.denominator)
        for each in sizes:
            if each == 0:
                continue
            low = each >> cut
            if low:
                share = Fraction((power * (Decimal(low) / unit).ln()).exp())
                below += share * (1 - _SLACK)
            if low and low << cut == each:
                above += share * (1 + _SLACK)
            else:
                above += Fraction((power * (Decimal(low + 1) / unit).ln()).exp()) * (1 + _SLACK)
        ends = [
            Fraction((_decimal(total).ln() / power).exp()) * (1 + sign * _SLACK)
            for total, sign in ((below, -1), (above, 1))
        ]
    exponent = matrix.exponent + cut
    exact = (largest >> cut) << cut == largest
    return (
        scaled(ends[0] * (largest >> cut), exponent),
        scaled(ends[1] * ((largest >> cut) + (0 if exact else 1)), exponent),
    )


def _decimal(number: Fraction) -> Decimal:
    return Decimal(number.numerator) / Decimal(number.denominator)


def _of_singular_values(matrix: Dyadic, p: Fraction | None) -> Bounds:
    G = matrix.integers
    shift = max(abs(each) for each in G.reshape(-1)).bit_length()
    near = Dyadic(G, -shift)  # entries up to one
    guess = np.array([[_float(each, -shift) for each in row] for row in G])
    U, S, Vt = np.linalg.svd(guess, full_matrices=False)
    left, middle, right = dyadic(U), dyadic(np.diag(S)), dyadic(Vt)
    missed = near - left @ middle @ right
    k = len(S)
    rest = root_bounds(k * _squares(missed))[1]
    tilt = [
        root_bounds(_squares(each - dyadic(np.eye(k))))[1]
        for each in (
            Dyadic(left.integers.T, left.exponent) @ left,
            right @ Dyadic(right.integers.T, right.exponent),
        )
    ]
    low, high = _of_entries(dyadic(S), p)
    narrow = root_bounds(max(Fraction(0), (1 - tilt[0]) * (1 - tilt[1])))[0]
    wide = root_bounds((1 + tilt[0]) * (1 + tilt[1]))[1]
    exponent = matrix.exponent + shift
    return (
        scaled(max(Fraction(0), narrow * low - rest), exponent),
        scaled(wide * high + rest, exponent),
    )


def _squares(matrix: Dyadic) -> Fraction:
    return scaled(sum(each * each for each in matrix.integers.reshape(-1)), 2 * matrix.exponent)


def _float(number: int, exponent: int) -> float:
    """Near ``number * 2**exponent``, a number up to one."""
    cut = max(0, number.bit_length() - 64)
    return math.ldexp(float(number >> cut), exponent + cut)


def as_float(number: Fraction | Any) -> float:
    """The nearest float64, infinite beyond their range."""
    try:
        return float(number)
    except OverflowError:
        return math.inf if number > 0 else -math.inf
