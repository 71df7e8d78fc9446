"""Linear algebra of one small programme in compiled code: its Gram matrix, Cholesky factors of it, its operator and the adjoint.

A BLAS call costs more than most of these products. Every function writes into arrays of its caller, so that a loop over programmes
allocates nothing.
"""

from __future__ import annotations

import math

import numpy as np

from attsvm.data import FloatArray, IntArray
from attsvm.jit import summing_kernel

LARGEST_EXPONENT = 100  # data between 2**-100 and 2**100: no square of weights or multipliers leaves float64
LANES = 16  # numbers in the vector registers of an unrolled loop
_DEPENDENT = 1e-13  # squared distance to the span of earlier rows, relative to the row's square, that counts as zero


@summing_kernel
def scales(rows: FloatArray, factor: FloatArray) -> bool:
    """Powers of two that bring the largest entry of every row into [1/2, 1), 1 for zero rows; False outside the range of this module."""
    for c in range(rows.shape[0]):
        peak = 0.0
        for k in range(rows.shape[1]):
            peak = max(peak, abs(rows[c, k]))
        exponent = math.frexp(peak)[1]
        if abs(exponent) > LARGEST_EXPONENT or not peak < np.inf:
            return False
        factor[c] = math.ldexp(1.0, -exponent)
    return True


@summing_kernel
def gram(
    D: FloatArray,
    Z: FloatArray,
    offsets: IntArray,
    size: FloatArray,
    scaled: FloatArray,
    turned: FloatArray,
    spread: FloatArray,
    G: FloatArray,
) -> None:
    """The Gram matrix of the rows ``size[c] A_c``, padded with columns of zeros to a multiple of ``LANES``: loops without a remainder."""
    m, d_x = D.shape
    width = G.shape[1] // LANES * LANES
    turned[:], spread[:] = 0.0, 0.0
    for c in range(m):
        for k in range(d_x):
            scaled[c, k] = size[c] * D[c, k]
            turned[k, c] = scaled[c, k]
    np.dot(scaled, turned, G)
    for i in range(len(offsets) - 1):
        for j in range(len(offsets) - 1):
            product = 0.0
            for k in range(Z.shape[1]):
                product += Z[i, k] * Z[j, k]
            for c in range(offsets[j], offsets[j + 1]):
                spread[c] = product
        for c in range(offsets[i], offsets[i + 1]):
            for q in range(width):
                G[c, q] *= spread[q]


@summing_kernel
def sweep(G: FloatArray, b: FloatArray, sweeps: int, dual: FloatArray, inverse: FloatArray, slope: FloatArray) -> None:
    """Coordinate descent from zero, without branches to mispredict; ``slope`` is padded like the rows of ``G``."""
    width = G.shape[1] // LANES * LANES
    slope[:] = 0.0
    for c in range(len(b)):
        dual[c], slope[c] = 0.0, -b[c]
        inverse[c] = 1.0 / G[c, c] if G[c, c] > 0.0 else 0.0
    for _ in range(sweeps):
        for c in range(len(b)):
            new = max(dual[c] - slope[c] * inverse[c], 0.0)
            change = new - dual[c]
            dual[c] = new
            for q in range(width):
                slope[q] += change * G[c, q]


@summing_kernel
def factorise(H: FloatArray, rows: IntArray, first: int, last: int, L: FloatArray) -> int:
    """Rows ``first:last`` of the Cholesky factor of ``H[rows, rows]``, inverse pivots on its diagonal; how many rows are done."""
    for i in range(first, last):
        row, mine = H[rows[i]], L[i]
        square = row[rows[i]]
        left = square
        for j in range(i):
            total = row[rows[j]]
            other = L[j]
            for k in range(j):
                total -= mine[k] * other[k]
            total *= other[j]
            mine[j] = total
            left -= total * total
        if not left > _DEPENDENT * square:
            return i
        mine[i] = 1.0 / math.sqrt(left)
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
def pull(D: FloatArray, Z: FloatArray, offsets: IntArray, dual: FloatArray, moved: FloatArray, W: FloatArray) -> None:
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
def margins(D: FloatArray, Z: FloatArray, offsets: IntArray, W: FloatArray, moved: FloatArray, values: FloatArray) -> None:
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
