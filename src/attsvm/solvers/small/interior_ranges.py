"""Small programmes that lie end to end in memory, brought near one, through interior points, and
back to the caller's units.

All scales are powers of two: what is near one has the digits of the caller's numbers.
"""

from __future__ import annotations

import math

import numpy as np

from attsvm.data import FloatArray, IntArray
from attsvm.jit import summing_kernel
from attsvm.solvers.small.interior import interior_point
from attsvm.solvers.small.small_algebra import margins, scales
from attsvm.solvers.small.small_frobenius import UNSETTLED, WEIGHTS, fitting_range

_DEPENDENT = 1e-24  # squared distance to earlier rows, relative, of rows that lie in their span
_NONE = -100_000
_APART = 1e-8  # slack of rows that are not active, and multipliers that are none, relative


@summing_kernel
def entrywise_points(
    first: int,
    last: int,
    D: FloatArray,
    Z: FloatArray,
    offsets: IntArray,
    instances: IntArray,
    b: FloatArray,
    W: FloatArray,
    dual: FloatArray,
    outcome: IntArray,
    systems: IntArray,
    p: float,
) -> None:
    """Weights and multipliers of the programmes ``first`` to ``last - 1`` whose outcome is
    ``WEIGHTS``; it becomes ``UNSETTLED`` where none were found.
    """
    fitting_range(first, last, D, Z, offsets, instances, b, W, dual, outcome, systems)
    for k in range(first, last):
        if outcome[k] != WEIGHTS:
            continue
        outcome[k] = UNSETTLED
        start, d, z, bounds, size, near, power = _opened(k, D, Z, offsets, instances, b)
        if power == _NONE:
            continue
        rows = np.empty((len(d), W[k].size))
        for i in range(len(z)):
            for c in range(bounds[i], bounds[i + 1]):
                for a in range(d.shape[1]):
                    for e in range(z.shape[1]):
                        rows[c, a * z.shape[1] + e] = d[c, a] * z[i, e]
        flat, lam, systems[k] = interior_point(rows, near, p)
        W[k] = flat.reshape(W[k].shape)
        if _written(d, z, bounds, near, size, power, p, W[k], lam, dual[start : start + len(d)]):
            outcome[k] = WEIGHTS


@summing_kernel
def _opened(
    k: int,
    D: FloatArray,
    Z: FloatArray,
    offsets: IntArray,
    instances: IntArray,
    b: FloatArray,
) -> tuple[int, FloatArray, FloatArray, IntArray, FloatArray, FloatArray, int]:
    """Where the rows of programme ``k`` begin, its differences, queries and offsets, and what
    :func:`_near_one` says of it.
    """
    begin, end = instances[k], instances[k + 1]
    start, stop = offsets[begin], offsets[end]
    d, z, bounds = D[start:stop].copy(), Z[begin:end].copy(), offsets[begin : end + 1] - start
    size, near = np.empty(len(d)), np.empty(len(d))
    power = _near_one(d, z, bounds, b[start:stop], size, near)
    return start, d, z, bounds, size, near, power


@summing_kernel
def _near_one(
    d: FloatArray,
    z: FloatArray,
    offsets: IntArray,
    b: FloatArray,
    size: FloatArray,
    near: FloatArray,
) -> int:
    """Rows, queries and right-hand sides times powers of two that bring them near one: ``size`` is
    that of ``A_c``, the weights are to be multiplied by 2 to what is returned; ``_NONE`` where
    nothing can be done.
    """
    factor, highest = np.empty(len(z)), 0.0
    if not (scales(d, size) and scales(z, factor)):
        return _NONE
    for i in range(len(z)):
        for e in range(z.shape[1]):
            z[i, e] *= factor[i]
        for c in range(offsets[i], offsets[i + 1]):
            for a in range(d.shape[1]):
                d[c, a] *= size[c]
            size[c] *= factor[i]
            near[c] = b[c] * size[c]
            highest = max(highest, near[c])
    if not 0.0 < highest < np.inf:
        return _NONE
    power = math.frexp(highest)[1]
    for c in range(len(near)):
        near[c] = math.ldexp(near[c], -power)
    return power


@summing_kernel
def _written(
    d: FloatArray,
    z: FloatArray,
    offsets: IntArray,
    near: FloatArray,
    size: FloatArray,
    power: int,
    p: float,
    W: FloatArray,
    lam: FloatArray,
    dual: FloatArray,
) -> bool:
    """Weights that meet the margins and ``dual`` in the caller's units, where there are such."""
    values, ratio, largest, total = np.empty(len(near)), np.inf, 0.0, 0.0
    margins(d, z, offsets, W, np.empty(d.shape[1]), values)
    for c in range(len(near)):
        largest = max(largest, lam[c])
        if near[c] > 0.0:
            ratio = min(ratio, values[c] / near[c])
    if not (0.0 < ratio < np.inf and 0.0 < largest < np.inf):
        return False
    for c in range(len(near)):
        # what interior points leave to rows that are not active is what their gap is made of
        if values[c] / ratio - near[c] > _APART and lam[c] < _APART * largest:
            lam[c] = 0.0
        total += near[c] * lam[c]
    length, most = 0.0, 0.0
    for a in range(W.shape[0]):
        for e in range(W.shape[1]):
            W[a, e] /= ratio
            entry = abs(W[a, e])
            most = max(most, entry)
            if 0.0 < p < np.inf:
                length += entry**p
            W[a, e] = math.ldexp(W[a, e], power)
    # entrywise, multipliers are those of half the square: b @ dual is the square of the norm
    stretch = 1.0
    if p > 0.0:
        length = most if p == np.inf else length ** (1.0 / p)
        stretch = math.ldexp(length * length / total, power)
    for c in range(len(near)):
        dual[c] = stretch * (lam[c] * size[c])
    return True
