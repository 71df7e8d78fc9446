r"""The root of :math:`x+t\,x^{p-1}=v`: the proximal map of a power, entry by entry.

.. math:: \arg\min_{x}\ \tfrac tp|x|^p+\tfrac12(x-v)^2,\qquad t\ge0,\ 1<p<\infty.

For :math:`p\ge2` the equation is convex and increasing in :math:`x`.  For :math:`p<2` it is so in
:math:`y=x^{p-1}`, where it reads :math:`t\,y+y^{1/(p-1)}=v`.  Either way it has the form
:math:`\alpha x+\beta x^r=v` with :math:`r\ge1`; divided by an upper bound of its root it becomes
:math:`a u+b u^r=1` with :math:`\max(a,b)=1` and :math:`u\in[\frac12,1]`, on which Newton's method
from the right is monotone, whatever the scales of :math:`v` and :math:`t`.

The result is accurate to a few units in the last place for :math:`p\ge1.5`, and to a few times the
condition number of the root, :math:`1/(p-1)`, below that.  :math:`p=\frac43,\frac32,2,3,4` take no
powers in the loop.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from array_api_compat import array_namespace

Array = Any


def power(x: Array, r: float) -> Array:
    """``x ** r`` for ``x >= 0``, by products and square roots where these are exact."""
    xp = array_namespace(x)
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
    xp = array_namespace(v)
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
    xp = array_namespace(v)
    root = 1.0 / (p - 1.0)
    bound = power(v, root) / power(t, root)
    bound = xp.where(bound < v, bound, v)
    a = bound / v
    return bound * _unit_root(a, t * power(bound, p - 2.0) * a, p - 1.0)


def _through_the_mirror(v: Array, t: Array, p: float) -> Array:
    """``p < 2``: the equation in ``y = x ** (p - 1)``, then one Newton step in ``x`` that undoes
    the rounding of ``1 / (p - 1)``.
    """
    xp = array_namespace(v)
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
    xp = array_namespace(a)
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
