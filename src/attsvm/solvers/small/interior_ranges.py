"""Small programmes that lie end to end in memory, brought near one, through interior points, and
back to the caller's units.

All scales are powers of two: what is near one has the digits of the caller's numbers.
"""

from __future__ import annotations

import math

import numpy as np

from attsvm.data import FloatArray, IntArray
from attsvm.jit import summing_kernel
from attsvm.solvers.small.interior_spectra import spectral_point
from attsvm.solvers.small.small_algebra import margins, scales

_DEPENDENT = 1e-24  # squared distance to earlier rows, relative, of rows that lie in their span
UNSETTLED, WEIGHTS = 0, 1  # outcomes of :func:`attsvm.solvers.frobenius.settle`
_NONE = -100_000
_APART = 1e-8  # slack of rows that are not active, and multipliers that are none, relative


@summing_kernel
def fitting(offsets: IntArray, rows: int) -> None:
    """Refuse offsets that do not cut ``rows`` rows into parts, one after the other."""
    if len(offsets) == 0 or offsets[0] != 0 or offsets[-1] != rows:
        raise ValueError("offsets must begin at 0 and end at the number of rows")
    for i in range(len(offsets) - 1):
        if offsets[i] > offsets[i + 1]:
            raise ValueError("offsets must not fall")


@summing_kernel
def fitting_range(
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
) -> None:
    """Refuse arrays of the functions below that do not fit together."""
    fitting(offsets, len(D))
    fitting(instances, len(Z))
    if len(offsets) != len(Z) + 1 or len(b) != len(D) or len(dual) != len(D):
        raise ValueError(
            "offsets must have an entry per query and one more, b and dual one per row"
        )
    count = len(instances) - 1
    if len(W) != count or W.shape[1] != D.shape[1] or W.shape[2] != Z.shape[1]:
        raise ValueError("W must have an entry per programme, of the widths of D and Z")
    if len(outcome) != count or len(systems) != count or first < 0 or last > count:
        raise ValueError(
            "outcome and systems must have an entry per programme, first and last be among them"
        )


@summing_kernel
def spectral_points(
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
    nuclear: bool,
) -> None:
    """Weights and multipliers of the programmes ``first`` to ``last - 1`` whose outcome is
    ``WEIGHTS``, from those of the Frobenius norm; it becomes ``UNSETTLED`` where none were found.
    """
    fitting_range(first, last, D, Z, offsets, instances, b, W, dual, outcome, systems)
    for k in range(first, last):
        if outcome[k] != WEIGHTS:
            continue
        outcome[k] = UNSETTLED
        start, d, z, bounds, size, near, power = _opened(k, D, Z, offsets, instances, b)
        if power == _NONE:
            continue
        left, right, lam = _span(d), _span(z), np.empty(len(d))
        for c in range(len(d)):
            lam[c] = dual[start + c] / size[c]
        inner = np.dot(np.dot(left, W[k]), right.T.copy())
        for a in range(len(left)):
            for e in range(len(right)):
                inner[a, e] = math.ldexp(inner[a, e], -power)
        inner, lam, systems[k] = spectral_point(
            np.dot(d, left.T.copy()), np.dot(z, right.T.copy()), bounds, near, inner, lam, nuclear
        )
        W[k] = np.dot(np.dot(left.T.copy(), inner), right)
        if _written(d, z, bounds, near, size, power, W[k], lam, dual[start : start + len(d)]):
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
def _span(rows: FloatArray) -> FloatArray:
    """An orthonormal basis of a space that holds the rows, as rows; all of it unless there are
    fewer rows than columns. Gram and Schmidt's method, twice.
    """
    count, width = rows.shape
    if count >= width:
        return np.eye(width)
    basis, found = np.zeros((count, width)), 0
    for c in range(count):
        v = basis[found]
        before = 0.0
        for e in range(width):
            v[e] = rows[c, e]
            before += v[e] * v[e]
        for _ in range(2):
            for other in range(found):
                along = np.dot(basis[other], v)
                for e in range(width):
                    v[e] -= along * basis[other, e]
        left = np.dot(v, v)
        if left > _DEPENDENT * before:
            v /= math.sqrt(left)
            found += 1
        else:
            v[:] = 0.0
    return basis[:found]


@summing_kernel
def _written(
    d: FloatArray,
    z: FloatArray,
    offsets: IntArray,
    near: FloatArray,
    size: FloatArray,
    power: int,
    W: FloatArray,
    lam: FloatArray,
    dual: FloatArray,
) -> bool:
    """Weights that meet the margins and ``dual`` in the caller's units, where there are such."""
    values, ratio, largest = np.empty(len(near)), np.inf, 0.0
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
    for a in range(W.shape[0]):
        for e in range(W.shape[1]):
            W[a, e] = math.ldexp(W[a, e] / ratio, power)
    for c in range(len(near)):
        dual[c] = lam[c] * size[c]
    return True
