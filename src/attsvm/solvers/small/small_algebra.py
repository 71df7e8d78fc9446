"""Linear algebra of one small programme in compiled code: its Gram matrix, Cholesky factors of it,
its operator and the adjoint.

A BLAS call costs more than most of these products. Every function writes into arrays of its caller,
so that a loop over programmes allocates nothing.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from attsvm.data import FloatArray, IntArray
from attsvm.jit import summing_kernel

# data between 2**-100 and 2**100: no square of weights or multipliers leaves float64
LARGEST_EXPONENT = 100
LANES = 16  # numbers in the vector registers of an unrolled loop
EPS = float(np.finfo(np.float64).eps)
REFINEMENTS = 5  # of one linear system
# squared distance to the span of earlier rows, relative to the row's square, that counts as zero
_DEPENDENT = 1e-13


class Given(NamedTuple):
    """A small programme in the caller's numbers.

    Attributes:
        D: ``(m, d_x)`` differences.
        Z: ``(n, d_z)`` queries.
        offsets: ``(n + 1,)`` where the rows of each query begin.
        b: ``(m,)`` right-hand sides.
        unit: ``(m,)`` powers of two that bring margins near one.
        stretch: ``(m,)`` those that bring multipliers back.
        lengths: ``(m,)`` norms of the rows.
    """

    D: FloatArray
    Z: FloatArray
    offsets: IntArray
    b: FloatArray
    unit: FloatArray
    stretch: FloatArray
    lengths: FloatArray


class Near(NamedTuple):
    """What its Gram matrix is made of: ``(m, d_x)`` differences near one, ``(n, n)`` products of
    queries, ``(m,)`` the query of each row.
    """

    scaled: FloatArray
    K: FloatArray
    owner: IntArray


class Room(NamedTuple):
    """Arrays to work in: Gram matrix and factor ``(m, m)``, positions, slopes, steps and numbers of
    the rows ``(m,)``, and one of a feature each ``(d_x,)``.
    """

    G: FloatArray
    L: FloatArray
    rows: IntArray
    slope: FloatArray
    step: FloatArray
    work: FloatArray
    moved: FloatArray


@summing_kernel
def scales(rows: FloatArray, factor: FloatArray) -> bool:
    """Powers of two that bring the largest entry of every row into [1/2, 1), 1 for zero rows; False
    outside the range of this module.
    """
    for c in range(rows.shape[0]):
        peak = 0.0
        for k in range(rows.shape[1]):
            peak = max(peak, abs(rows[c, k]))
        factor[c] = peak
    # read and written as they lie in memory: frexp and ldexp are calls
    bits, inside = factor.view(np.int64), True
    for c in range(rows.shape[0]):
        exponent = (bits[c] >> 52) - 1022 if bits[c] != 0 else 0
        inside &= -LARGEST_EXPONENT <= exponent <= LARGEST_EXPONENT
        bits[c] = (1023 - exponent) << 52
    return inside


@summing_kernel
def products(Z: FloatArray, K: FloatArray) -> None:
    """Inner products of the queries."""
    for i in range(len(Z)):
        for j in range(i + 1):
            total = 0.0
            for k in range(Z.shape[1]):
                total += Z[i, k] * Z[j, k]
            K[i, j], K[j, i] = total, total


@summing_kernel
def gram_of(
    scaled: FloatArray,
    K: FloatArray,
    owner: IntArray,
    rows: IntArray,
    first: int,
    last: int,
    G: FloatArray,
) -> None:
    """Entries of the Gram matrix that :func:`factorise` needs for rows ``first:last``."""
    for i in range(first, last):
        c = rows[i]
        mine, row, weights = scaled[c], G[c], K[owner[c]]
        for j in range(i + 1):
            other, total = scaled[rows[j]], 0.0
            for k in range(len(mine)):
                total += mine[k] * other[k]
            row[rows[j]] = total * weights[owner[rows[j]]]


@summing_kernel
def single_gram(
    scaled: FloatArray,
    K: FloatArray,
    owner: IntArray,
    inverse: FloatArray,
    copies: Any,
    turned: Any,
    spread: Any,
    G: Any,
) -> None:
    """The Gram matrix of the rows brought to length one, in single precision, padded with zeros to
    a multiple of ``LANES`` columns.
    """
    m, d_x = scaled.shape
    width = G.shape[1] // LANES * LANES
    turned[:], spread[:] = 0.0, 0.0
    for c in range(m):
        for k in range(d_x):
            entry = np.float32(scaled[c, k] * inverse[c])
            copies[c, k], turned[k, c] = entry, entry
    np.dot(copies, turned, G)
    last = -1
    for c in range(m):
        if owner[c] != last:
            last = owner[c]
            for q in range(m):
                spread[q] = K[last, owner[q]]
        for q in range(width):
            G[c, q] *= spread[q]


@summing_kernel
def sweep(G: Any, b: FloatArray, sweeps: int, x: Any, slope: Any, free: IntArray) -> None:
    """Coordinate descent from zero on :func:`single_gram`; marks in ``free`` the rows that end
    positive.

    Two coordinates move at a time, and the slopes of the next two are read before all slopes are
    written, so that the loop waits for arithmetic and not for memory. ``G`` has an even number of
    rows, ``x`` and ``slope`` are padded like them.
    """
    m, width = len(b), G.shape[1] // LANES * LANES
    x[:], slope[:] = 0.0, 0.0
    for c in range(m):
        slope[c] = -b[c]
    pairs = (m + 1) // 2
    first = slope[0]
    for _ in range(sweeps):
        for h in range(pairs):
            c, after = 2 * h, 2 * h + 2 if h + 1 < pairs else 0
            change = max(-first, -x[c])
            x[c] += change
            other = max(-(slope[c + 1] + change * G[c, c + 1]), -x[c + 1])
            x[c + 1] += other
            first = slope[after] + change * G[c, after] + other * G[c + 1, after]
            for q in range(width):
                slope[q] += change * G[c, q] + other * G[c + 1, q]
    for c in range(m):
        free[c] = 1 if x[c] > 0.0 else 0


@summing_kernel
def factorise(H: FloatArray, rows: IntArray, first: int, last: int, L: FloatArray) -> int:
    """Rows ``first:last`` of the Cholesky factor of ``H[rows, rows]``, inverse pivots on its
    diagonal; how many rows are done.

    Two rows at a time, because each is a chain of sums that wait for one another.
    """
    i = first
    while i < last:
        pair = i + 1 < last
        row, mine = H[rows[i]], L[i]
        below, next_one = (H[rows[i + 1]], L[i + 1]) if pair else (row, mine)
        square, lower = row[rows[i]], below[rows[i + 1]] if pair else 0.0
        left, remaining = square, lower
        for j in range(i):
            other = L[j]
            total, second = row[rows[j]], below[rows[j]]
            for k in range(j):
                total -= mine[k] * other[k]
                second -= next_one[k] * other[k]
            total *= other[j]
            second *= other[j]
            next_one[j] = second
            mine[j] = total
            left -= total * total
            remaining -= second * second
        if not left > _DEPENDENT * square:
            return i
        mine[i] = 1.0 / math.sqrt(left)
        if pair:
            second = below[rows[i]]
            for k in range(i):
                second -= next_one[k] * mine[k]
            second *= mine[i]
            next_one[i] = second
            remaining -= second * second
            if not remaining > _DEPENDENT * lower:
                return i + 1
            next_one[i + 1] = 1.0 / math.sqrt(remaining)
        i += 2
    return last


@summing_kernel
def substitute(L: FloatArray, count: int, x: FloatArray) -> None:
    """``x`` replaced by the solution of ``L L^T y = x``."""
    for i in range(count):
        row, total = L[i], x[i]
        for k in range(i):
            total -= row[k] * x[k]
        x[i] = total * row[i]
    for i in range(count - 1, -1, -1):
        row = L[i]
        x[i] *= row[i]
        for k in range(i):
            x[k] -= row[k] * x[i]


@summing_kernel
def pull(
    D: FloatArray,
    Z: FloatArray,
    offsets: IntArray,
    dual: FloatArray,
    moved: FloatArray,
    W: FloatArray,
) -> None:
    """``W += sum_c dual_c A_c``."""
    d_x, d_z = W.shape
    pulled = moved
    for i in range(len(offsets) - 1):
        pulled[:] = 0.0
        for c in range(offsets[i], offsets[i + 1]):
            for a in range(d_x):
                pulled[a] += dual[c] * D[c, a]
        for a in range(d_x):
            for k in range(d_z):
                W[a, k] += pulled[a] * Z[i, k]


@summing_kernel
def margins(
    D: FloatArray,
    Z: FloatArray,
    offsets: IntArray,
    W: FloatArray,
    moved: FloatArray,
    values: FloatArray,
) -> None:
    """``values_c = <A_c, W>``."""
    d_x, d_z = W.shape
    row = moved
    for i in range(len(offsets) - 1):
        for a in range(d_x):
            total = 0.0
            for k in range(d_z):
                total += W[a, k] * Z[i, k]
            row[a] = total
        for c in range(offsets[i], offsets[i + 1]):
            total = 0.0
            for a in range(d_x):
                total += D[c, a] * row[a]
            values[c] = total


@summing_kernel
def length(W: FloatArray) -> float:
    """Frobenius norm."""
    total = 0.0
    for a in range(W.shape[0]):
        for k in range(W.shape[1]):
            total += W[a, k] * W[a, k]
    return math.sqrt(total)
