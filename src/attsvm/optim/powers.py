r"""Signed powers :math:`\mathrm{sp}(y,r)=\mathrm{sign}(y)|y|^r` of tensors, by products and square
roots where these are exact.

The two powers of a potential :math:`\frac1p\|W\|_p^p` have the exponents :math:`p-1` and
:math:`\frac1{p-1}`. Neither is a floating-point number in general, and an exponent that is wrong by
one rounding makes :math:`|y|^r` wrong by
:math:`r\ln|y|` roundings. So an exponent is kept as a whole number and a rest in :math:`[0,1)`:
powers of whole exponents take the exponent as it is, and the rest is rounded once, at its own size.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import Tensor

_LONGEST_DENOMINATOR = 1000  # p = 1.1 stands for 11/10, and not for the binary fraction next to it


@dataclass(frozen=True)
class Exponent:
    """A positive exponent ``whole + rest``, ``0 <= rest < 1``."""

    whole: int
    rest: float

    @property
    def value(self) -> float:
        """The exponent as one number. No ``__float__``: the compiler of torch 2.6 cannot follow
        that.
        """
        return self.whole + self.rest


_KNOWN: dict[float, tuple[Exponent, Exponent]] = {}


def mirror_exponents(p: float) -> tuple[Exponent, Exponent]:
    r""":math:`p-1` and :math:`\frac1{p-1}`, of the short fraction that ``p`` stands for where there
    is one (1.1 is 11/10).
    """
    if p not in _KNOWN:
        short = Fraction(p).limit_denominator(_LONGEST_DENOMINATOR)
        slope = (short if float(short) == p else Fraction(p)) - 1
        _KNOWN[p] = _split(slope), _split(1 / slope)
    return _KNOWN[p]


def _split(exponent: Fraction) -> Exponent:
    whole = exponent.numerator // exponent.denominator
    rest = float(exponent - whole)
    return Exponent(whole + 1, 0.0) if rest == 1.0 else Exponent(whole, rest)


def signed_powers(ys: list[Tensor], exponent: Exponent) -> list[Tensor]:
    r""":math:`\mathrm{sign}(y)|y|^r` of every tensor, entry by entry, in multi-tensor calls; NaN
    stays NaN.
    """
    sizes = list(torch._foreach_abs(ys))
    whole, rest = exponent.whole, exponent.rest
    if rest == 0.0 and whole <= 3:
        if whole == 1:
            torch._foreach_copy_(sizes, ys)
        elif whole == 3:
            torch._foreach_mul_(sizes, sizes)
        if whole > 1:
            torch._foreach_mul_(sizes, ys)
        return sizes
    if rest == 0.0 and whole == 4:
        for _ in range(2):
            torch._foreach_mul_(sizes, sizes)
    elif rest == 0.0:
        torch._foreach_pow_(sizes, float(whole))
    else:
        roots = _roots(sizes, rest)
        if whole:
            torch._foreach_pow_(sizes, float(whole))
            torch._foreach_mul_(roots, sizes)
        sizes = roots
    torch._foreach_mul_(sizes, torch._foreach_sign(ys))
    return sizes


def _roots(sizes: list[Tensor], rest: float) -> list[Tensor]:
    """``size ** rest`` of every tensor, as new ones, for ``size >= 0`` and ``0 < rest < 1``."""
    if rest not in (0.25, 0.5, 0.75):
        return list(torch._foreach_pow(sizes, rest))
    roots = list(torch._foreach_sqrt(sizes))
    if rest == 0.25:
        torch._foreach_sqrt_(roots)
    elif rest == 0.75:
        torch._foreach_mul_(roots, torch._foreach_sqrt(roots))
    return roots
