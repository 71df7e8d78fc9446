r"""The :math:`\ell_p` gauge of vectors: value, duality map, projection and proximal map, along the
last axis.

Norms of matrices lift it: the entrywise norms apply it to the entries, the Schatten norms to the
singular values, the norms of rows to the lengths of the rows. Numbers are divided by the largest of
their vector before they are raised to a power, so no scale overflows or underflows.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from attsvm.norms.array_api import INFINITY, Array, divisor, namespace


def power(x: Array, r: float) -> Array:
    """``x ** r`` for ``x >= 0``, by products and square roots where these are exact."""
    xp = namespace(x)
    if r == 0.0:
        return xp.ones_like(x)
    if r == 1.0:
        return x
    if r == 2.0:
        return x * x
    if r == 3.0:
        return x * x * x
    return xp.sqrt(x) if r == 0.5 else x**r


def reciprocal_power(p: float) -> float:
    r""":math:`1/(p-1)`, rounded to the integer that :math:`p=\frac43` or :math:`\frac32` stands
    for.
    """
    r = 1.0 / (p - 1.0)
    return float(round(r)) if abs(r - round(r)) <= 1e-14 * r else r


def shrink(v: Array, t: Array, p: float) -> Array:
    r"""The root :math:`x\in[0,v]` of :math:`x+t\,x^{p-1}=v`, entry by entry, for :math:`v\ge0`,
    :math:`t\ge0`.

    Args:
        v: non-negative numbers.
        t: non-negative, broadcasts against ``v``.
        p: :math:`1<p<\infty`.
    """
    xp = namespace(v)
    positive = v > 0
    one = xp.ones_like(v)
    v = xp.where(positive, v, one)
    with np.errstate(all="ignore"):
        if p == 2.0:
            x = v / (1 + t)
        elif p == 3.0:
            x = 2 * v / (1 + xp.sqrt(1 + 4 * t * v))
        elif p > 2.0:
            x = _from_above(v, t, p)
        else:
            x = _through_the_mirror(v, t, p)
    return xp.where(positive, x, 0 * one)


def _from_above(v: Array, t: Array, p: float) -> Array:
    """``p > 2``: the equation as it stands."""
    xp = namespace(v)
    root = 1.0 / (p - 1.0)
    bound = power(v, root) / power(t, root)
    bound = xp.where(bound < v, bound, v)
    a = bound / v
    return bound * _unit_root(a, t * power(bound, p - 2.0) * a, p - 1.0)


def _through_the_mirror(v: Array, t: Array, p: float) -> Array:
    """``p < 2``: the equation in ``y = x ** (p - 1)``, then one Newton step in ``x`` that undoes
    the rounding of ``1 / (p - 1)``.
    """
    xp = namespace(v)
    r = reciprocal_power(p)
    direct = v / t
    bound = power(v, 1.0 / r if r in (2.0, 3.0) else p - 1.0)
    bound = xp.where(direct < bound, direct, bound)
    a, largest = t * (bound / v), power(bound, r)
    u = _unit_root(a, largest / v, r)
    x = xp.where(a * u < 0.5, v * (1 - a * u), largest * power(u, r))
    if r in (2.0, 3.0):
        return x
    pull = t / v * x ** (p - 1.0)
    step = (x / v + pull - 1) / (x / v + (p - 1.0) * pull)
    return xp.where(xp.abs(step) < 0.5, x - x * step, x)


def _unit_root(a: Array, b: Array, r: float) -> Array:
    """The root of ``a u + b u^r = 1`` in ``[1/2, 1]``, for ``r > 1`` and the larger of ``a`` and
    ``b`` about 1.
    """
    xp = namespace(a)
    tolerance = (
        float(xp.finfo(a.dtype).eps) / (4 * r)
    ) ** 0.5  # squared by the step itself: half a curvature is at most r / 2
    u = xp.ones_like(a)
    for _ in range(80):
        slope = b * power(u, r - 1.0)
        step = ((a + slope) * u - 1) / (a + r * slope)
        u = u - step
        if not bool(xp.any(xp.abs(step) > tolerance)):
            break
    return u


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
        xp, p = namespace(x), self.p
        size = xp.abs(x)
        if p == 1.0:
            return xp.sum(size, axis=-1)
        largest = xp.max(size, axis=-1)
        if p == INFINITY:
            return largest
        unit = size / divisor(largest)[..., None]
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
        xp, p = namespace(x), self.p
        if p == INFINITY:
            return xp.sign(x)
        size = xp.abs(x)
        if p == 1.0:
            positions = xp.cumulative_sum(xp.ones_like(size, dtype=xp.int64), axis=-1) - 1
            first = xp.argmax(size, axis=-1, keepdims=True)
            return xp.where(positions == first, xp.sign(x), xp.zeros_like(x))
        largest = divisor(xp.max(size, axis=-1))[..., None]
        if p == 2.0:
            unit = x / largest
            return unit / divisor(xp.sqrt(xp.sum(unit * unit, axis=-1)))[..., None]
        unit = size / largest
        with np.errstate(under="ignore"):
            raised = unit ** (1.0 / (p - 1.0))
            total = xp.sum(raised * unit, axis=-1)
        return xp.sign(x) * raised / divisor(total ** (1.0 / p))[..., None]

    def onto_ball(self, x: Array, radius: Array) -> Array:
        r"""The nearest point of the ball :math:`\|v\|_p\le r`; a point inside is returned as it is.

        Closed form for :math:`p=1` (sorting; Held, Wolfe and Crowder 1974), 2 and
        :math:`\infty`; else Newton's method on the multiplier of the ball, inside a bracket.

        Args:
            x: ``(..., k)``.
            radius: non-negative, broadcasts against ``x``.
        """
        xp, p = namespace(x), self.p
        radius = radius * xp.ones_like(x)
        if p == INFINITY:
            return xp.sign(x) * xp.where(xp.abs(x) < radius, xp.abs(x), radius)
        outside = self.length(x)[..., None] > radius
        if not bool(xp.any(outside)):
            return x
        scale = divisor(radius)
        # rows that are inside already take part as zero, at which nothing has to be solved
        v = xp.where(outside, xp.abs(x) / scale, xp.zeros_like(x))
        if p == 1.0:
            nearest = _onto_simplex(v)
        elif p == 2.0:
            nearest = v
        else:
            nearest = _onto_power_ball(v, self)
        nearest = nearest / divisor(self.length(nearest))[..., None]
        return xp.where(outside, xp.sign(x) * nearest * radius, x)


@cache
def gauge(p: float, q: float) -> Gauge:
    """The gauge of these exponents, one object for each: norms ask for theirs at every step."""
    return Gauge(p, q)


def _onto_simplex(v: Array) -> Array:
    """The nearest point with sum one: a threshold, found below the largest entry so that no size of
    ``v`` cancels.
    """
    xp = namespace(v)
    below = v - xp.max(v, axis=-1, keepdims=True)
    below = xp.where(below > -2, below, xp.full_like(below, -2.0))
    ordered = -xp.sort(-below, axis=-1)
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
    xp, p, q = namespace(v), gauge.p, gauge.q
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
        logarithm = xp.log(divisor(gauge.length(x)))
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
    xp = namespace(x)
    largest = divisor(xp.max(x, axis=-1))[..., None]
    with np.errstate(all="ignore"):
        weight = (x / largest) ** p
        if p >= 2.0:
            bend = x ** (p - 2.0)
            pull = bend / (1 + (p - 1.0) * multiplier[..., None] * bend)
        else:
            pull = 1 / (x ** (2.0 - p) + (p - 1.0) * multiplier[..., None])
        return xp.sum(weight * pull, axis=-1) / divisor(xp.sum(weight, axis=-1))
