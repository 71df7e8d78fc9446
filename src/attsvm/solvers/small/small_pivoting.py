r"""Principal pivoting on a small programme in compiled code; see
:mod:`attsvm.solvers.methods.pivoting` for the method.

The Cholesky factor is kept from round to round: rows that enter are appended to it, and only what
follows the first row that leaves is computed again.
"""

from __future__ import annotations

import math

import numpy as np

from attsvm.data import FloatArray, IntArray
from attsvm.jit import summing_kernel
from attsvm.solvers.small.small_algebra import (
    EPS,
    REFINEMENTS,
    Given,
    Near,
    Room,
    factorise,
    gram_of,
    margins,
    pull,
    substitute,
)

_ROUNDS = 30
_PATIENCE = 3  # full exchanges without progress before single ones


@summing_kernel
def pivot(
    given: Given, near: Near, room: Room, free: IntArray, lam: FloatArray, W: FloatArray
) -> tuple[int, bool]:
    """Principal pivoting from the rows marked in ``free``.

    Returns:
        The number of systems solved, negative when the signs are not settled; and whether ``W`` is
        the adjoint of the multipliers to the last bit, because nothing had to be refined.
    """
    D, Z, offsets, b, unit, stretch, _ = given
    G, L, rows, slope, step, dual, moved = room
    m = len(b)
    fewest, patience = m + 1, _PATIENCE
    count = 0
    for c in range(m):
        rows[count] = c
        count += free[c]
    kept = 0
    for taken in range(1, _ROUNDS + 1):
        for c in range(m):
            lam[c], slope[c], dual[c] = 0.0, -b[c] * unit[c], 0.0
        W[:] = 0.0
        if count > W.size:
            return -taken, False
        gram_of(near.scaled, near.K, near.owner, rows, kept, count, G)
        if factorise(G, rows, kept, count, L) < count:
            return -taken, False
        missed = np.inf
        for _ in range(REFINEMENTS):
            for k in range(count):
                step[k] = -slope[rows[k]]
            substitute(L, count, step)
            for k in range(count):
                lam[rows[k]] += step[k]
                dual[rows[k]] = step[k] * stretch[rows[k]]
            pull(D, Z, offsets, dual, moved, W)
            margins(D, Z, offsets, W, moved, slope)
            size = 0.0
            for c in range(m):
                slope[c] = (slope[c] - b[c]) * unit[c]
            now = 0.0
            for k in range(count):
                now = max(now, abs(slope[rows[k]]))
                size += (lam[rows[k]] * b[rows[k]]) * unit[rows[k]]
            # at a solution b.lam is the square of the norm
            noise = 8.0 * EPS * max(1.0, math.sqrt(max(size, 0.0)))
            wrong = 0
            for c in range(m):
                step[c] = lam[c] if free[c] else slope[c] + noise
                wrong += step[c] < 0.0
            if wrong or now <= 4.0 * noise or now > missed / 2:
                break
            missed = now
        if wrong == 0:
            return taken, missed == np.inf
        if wrong < fewest:
            fewest, patience = wrong, _PATIENCE
        elif patience > 0:
            patience -= 1
        else:
            last = m - 1
            while not step[last] < 0.0:
                last -= 1
            for c in range(last):
                step[c] = 0.0
        stay, kept = 0, count
        for k in range(count):
            if step[rows[k]] < 0.0:
                kept = min(kept, k)
            else:
                rows[stay] = rows[k]
                stay += 1
        count = stay
        for c in range(m):
            if step[c] < 0.0:
                free[c] = 1 - free[c]
                rows[count] = c
                count += free[c]
    return -_ROUNDS, False
