"""Linear algebra of one small programme in compiled code: Cholesky factors, its operator and the
adjoint.

A BLAS call costs more than most of these products. Every function writes into arrays of its caller,
so that a loop over programmes allocates nothing.
"""

from __future__ import annotations

import math

import numpy as np

from attsvm.data import FloatArray, IntArray
from attsvm.jit import summing_kernel

# data between 2**-100 and 2**100: no square of weights or multipliers leaves float64
LARGEST_EXPONENT = 100
# squared distance to the span of earlier rows, relative to the row's square, that counts as zero
_DEPENDENT = 1e-13


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
