r"""Small hard-margin programmes of the Frobenius norm, one after the other in compiled code.

The dual of one programme is :math:`\min_{\lambda\ge0}\tfrac12\lambda^\top G\lambda-b^\top\lambda` with the Gram matrix
:math:`G_{cc'}=(\delta_c^\top\delta_{c'})(z_{i(c)}^\top z_{i(c')})`. A few sweeps of coordinate descent guess which multipliers are
positive and block principal pivoting makes the guess exact (Júdice and Pires, 1994; see :mod:`attsvm.solvers.pivoting`). Where that
does not settle, the programme goes through the least-distance problem :math:`\min_{u\ge0}\|[A^\top; b^\top]u-e\|`, which always has
a solution (Lawson and Hanson, *Solving Least Squares Problems*, chapter 23): at distance zero ``u`` is a Farkas certificate on linearly
independent rows of :math:`[A, b]`, hence one that needs every one of its rows; otherwise the rows of ``u`` are those of the minimum-norm
weights.

Whatever comes out is certified from the caller's own numbers, with the formulas of :mod:`attsvm.solvers.certificates`. A programme that
ends in neither proof is left to the ordinary solver: ``UNSETTLED`` is an answer that costs time, never correctness. Programmes lie
end to end in memory, as in :class:`attsvm.margins.MarginsBatch`.
"""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numba
import numpy as np

from attsvm.data import FloatArray, IntArray
from attsvm.jit import summing_kernel
from attsvm.solvers.small_algebra import LANES, LARGEST_EXPONENT, factorise, gram, length, margins, pull, scales, substitute, sweep

LARGEST = 256
"""Rows up to which this module is quicker than :mod:`attsvm.solvers.frobenius` on the random instances of the papers."""

UNSETTLED, WEIGHTS, CONTRADICTION = 0, 1, 2

_SWEEPS = 8
_WORTH_SHARING = 4000  # rows from which on threads save more than their start costs
_ROUNDS = 30
_PATIENCE = 3  # full exchanges without progress before single ones
_REFINEMENTS = 5
_RESCALINGS = 3
_ROUNDING = 4e-16
_SLOPE = 1e-13  # gradient of the least-distance problem that counts as zero
_NEARLY_ZERO = 1e-9  # squared distance below which the least-distance multipliers are taken for a contradiction
_PROVED = 1e-14  # Farkas residual of a contradiction
_EPS = float(np.finfo(np.float64).eps)


@summing_kernel
def _pivot(
    D: FloatArray,
    Z: FloatArray,
    offsets: IntArray,
    b: FloatArray,
    unit: FloatArray,
    stretch: FloatArray,
    G: FloatArray,
    L: FloatArray,
    free: IntArray,
    rows: IntArray,
    lam: FloatArray,
    slope: FloatArray,
    step: FloatArray,
    dual: FloatArray,
    moved: FloatArray,
    W: FloatArray,
) -> int:
    """Principal pivoting from the rows marked in ``free``; the number of systems solved, negative when the signs are not settled."""
    m = len(b)
    fewest, patience = m + 1, _PATIENCE
    for taken in range(1, _ROUNDS + 1):
        count = 0
        for c in range(m):
            lam[c], slope[c], dual[c] = 0.0, -b[c] * unit[c], 0.0
            rows[count] = c
            count += free[c]
        W[:] = 0.0
        if count > W.size or factorise(G, rows, 0, count, L) < count:
            return -taken
        missed = np.inf
        for _ in range(_REFINEMENTS):
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
            noise = 8.0 * _EPS * max(1.0, math.sqrt(max(size, 0.0)))  # at a solution b.lam is the square of the norm
            wrong = 0
            for c in range(m):
                step[c] = lam[c] if free[c] else slope[c] + noise
                wrong += step[c] < 0.0
            if wrong or now <= 4.0 * noise or now > missed / 2:
                break
            missed = now
        if wrong == 0:
            return taken
        if wrong < fewest:
            fewest, patience = wrong, _PATIENCE
        elif patience > 0:
            patience -= 1
        else:
            for c in range(m - 1, -1, -1):
                if step[c] < 0.0:
                    free[c] = 1 - free[c]
                    break
            continue
        for c in range(m):
            free[c] ^= step[c] < 0.0
    return -_ROUNDS


