"""The two proofs in which a small programme ends, computed from the caller's own numbers in
compiled code.
"""

from __future__ import annotations

import numpy as np

from attsvm.data import FloatArray, IntArray
from attsvm.jit import summing_kernel
from attsvm.solvers.small.small_algebra import (
    EPS,
    REFINEMENTS,
    Given,
    Room,
    length,
    margins,
    pull,
    substitute,
)

_RESCALINGS = 3
_ROUNDING = 4e-16
_NO_MATTER = 2e-13  # rounding error of the margins that no tolerance minds
_PROVED = 1e-14  # Farkas residual of a contradiction


@summing_kernel
def certify(
    given: Given,
    room: Room,
    dual: FloatArray,
    plain: bool,
    W: FloatArray,
    V: FloatArray,
    figures: FloatArray,
) -> bool:
    """``W`` rescaled and ``figures`` filled with norm, gap, violation and rounding; see
    :func:`certificates.certify_hard`.

    On entry ``room.slope`` holds what the margins exceed ``b`` by, in units of ``1 / unit``, and
    ``plain`` says that ``W`` is the adjoint of ``dual``.
    """
    D, Z, offsets, b, unit, _, lengths = given
    values, moved = room.slope, room.moved
    m, d_x, d_z = len(b), W.shape[0], W.shape[1]
    ratio = np.inf
    for c in range(m):
        if b[c] > 0.0:
            ratio = min(ratio, values[c] / (b[c] * unit[c]))
    ratio += 1.0
    if plain:
        combined = length(W)
    else:
        V[:] = 0.0
        pull(D, Z, offsets, dual, moved, V)
        combined = length(V)
    for _ in range(_RESCALINGS):
        if not 0.0 < ratio < np.inf:
            return False
        inverse = 1.0 / ratio
        for a in range(d_x):
            for k in range(d_z):
                W[a, k] *= inverse
        margins(D, Z, offsets, W, moved, values)
        ratio = np.inf
        for c in range(m):
            if b[c] > 0.0:
                ratio = min(ratio, values[c] / b[c])
        if abs(ratio - 1.0) <= _ROUNDING:
            break
    top, violation, longest, reach, least = 0.0, 0.0, 0.0, 0.0, 1.0
    for c in range(m):
        top += b[c] * dual[c]
        reach += lengths[c] * dual[c]
        if b[c] > 0.0:
            least = min(least, b[c])
        violation = max(violation, b[c] - values[c])
        longest = max(longest, lengths[c])
    upper, lower = length(W), top / combined
    rounding = EPS * longest * upper / least  # by Cauchy-Schwarz
    if rounding > _NO_MATTER:
        rounding = EPS * _largest_products(D, Z, offsets, W, moved) / least
    rounding = max(rounding, EPS * reach / combined)
    figures[0], figures[1], figures[2], figures[3] = (
        upper,
        max(0.0, 1.0 - lower / upper),
        violation,
        rounding,
    )
    return True


@summing_kernel
def _largest_products(
    D: FloatArray, Z: FloatArray, offsets: IntArray, W: FloatArray, moved: FloatArray
) -> float:
    """The largest sum of the sizes of the products that a margin consists of."""
    d_x, d_z = W.shape
    blur = 0.0
    for i in range(len(offsets) - 1):
        for a in range(d_x):
            total = 0.0
            for k in range(d_z):
                total += abs(W[a, k] * Z[i, k])
            moved[a] = total
        for c in range(offsets[i], offsets[i + 1]):
            total = 0.0
            for a in range(d_x):
                total += abs(D[c, a]) * moved[a]
            blur = max(blur, total)
    return blur


@summing_kernel
def contradiction(
    given: Given, room: Room, count: int, u: FloatArray, dual: FloatArray, V: FloatArray
) -> bool:
    """``u`` on the first ``count`` of ``room.rows`` refined to a Farkas certificate ``dual`` of the
    caller's rows, largest entry one; True at a residual of rounding level.
    """
    D, Z, offsets, b, unit, stretch, lengths = given
    _, L, rows, slope, step, _, moved = room
    m = len(b)
    widest, highest = 0.0, 0.0
    for k in range(count):
        widest = max(widest, lengths[rows[k]])
        highest = max(highest, b[rows[k]])
    for _ in range(REFINEMENTS):
        for c in range(m):
            dual[c] = 0.0
        top, total = 0.0, 0.0
        for k in range(count):
            c = rows[k]
            if not u[c] > 0.0:
                return False
            dual[c] = u[c] * stretch[c]
            top += b[c] * dual[c]
            total += (b[c] * unit[c]) * u[c]
        V[:] = 0.0
        pull(D, Z, offsets, dual, moved, V)
        if length(V) * highest <= _PROVED * top * widest:
            largest = 0.0
            for k in range(count):
                largest = max(largest, dual[rows[k]])
            for k in range(count):
                dual[rows[k]] /= largest
            return True
        margins(D, Z, offsets, V, moved, slope)
        for k in range(count):
            c = rows[k]
            step[k] = (b[c] * (1.0 - total) - slope[c]) * unit[c]
        substitute(L, count, step)
        for k in range(count):
            u[rows[k]] += step[k]
    return False
