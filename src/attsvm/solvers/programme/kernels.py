"""Compiled loops over ragged rows: sweeps of block coordinate ascent.

Sums may be taken in any order (``reassoc``), which lets the loops use vector registers; nothing
else is relaxed. Compiled code reads memory without asking, so every kernel first refuses arrays
that do not fit together.
"""

from __future__ import annotations

import numpy as np

from attsvm.data import BoolArray, FloatArray, IntArray
from attsvm.jit import summing_kernel


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


@summing_kernel
def _fitting_blocks(offsets: IntArray, starts: IntArray) -> None:
    if len(starts) != len(offsets) or starts[0] != 0:
        raise ValueError("starts must have an entry per sequence and one more, from 0")
    for i in range(len(offsets) - 1):
        count = offsets[i + 1] - offsets[i]
        if starts[i + 1] - starts[i] != count * count:
            raise ValueError("starts must leave room for a square block per sequence")


@summing_kernel
def _fitting_dual(
    D: FloatArray,
    Z: FloatArray,
    offsets: IntArray,
    b: FloatArray,
    cap: FloatArray,
    dual: FloatArray,
    W: FloatArray,
    asleep: BoolArray,
) -> None:
    fitting(offsets, D.shape[0])
    if not len(b) == len(cap) == len(dual) == len(asleep) == D.shape[0]:
        raise ValueError("b, cap, dual and asleep must have an entry per row")
    if Z.shape[0] != len(offsets) - 1 or W.shape[0] != D.shape[1] or W.shape[1] != Z.shape[1]:
        raise ValueError("W must have a row per feature of D and a column per feature of Z")


@summing_kernel
def block_grams(D: FloatArray, offsets: IntArray, size: FloatArray, starts: IntArray) -> FloatArray:
    """``size[i] * D_i D_i^T`` of every sequence, one after the other in a flat array."""
    fitting(offsets, D.shape[0])
    _fitting_blocks(offsets, starts)
    if len(size) != len(offsets) - 1:
        raise ValueError("size must have an entry per sequence")
    out = np.empty(starts[-1])
    for i in range(len(offsets) - 1):
        count = offsets[i + 1] - offsets[i]
        if count > 0:
            block = D[offsets[i] : offsets[i + 1]]
            out[starts[i] : starts[i + 1]] = (size[i] * np.dot(block, block.T)).reshape(
                count * count
            )
    return out


@summing_kernel
def smaller_blocks(
    grams: FloatArray,
    starts: IntArray,
    offsets: IntArray,
    rows: IntArray,
    kept: IntArray,
    places: IntArray,
) -> FloatArray:
    """The Gram blocks of ``rows``, those of sequence ``i`` being ``kept[i]:kept[i + 1]``, out of
    the blocks of all rows; the new ones begin at ``places``.
    """
    fitting(kept, len(rows))
    if len(kept) != len(offsets):
        raise ValueError("kept must have an entry per sequence and one more")
    fitting(offsets, offsets[-1])
    _fitting_blocks(offsets, starts)
    _fitting_blocks(kept, places)
    if len(grams) != starts[-1]:
        raise ValueError("grams must hold a square block per sequence")
    out = np.empty(places[-1])
    for i in range(len(offsets) - 1):
        first, count, at = offsets[i], offsets[i + 1] - offsets[i], places[i]
        chosen = rows[kept[i] : kept[i + 1]]
        for r in chosen:
            if r < first or r >= first + count:
                raise ValueError("rows must be those of their sequences")
        for r in chosen:
            for q in chosen:
                out[at] = grams[starts[i] + (r - first) * count + q - first]
                at += 1
    return out


