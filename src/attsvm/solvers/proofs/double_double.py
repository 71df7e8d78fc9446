r"""Margins and their adjoint with twice the digits of float64, in compiled code.

A number is an unevaluated sum ``high + low`` of two float64 numbers, kept by the error-free sum of
Knuth and the error-free product of Dekker and Veltkamp (T. J. Dekker, *A floating-point technique
for extending the available precision*, 1971). Every sum below has a relative error of at most
``ROUNDING`` times the sum of the sizes of its terms, so a margin of large weights, in which
everything cancels but the last digits, comes out right. Entries must be between 2**-400 and 2**400
in size, or zero; what is smaller loses digits but no more than 2**-900.
"""

from __future__ import annotations

import numpy as np

from attsvm.data import FloatArray, IntArray
from attsvm.jit import kernel, summing_kernel

ROUNDING = 2.0**-98
"""Relative to the sum of the sizes of the terms of a margin, for up to a million terms."""

_SPLIT = 134217729.0  # 2**27 + 1


@summing_kernel
def fitting(offsets: IntArray, rows: int) -> None:
    """Refuse offsets that do not cut ``rows`` rows into parts, one after the other.

    Raises:
        ValueError: they begin before the first row, fall, or end elsewhere than at the last.
    """
    if len(offsets) == 0 or offsets[0] != 0 or offsets[-1] != rows:
        raise ValueError("offsets must begin at 0 and end at the number of rows")
    for i in range(len(offsets) - 1):
        if offsets[i] > offsets[i + 1]:
            raise ValueError("offsets must not fall")


@kernel
def _sum(a: float, b: float) -> tuple[float, float]:
    s = a + b
    t = s - a
    return s, (a - (s - t)) + (b - t)


@kernel
def _product(a: float, b: float) -> tuple[float, float]:
    p = a * b
    t = _SPLIT * a
    high = t - (t - a)
    low = a - high
    t = _SPLIT * b
    other = t - (t - b)
    rest = b - other
    return p, ((high * other - p) + high * rest + low * other) + low * rest


@kernel
def _added(high: float, low: float, more: float, rest: float) -> tuple[float, float]:
    """``(high, low) + (more, rest)``, each half with its own error-free sum."""
    s, e = _sum(high, more)
    t, f = _sum(low, rest)
    e += t
    u = s + e
    e = e - (u - s)
    e += f
    s = u + e
    return s, e - (s - u)


@kernel
def _times(high: float, low: float, factor: float) -> tuple[float, float]:
    p, e = _product(high, factor)
    e += low * factor
    s = p + e
    return s, e - (s - p)


@kernel
def margins(
    D: FloatArray,
    Z: FloatArray,
    offsets: IntArray,
    W: FloatArray,
    rest: FloatArray,
    high: FloatArray,
    low: FloatArray,
) -> None:
    """``<A_c, W + rest>`` as ``high + low``."""
    d_x, d_z = W.shape
    fitting(offsets, D.shape[0])
    if D.shape[1] != d_x or Z.shape[1] != d_z or Z.shape[0] != len(offsets) - 1:
        raise ValueError("W must have a row per feature of D and a column per feature of Z")
    if rest.shape != W.shape or len(high) != D.shape[0] or len(low) != D.shape[0]:
        raise ValueError("rest must be like W, high and low must have an entry per row")
    moved, after = np.empty(d_x), np.empty(d_x)
    for i in range(len(offsets) - 1):
        if offsets[i] == offsets[i + 1]:
            continue
        for a in range(d_x):
            s, e = 0.0, 0.0
            for k in range(d_z):
                p, q = _times(W[a, k], rest[a, k], Z[i, k])
                s, e = _added(s, e, p, q)
            moved[a], after[a] = s, e
        for c in range(offsets[i], offsets[i + 1]):
            s, e = 0.0, 0.0
            for a in range(d_x):
                p, q = _times(moved[a], after[a], D[c, a])
                s, e = _added(s, e, p, q)
            high[c], low[c] = s, e


@kernel
def adjoint(
    D: FloatArray,
    Z: FloatArray,
    offsets: IntArray,
    dual: FloatArray,
    high: FloatArray,
    low: FloatArray,
    size: FloatArray,
) -> None:
    """``sum_c dual_c A_c`` as ``high + low``, and the sum of the sizes of its terms."""
    d_x, d_z = high.shape
    fitting(offsets, D.shape[0])
    if D.shape[1] != d_x or Z.shape[1] != d_z or Z.shape[0] != len(offsets) - 1:
        raise ValueError("high must have a row per feature of D and a column per feature of Z")
    if low.shape != high.shape or size.shape != high.shape or len(dual) != D.shape[0]:
        raise ValueError("low and size must be like high, dual must have an entry per row")
    pulled, after, total = np.empty(d_x), np.empty(d_x), np.empty(d_x)
    high[:], low[:], size[:] = 0.0, 0.0, 0.0
    for i in range(len(offsets) - 1):
        pulled[:], after[:], total[:] = 0.0, 0.0, 0.0
        some = False
        for c in range(offsets[i], offsets[i + 1]):
            if dual[c] == 0.0:
                continue
            some = True
            for a in range(d_x):
                p, q = _product(dual[c], D[c, a])
                pulled[a], after[a] = _added(pulled[a], after[a], p, q)
                total[a] += abs(p)
        if not some:
            continue
        for a in range(d_x):
            for k in range(d_z):
                p, q = _times(pulled[a], after[a], Z[i, k])
                high[a, k], low[a, k] = _added(high[a, k], low[a, k], p, q)
                size[a, k] += total[a] * abs(Z[i, k])


@kernel
def dot(x: FloatArray, y: FloatArray) -> tuple[float, float]:
    """``x @ y``."""
    if len(x) != len(y):
        raise ValueError("x and y must have the same length")
    s, e = 0.0, 0.0
    for c in range(len(x)):
        p, q = _product(x[c], y[c])
        s, e = _added(s, e, p, q)
    return s, e
