r"""Non-negative least squares in compiled code: whether a small programme has a solution, and which
rows say so.

The least-distance problem :math:`\min_{u\ge0}\|[A^\top; b^\top]u-e\|` always has a solution (Lawson
and Hanson, *Solving Least Squares Problems*, chapter 23). At distance zero ``u`` is a Farkas
certificate; otherwise its rows are those of the minimum-norm weights.
"""

from __future__ import annotations

import numpy as np

from attsvm.data import FloatArray, IntArray
from attsvm.jit import summing_kernel
from attsvm.solvers.small.small_algebra import factorise, substitute

_SLOPE = 1e-13  # gradient that counts as zero
_IDLE = 1e-12  # share of the largest multiplier that is rounding


@summing_kernel
def least_distance(
    H: FloatArray,
    b: FloatArray,
    L: FloatArray,
    rows: IntArray,
    u: FloatArray,
    slope: FloatArray,
    step: FloatArray,
) -> int:
    """Non-negative least squares with Gram matrix ``H = G + b b^T`` and moments ``b``; the number
    of positive ``u``, -1 without an end.

    On return ``rows`` holds them and ``L`` the factor of ``H`` on them.
    """
    m = len(b)
    count = 0
    barred = np.zeros(m, dtype=np.bool_)
    for c in range(m):
        u[c], slope[c] = 0.0, b[c]
    for _ in range(6 * m):
        best = -1
        for c in range(m):
            if (
                u[c] == 0.0
                and not barred[c]
                and slope[c] > _SLOPE
                and (best < 0 or slope[c] > slope[best])
            ):
                best = c
        if best < 0:
            return count
        rows[count] = best
        if factorise(H, rows, count, count + 1, L) == count:
            barred[best] = True
            continue
        count += 1
        while True:
            share, blocking = 1.0, -1
            for k in range(count):
                step[k] = b[rows[k]]
            substitute(L, count, step)
            for k in range(count):
                old = u[rows[k]]
                if step[k] <= 0.0 and old <= share * (old - step[k]):
                    share = old / (old - step[k]) if old > 0.0 else 0.0
                    blocking = k
            for k in range(count):
                c = rows[k]
                u[c] = max(u[c] + share * (step[k] - u[c]), 0.0)
            if blocking < 0:
                break
            u[rows[blocking]] = 0.0
            kept, first = 0, count
            for k in range(count):
                if u[rows[k]] > 0.0:
                    rows[kept] = rows[k]
                    kept += 1
                else:
                    first = min(first, k)
            count = kept
            if factorise(H, rows, first, count, L) < count:
                return -1
        if u[best] > 0.0:
            barred[:] = False
        else:
            barred[best] = True
        for c in range(m):
            slope[c] = b[c]
        for k in range(count):
            weight, column = u[rows[k]], H[rows[k]]
            for c in range(m):
                slope[c] -= weight * column[c]
    return -1


@summing_kernel
def without_idle(H: FloatArray, L: FloatArray, rows: IntArray, count: int, u: FloatArray) -> int:
    """Rows of a contradiction that carry nothing but rounding taken out of ``rows``, ``u`` and
    ``L``; how many remain.
    """
    largest, stay, first = 0.0, 0, count
    for k in range(count):
        largest = max(largest, u[rows[k]])
    for k in range(count):
        if u[rows[k]] > _IDLE * largest:
            rows[stay] = rows[k]
            stay += 1
        else:
            u[rows[k]], first = 0.0, min(first, k)
    return factorise(H, rows, first, stay, L) if first < stay else stay