@summing_kernel
def _least_distance(H: FloatArray, b: FloatArray, L: FloatArray, rows: IntArray, u: FloatArray, slope: FloatArray, step: FloatArray) -> int:
    """Non-negative least squares with Gram matrix ``H = G + b b^T`` and moments ``b``; the number of positive ``u``, -1 without an end.

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
            if u[c] == 0.0 and not barred[c] and slope[c] > _SLOPE and (best < 0 or slope[c] > slope[best]):
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
def _certify(
    D: FloatArray,
    Z: FloatArray,
    offsets: IntArray,
    b: FloatArray,
    dual: FloatArray,
    W: FloatArray,
    V: FloatArray,
    values: FloatArray,
    moved: FloatArray,
    figures: FloatArray,
) -> bool:
    """``W`` rescaled and ``figures`` filled with norm, gap, violation and rounding; see :func:`certificates.certify_hard`."""
    m, d_x, d_z = len(b), W.shape[0], W.shape[1]
    margins(D, Z, offsets, W, moved, values)
    for _ in range(_RESCALINGS):
        ratio = np.inf
        for c in range(m):
            if b[c] > 0.0:
                ratio = min(ratio, values[c] / b[c])
        if not 0.0 < ratio < np.inf:
            return False
        if abs(ratio - 1.0) <= _ROUNDING:
            break
        for a in range(d_x):
            for k in range(d_z):
                W[a, k] /= ratio
        margins(D, Z, offsets, W, moved, values)
    V[:] = 0.0
    pull(D, Z, offsets, dual, moved, V)
    top, violation = 0.0, 0.0
    for c in range(m):
        top += b[c] * dual[c]
        violation = max(violation, b[c] - values[c])
    upper, lower = length(W), top / length(V)
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
    figures[0], figures[1], figures[2], figures[3] = upper, max(0.0, 1.0 - lower / upper), violation, _EPS * blur
    return True


@summing_kernel
def _contradiction(
    D: FloatArray,
    Z: FloatArray,
    offsets: IntArray,
    b: FloatArray,
    unit: FloatArray,
    stretch: FloatArray,
    L: FloatArray,
    rows: IntArray,
    count: int,
    u: FloatArray,
    slope: FloatArray,
    step: FloatArray,
    dual: FloatArray,
    moved: FloatArray,
    V: FloatArray,
    longest: FloatArray,
) -> bool:
    """``u`` refined to a Farkas certificate ``dual`` of the caller's rows, largest entry one; True at a residual of rounding level."""
    m = len(b)
    widest, highest = 0.0, 0.0
    for k in range(count):
        widest = max(widest, longest[rows[k]])
        highest = max(highest, b[rows[k]])
    for _ in range(_REFINEMENTS):
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


