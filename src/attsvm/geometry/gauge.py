r"""The :math:`\ell_p` gauge of vectors: value, duality map, projection and proximal map, along the
last axis.

Norms of matrices lift it: the entrywise norms apply it to the entries, the Schatten norms to the
singular values, the norms of rows to the lengths of the rows. Numbers are divided by the largest of
their vector before they are raised to a power, so no scale overflows or underflows.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from array_api_compat import array_namespace

from attsvm.geometry.roots import shrink

Array = Any
INFINITY = float("inf")


class Gauge:
    r""":math:`\|x\|_p` of vectors ``(..., k)``, :math:`1\le p\le\infty`; its dual has the exponent
    ``q``.
    """

    def __init__(self, p: float, q: float) -> None:
        self.p, self.q = p, q

    @property
    def dual(self) -> Gauge:
        """The gauge of the conjugate exponent; its dual is this one, to the bit."""
        return gauge(self.q, self.p)

    def length(self, x: Array) -> Array:
        r""":math:`\|x\|_p`, ``(..., k)`` to ``(...)``."""
        xp, p = array_namespace(x), self.p
        size = xp.abs(x)
        if p == 1.0:
            return xp.sum(size, axis=-1)
        largest = xp.max(size, axis=-1)
        if p == INFINITY:
            return largest
        unit = size / _safe(largest)[..., None]
        if p == 2.0:
            return largest * xp.sqrt(xp.sum(unit * unit, axis=-1))
        with np.errstate(under="ignore"):
            return largest * xp.sum(unit**p, axis=-1) ** (1.0 / p)

    def aligned(self, x: Array) -> Array:
        r"""The unit vector of :math:`\ell_p` that attains :math:`\langle x,d\rangle=\|x\|_q`; zero
        at zero.

        .. math:: d=\mathrm{sign}(x)\,|x|^{q-1}/\|x\|_q^{q-1},\qquad \tfrac1p+\tfrac1q=1.

        For :math:`p=1` it is not unique when the largest entry is not; the first of the largest is
        chosen. For :math:`p=\infty` entries where ``x`` is zero are free; they are zero.
        """
        xp, p = array_namespace(x), self.p
        if p == INFINITY:
            return xp.sign(x)
        size = xp.abs(x)
        if p == 1.0:
            positions = xp.cumulative_sum(xp.ones_like(size, dtype=xp.int64), axis=-1) - 1
            first = xp.argmax(size, axis=-1, keepdims=True)
            return xp.where(positions == first, xp.sign(x), xp.zeros_like(x))
        unit = size / _safe(xp.max(size, axis=-1))[..., None]
        if p == 2.0:
            total = xp.sum(unit * unit, axis=-1)
        else:
            with np.errstate(under="ignore"):
                raised = unit ** (1.0 / (p - 1.0))
                total = xp.sum(raised * unit, axis=-1)
                unit = raised
        return xp.sign(x) * unit / _safe(total ** (1.0 / p))[..., None]

    def onto_ball(self, x: Array, radius: Array) -> Array:
        r"""The nearest point of the ball :math:`\|v\|_p\le r`; a point inside is returned as it is.

        Closed form for :math:`p=1` (sorting; Held, Wolfe and Crowder 1974), 2 and
        :math:`\infty`; else Newton's method on the multiplier of the ball, inside a bracket.

        Args:
            x: ``(..., k)``.
            radius: non-negative, broadcasts against ``x``.
        """
        xp, p = array_namespace(x), self.p
        radius = radius * xp.ones_like(x)
        if p == INFINITY:
            return xp.sign(x) * xp.where(xp.abs(x) < radius, xp.abs(x), radius)
        outside = self.length(x)[..., None] > radius
        if not bool(xp.any(outside)):
            return x
        scale = _safe(radius)
        # rows that are inside already take part as zero, at which nothing has to be solved
        v = xp.where(outside, xp.abs(x) / scale, xp.zeros_like(x))
        if p == 1.0:
            nearest = _onto_simplex(v)
        elif p == 2.0:
            nearest = v
        else:
            nearest = _onto_power_ball(v, self)
        nearest = nearest / _safe(self.length(nearest))[..., None]
        return xp.where(outside, xp.sign(x) * nearest * radius, x)


@cache
def gauge(p: float, q: float) -> Gauge:
    """The gauge of these exponents, one object for each: norms ask for theirs at every step."""
    return Gauge(p, q)


def _onto_simplex(v: Array) -> Array:
    """The nearest point with sum one: a threshold, found below the largest entry so that no size of
    ``v`` cancels.
    """
    xp = array_namespace(v)
    below = v - xp.max(v, axis=-1, keepdims=True)
    below = xp.where(below > -2, below, xp.full_like(below, -2.0))
    ordered = xp.sort(below, axis=-1, descending=True)
    count = xp.cumulative_sum(xp.ones_like(v), axis=-1)
    thresholds = (xp.cumulative_sum(ordered, axis=-1) - 1) / count
    threshold = xp.max(thresholds, axis=-1, keepdims=True)
    inside = below > threshold
    # a Newton step on the sum itself removes what rounding left in the long cumulative sums
    excess = (
        xp.sum(xp.where(inside, below - threshold, xp.zeros_like(v)), axis=-1, keepdims=True) - 1
    )
    threshold = threshold + excess / xp.sum(
        xp.where(inside, xp.ones_like(v), xp.zeros_like(v)), axis=-1, keepdims=True
    )
    return xp.where(below > threshold, below - threshold, xp.zeros_like(v))


def _onto_power_ball(v: Array, gauge: Gauge) -> Array:
    r"""The nearest point with :math:`\|x\|_p=1` to ``v``, ``v >= 0`` and longer than one or zero.

    :math:`x+\lambda x^{p-1}=v` gives :math:`\lambda=\|v-x\|_q`, hence a bracket:
    :math:`\lambda\le\|v\|_q` because
    :math:`0\le x\le v`, and :math:`\lambda\ge k^{-(1/p-1/q)_+}(\|v\|_p-1)`.  Newton's method works
    on
    :math:`\|x(\lambda)\|_p^{-a}=1`, where :math:`a` makes the function linear at :math:`p=2`, for
    :math:`p\to1`, and for large
    :math:`\lambda`; a step that leaves the bracket is replaced by its geometric middle.
    """
    xp, p, q = array_namespace(v), gauge.p, gauge.q
    solved = xp.max(v, axis=-1) <= 0
    excess = gauge.length(v) - 1
    tiny = float(xp.finfo(v.dtype).smallest_normal)
    shrinkage = float(v.shape[-1]) ** -max(0.0, 1.0 / p - 1.0 / q)
    low = xp.where(excess > tiny, excess, xp.full_like(excess, tiny)) * shrinkage * (1 - 1e-12)
    high = gauge.dual.length(v) * (1 + 1e-12)
    high = xp.where(high > low, high, 2 * low)
    a = p - 1.0 if p > 2.0 else 2.0 * p - 3.0
    tolerance = 2 * float(xp.finfo(v.dtype).eps)
    multiplier = low
    x = v
    for _ in range(200):
        x = shrink(v, multiplier[..., None], p)
        logarithm = xp.log(_safe(gauge.length(x)))
        low = xp.where(logarithm > 0, multiplier, low)
        high = xp.where(logarithm < 0, multiplier, high)
        slope = _descent(x, multiplier, p)
        with np.errstate(all="ignore"):
            growth = xp.expm1(a * logarithm) / a if a else logarithm
            step = growth / slope
            proposal = multiplier + step
        good = (proposal >= low) & (proposal <= high)
        middle = xp.sqrt(low) * xp.sqrt(high)
        settled = solved | (xp.abs(logarithm) <= tolerance) | (high - low <= tolerance * high)
        settled = settled | (good & (xp.abs(step) <= 4 * tolerance * multiplier))
        if bool(xp.all(settled)):
            break
        multiplier = xp.where(settled, multiplier, xp.where(good, proposal, middle))
    return x


def _descent(x: Array, multiplier: Array, p: float) -> Array:
    r""":math:`-\mathrm d\log\|x(\lambda)\|_p/\mathrm d\lambda`."""
    xp = array_namespace(x)
    largest = _safe(xp.max(x, axis=-1))[..., None]
    with np.errstate(all="ignore"):
        weight = (x / largest) ** p
        if p >= 2.0:
            bend = x ** (p - 2.0)
            pull = bend / (1 + (p - 1.0) * multiplier[..., None] * bend)
        else:
            pull = 1 / (x ** (2.0 - p) + (p - 1.0) * multiplier[..., None])
        return xp.sum(weight * pull, axis=-1) / _safe(xp.sum(weight, axis=-1))


def _safe(number: Array) -> Array:
    """The number, or one where it is zero: a divisor."""
    xp = array_namespace(number)
    return xp.where(number > 0, number, xp.ones_like(number))