@summing_kernel
def sweep_blocks(
    D: FloatArray,
    Z: FloatArray,
    offsets: IntArray,
    b: FloatArray,
    cap: FloatArray,
    grams: FloatArray,
    starts: IntArray,
    dual: FloatArray,
    W: FloatArray,
    inner: int,
    asleep: BoolArray,
    bar: float,
) -> float:
    """One epoch: per sequence, ``inner`` coordinate sweeps on its Gram block, then one rank-one
    update of ``W``.

    Rows that are ``asleep`` are left out, and rows whose multiplier is zero fall asleep where their
    margin exceeds its right-hand side by more than ``bar``.

    Returns:
        The largest projected gradient met on the way, measured before each block was changed.
    """
    _fitting_dual(D, Z, offsets, b, cap, dual, W, asleep)
    _fitting_blocks(offsets, starts)
    if len(grams) != starts[-1]:
        raise ValueError("grams must hold a square block per sequence")
    d_x, d_z = W.shape
    moved, change = np.empty(d_x), np.empty(d_x)
    longest = 0
    for i in range(len(offsets) - 1):
        longest = max(longest, offsets[i + 1] - offsets[i])
    slope, step, awake = np.empty(longest), np.empty(longest), np.empty(longest, np.int64)
    worst = 0.0
    for i in range(len(offsets) - 1):
        first, count, taken = offsets[i], offsets[i + 1] - offsets[i], 0
        for c in range(count):
            if not asleep[first + c]:
                awake[taken] = c
                taken += 1
        if taken == 0:
            continue
        for a in range(d_x):
            total = 0.0
            for k in range(d_z):
                total += W[a, k] * Z[i, k]
            moved[a] = total
        wanted, listed, taken = False, taken, 0
        for r in range(listed):
            c = awake[r]
            total = -b[first + c]
            for a in range(d_x):
                total += D[first + c, a] * moved[a]
            slope[c] = total
            step[c] = 0.0
            lam = dual[first + c]
            if lam == 0.0 and total > bar:
                asleep[first + c] = True
                continue
            awake[taken] = c
            taken += 1
            active = (total < 0.0 and lam < cap[first + c]) or (total > 0.0 and lam > 0.0)
            if active:
                wanted = True
                worst = max(
                    worst,
                    min(abs(total), grams[starts[i] + c * count + c] * lam)
                    if total > 0.0
                    else -total,
                )
        if not wanted:
            continue
        for _ in range(inner):
            for r in range(taken):
                c = awake[r]
                at = starts[i] + c * count
                curvature = grams[at + c]
                if curvature <= 0.0:
                    continue
                lam = dual[first + c]
                new = min(max(lam - slope[c] / curvature, 0.0), cap[first + c])
                delta = new - lam
                if delta != 0.0:
                    dual[first + c] = new
                    step[c] += delta
                    for q in range(count):
                        slope[q] += delta * grams[at + q]
        for a in range(d_x):
            change[a] = 0.0
        for r in range(taken):
            c = awake[r]
            if step[c] != 0.0:
                for a in range(d_x):
                    change[a] += step[c] * D[first + c, a]
        for a in range(d_x):
            for k in range(d_z):
                W[a, k] += change[a] * Z[i, k]
    return worst


@summing_kernel
def sweep_rows(
    D: FloatArray,
    Z: FloatArray,
    offsets: IntArray,
    b: FloatArray,
    cap: FloatArray,
    diagonal: FloatArray,
    size: FloatArray,
    dual: FloatArray,
    W: FloatArray,
    inner: int,
    asleep: BoolArray,
    bar: float,
) -> float:
    """The epoch of :func:`sweep_blocks` without stored Gram blocks: slopes are recomputed from the
    moved query.
    """
    _fitting_dual(D, Z, offsets, b, cap, dual, W, asleep)
    if len(diagonal) != D.shape[0] or len(size) != Z.shape[0]:
        raise ValueError("diagonal must have an entry per row, size one per sequence")
    d_x, d_z = W.shape
    moved, start = np.empty(d_x), np.empty(d_x)
    worst = 0.0
    for i in range(len(offsets) - 1):
        if size[i] == 0.0 or asleep[offsets[i] : offsets[i + 1]].all():
            continue
        for a in range(d_x):
            total = 0.0
            for k in range(d_z):
                total += W[a, k] * Z[i, k]
            moved[a] = total
            start[a] = total
        changed = False
        for sweep in range(inner):
            for c in range(offsets[i], offsets[i + 1]):
                if diagonal[c] <= 0.0 or asleep[c]:
                    continue
                slope = -b[c]
                for a in range(d_x):
                    slope += D[c, a] * moved[a]
                if dual[c] == 0.0 and slope > bar:
                    asleep[c] = True
                    continue
                new = min(max(dual[c] - slope / diagonal[c], 0.0), cap[c])
                delta = new - dual[c]
                if delta != 0.0:
                    if sweep == 0:
                        worst = max(worst, abs(delta) * diagonal[c])
                    changed = True
                    dual[c] = new
                    for a in range(d_x):
                        moved[a] += delta * size[i] * D[c, a]
            if not changed:
                break
        if changed:
            for a in range(d_x):
                change = (moved[a] - start[a]) / size[i]
                for k in range(d_z):
                    W[a, k] += change * Z[i, k]
    return worst


@summing_kernel
def token_moments(D: FloatArray, first: IntArray, last: IntArray, rows: IntArray) -> FloatArray:
    """Upper triangles of ``sum_c D[c] D[c]^T`` over ``rows[first[k]:last[k]]``; off-diagonal
    entries once.
    """
    d = D.shape[1]
    if len(first) != len(last):
        raise ValueError("first and last must have the same length")
    for k in range(len(first)):
        if first[k] < 0 or last[k] > len(rows):
            raise ValueError("first and last must be positions in rows")
    for r in range(len(rows)):
        if rows[r] < 0 or rows[r] >= D.shape[0]:
            raise ValueError("rows must be rows of D")
    out = np.zeros((len(first), d * (d + 1) // 2))
    for k in range(len(first)):
        for r in range(first[k], last[k]):
            c = rows[r]
            at = 0
            for a in range(d):
                for e in range(a, d):
                    out[k, at + e - a] += D[c, a] * D[c, e]
                at += d - a
    return out
