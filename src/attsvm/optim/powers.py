r"""Signed powers :math:`\mathrm{sp}(y,r)=\mathrm{sign}(y)|y|^r` of tensors, by products and square
roots where these are exact.

The two powers of a potential :math:`\frac1p\|W\|_p^p` have the exponents :math:`p-1` and
:math:`\frac1{p-1}`. Neither is a floating-point number in general, and an exponent that is wrong by
one rounding makes :math:`|y|^r` wrong by
:math:`r\ln|y|` roundings. So an exponent is an integer and a fraction in :math:`[0,1)`: powers of
integers take the exponent as it is, and the fraction is rounded once, at its own size.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import Tensor


@dataclass(frozen=True)
class Exponent:
    """A positive exponent ``integer + fraction``, ``0 <= fraction < 1``."""

    integer: int
    fraction: float

    @property
    def value(self) -> float:
        """The exponent as one number. No ``__float__``: the compiler of torch 2.6 cannot follow
        that.
        """
        return self.integer + self.fraction


_EXPONENTS: dict[float, tuple[Exponent, Exponent]] = {}  # by p: needed at every step


def mirror_exponents(p: float, longest_denominator: int = 1000) -> tuple[Exponent, Exponent]:
    r"""Return :math:`p-1` and :math:`\frac1{p-1}`, of the short fraction that ``p`` stands for
    where there is one: 1.1 is 11/10, and not the binary fraction next to it.

    Args:
        p: exponent of a potential, above 1.
        longest_denominator: of fractions that count as short.
    """
    if p not in _EXPONENTS:
        short = Fraction(p).limit_denominator(longest_denominator)
        slope = (short if float(short) == p else Fraction(p)) - 1
        _EXPONENTS[p] = _split_exponent(slope), _split_exponent(1 / slope)
    return _EXPONENTS[p]


def _split_exponent(exponent: Fraction) -> Exponent:
    integer = exponent.numerator // exponent.denominator
    fraction = float(exponent - integer)
    return Exponent(integer + 1, 0.0) if fraction == 1.0 else Exponent(integer, fraction)


def signed_powers(ys: list[Tensor], exponent: Exponent) -> list[Tensor]:
    r"""Return :math:`\mathrm{sign}(y)|y|^r` of every tensor, entry by entry, in multi-tensor calls;
    NaN stays NaN.
    """
    sizes = list(torch._foreach_abs(ys))
    integer, fraction = exponent.integer, exponent.fraction
    if fraction == 0.0 and integer <= 3:
        # products with y itself have its sign: y, |y| y, |y|^2 y
        if integer == 1:
            torch._foreach_copy_(sizes, ys)
        elif integer == 3:
            torch._foreach_mul_(sizes, sizes)
        if integer > 1:
            torch._foreach_mul_(sizes, ys)
        return sizes
    if fraction == 0.0 and integer == 4:
        for _ in range(2):
            torch._foreach_mul_(sizes, sizes)
    elif fraction == 0.0:
        torch._foreach_pow_(sizes, float(integer))
    else:
        # |y|^r = |y|^fraction |y|^integer
        roots = _fractional_powers(sizes, fraction)
        if integer:
            torch._foreach_pow_(sizes, float(integer))
            torch._foreach_mul_(roots, sizes)
        sizes = roots
    torch._foreach_mul_(sizes, torch._foreach_sign(ys))
    return sizes


def _fractional_powers(sizes: list[Tensor], fraction: float) -> list[Tensor]:
    """Return ``size ** fraction`` of every tensor, as new ones, for ``size >= 0`` and
    ``0 < fraction < 1``; by square roots, which are rounded once, where they do.
    """
    if fraction not in (0.25, 0.5, 0.75):
        return list(torch._foreach_pow(sizes, fraction))
    roots = list(torch._foreach_sqrt(sizes))
    if fraction == 0.25:
        torch._foreach_sqrt_(roots)
    elif fraction == 0.75:
        torch._foreach_mul_(roots, torch._foreach_sqrt(roots))
    return roots