@summing_kernel
def solve_range(
    first: int,
    last: int,
    D: FloatArray,
    Z: FloatArray,
    offsets: IntArray,
    instances: IntArray,
    b: FloatArray,
    W: FloatArray,
    dual: FloatArray,
    figures: FloatArray,
    outcome: IntArray,
    systems: IntArray,
) -> None:
    """Solve programmes ``first`` to ``last - 1``.

    Args:
        first: the first programme.
        last: one past the last.
        D: ``(M, d_x)`` differences of all programmes.
        Z: ``(N, d_z)`` queries.
        offsets: ``(N + 1,)`` where the rows of each sequence begin in ``D``.
        instances: ``(B + 1,)`` where the sequences of each programme begin in ``Z``.
        b: ``(M,)`` right-hand sides, none negative.
        W: ``(B, d_x, d_z)`` weights, written.
        dual: ``(M,)`` multipliers, written.
        figures: ``(B, 4)`` norm, gap, violation and rounding, written unless ``UNSETTLED``.
        outcome: ``(B,)`` ``UNSETTLED``, ``WEIGHTS`` or ``CONTRADICTION``, written.
        systems: ``(B,)`` number of linear systems solved on the way to the weights, written.
    """
    d_x, d_z = D.shape[1], Z.shape[1]
    longest, most = 0, 0
    for p in range(first, last):
        longest = max(longest, offsets[instances[p + 1]] - offsets[instances[p]])
        most = max(most, instances[p + 1] - instances[p])
    widest = (longest + LANES - 1) // LANES * LANES
    grams, L, augmented = np.empty(longest * widest), np.empty((longest, longest)), np.empty(0)
    copies, turned, padded = np.empty(longest * d_x), np.empty(d_x * widest), np.empty(widest)
    V, moved = np.empty((d_x, d_z)), np.empty(d_x)
    vectors = np.empty((8, longest))
    factor = np.empty(most)
    rows, free = np.empty(longest, dtype=np.int64), np.empty(longest, dtype=np.int64)
    shifted = np.empty(most + 1, dtype=np.int64)
    for p in range(first, last):
        outcome[p], systems[p] = UNSETTLED, 0
        start, stop = offsets[instances[p]], offsets[instances[p + 1]]
        n, m = instances[p + 1] - instances[p], stop - start
        d, z, rhs, lam = D[start:stop], Z[instances[p] : instances[p + 1]], b[start:stop], dual[start:stop]
        for i in range(n + 1):
            shifted[i] = offsets[instances[p] + i] - start
        bounds = shifted[: n + 1]
        size, unit, stretch, scaled = vectors[0, :m], vectors[1, :m], vectors[2, :m], vectors[3, :m]
        slope, step, u, work = vectors[4, :m], vectors[5, :m], vectors[6, :m], vectors[7, :m]
        if not (scales(d, size) and scales(z, factor[:n])):
            continue
        weight_exponent, possible = -100000, True
        for i in range(n):
            for c in range(bounds[i], bounds[i + 1]):
                size[c] *= factor[i]
                if rhs[c] > 0.0:
                    exponent = math.frexp(rhs[c])[1]
                    possible &= abs(exponent) <= LARGEST_EXPONENT
                    weight_exponent = max(weight_exponent, math.frexp(rhs[c] * size[c])[1])
        if not possible or weight_exponent == -100000:
            continue
        down, up = math.ldexp(1.0, -weight_exponent), math.ldexp(1.0, weight_exponent)
        width = (m + LANES - 1) // LANES * LANES
        G = grams[: m * width].reshape(m, width)
        gram(d, z, bounds, size, copies[: m * d_x].reshape(m, d_x), turned[: d_x * width].reshape(d_x, width), padded[:width], G)
        for c in range(m):
            unit[c], stretch[c] = size[c] * down, size[c] * up
            scaled[c] = rhs[c] * unit[c]
            possible &= G[c, c] > 0.0 or rhs[c] == 0.0
        if not possible:
            continue
        sweep(G, scaled, _SWEEPS, lam, step, padded[:width])
        for c in range(m):
            free[c] = 1 if lam[c] > 0.0 else 0
        taken = _pivot(d, z, bounds, rhs, unit, stretch, G, L, free, rows, lam, slope, step, work, moved, W[p])
        systems[p] = abs(taken)
        if taken < 0:
            if augmented.size == 0:
                augmented = np.empty(longest * longest)
            H = augmented[: m * m].reshape(m, m)
            for c in range(m):
                for q in range(m):
                    H[c, q] = G[c, q] + scaled[c] * scaled[q]
            count = _least_distance(H, scaled, L, rows, u, slope, step)
            if count < 0:
                continue
            distance = 1.0
            for c in range(m):
                distance -= scaled[c] * u[c]
            if distance <= _NEARLY_ZERO:
                for c in range(m):
                    work[c] = math.sqrt(G[c, c]) / size[c]
                if _contradiction(d, z, bounds, rhs, unit, stretch, L, rows, count, u, slope, step, lam, moved, V, work):
                    outcome[p] = CONTRADICTION
                    W[p] = 0.0
                    figures[p, 0], figures[p, 1], figures[p, 2], figures[p, 3] = np.inf, 1.0, rhs.max(), 0.0
                continue
            for c in range(m):
                free[c] = 1 if u[c] > 0.0 else 0
            taken = _pivot(d, z, bounds, rhs, unit, stretch, G, L, free, rows, lam, slope, step, work, moved, W[p])
            systems[p] += abs(taken)
            if taken < 0:
                continue
        for c in range(m):
            lam[c] *= stretch[c]
        if _certify(d, z, bounds, rhs, lam, W[p], V, slope, moved, figures[p]):
            outcome[p] = WEIGHTS


class Settled(NamedTuple):
    """What :func:`solve_range` writes."""

    W: FloatArray
    dual: FloatArray
    figures: FloatArray
    outcome: IntArray
    systems: IntArray


def settle(differences: FloatArray, queries: FloatArray, offsets: IntArray, instances: IntArray, rhs: FloatArray) -> Settled:
    """Solve programmes that lie end to end, on all cores when there is work for them; see :func:`solve_range` for the arguments.

    Values must be finite and right-hand sides not negative.
    """
    count = len(instances) - 1
    D, Z, b = (_plain(array, np.float64) for array in (differences, queries, rhs))
    starts, parts = _plain(offsets, np.int64), _plain(instances, np.int64)
    found = Settled(
        np.empty((count, D.shape[1], Z.shape[1])),
        np.empty(len(b)),
        np.zeros((count, 4)),
        np.empty(count, dtype=np.int64),
        np.empty(count, dtype=np.int64),
    )
    if len(b) < _WORTH_SHARING:
        solve_range(0, count, D, Z, starts, parts, b, *found)
        return found
    # Threads of our own over a kernel without the GIL: numba's would compile it twice and set OpenMP's defaults for torch.
    threads = int(numba.config.NUMBA_NUM_THREADS)  # type: ignore[attr-defined]
    rows = starts[parts]
    shares = np.searchsorted(rows, np.linspace(0, rows[-1], 4 * threads + 1)[1:-1]).tolist()
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda first, last: solve_range(first, last, D, Z, starts, parts, b, *found), [0, *shares], [*shares, count]))
    return found


def _plain(array: Any, kind: Any) -> Any:
    """Contiguous and writable, because other arrays would be compiled for once more."""
    plain = np.ascontiguousarray(array, kind)
    return plain if plain.flags.writeable else plain.copy()
