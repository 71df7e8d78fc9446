r"""Small hard-margin programmes of the Frobenius norm, one after the other in compiled code.

The dual of one programme is :math:`\min_{\lambda\ge0}\tfrac12\lambda^\top G\lambda-b^\top\lambda`
with the Gram matrix
:math:`G_{cc'}=(\delta_c^\top\delta_{c'})(z_{i(c)}^\top z_{i(c')})`. A few sweeps of coordinate
descent guess which multipliers are positive and block principal pivoting makes the guess exact
(Júdice and Pires, 1994; see :mod:`attsvm.solvers.methods.pivoting`). Where that does not settle,
the programme goes through the least-distance problem :math:`\min_{u\ge0}\|[A^\top; b^\top]u-e\|`,
which always has a solution (Lawson and Hanson, *Solving Least Squares Problems*, chapter 23): at
distance zero ``u`` is a Farkas certificate on linearly independent rows of :math:`[A, b]`, hence
one that needs every one of its rows; otherwise the rows of ``u`` are those of the minimum-norm
weights.

Whatever comes out is certified from the caller's own numbers, with the formulas of
:mod:`attsvm.solvers.proofs`; a contradiction found here has a small residual, and
:func:`attsvm.solvers.farkas.proved` proves it before it is told. A programme that ends in
neither is left to the ordinary solver: ``UNSETTLED`` is an answer that costs time, never
correctness. Programmes lie end to end in memory, as in :class:`attsvm.margins.MarginsBatch`.
"""

from __future__ import annotations

import itertools
import math
from typing import Any, NamedTuple

import numpy as np

from attsvm.cores import shared_out, threads
from attsvm.data import FloatArray, IntArray
from attsvm.jit import summing_kernel
from attsvm.solvers.programme.kernels import fitting
from attsvm.solvers.small.small_algebra import (
    LANES,
    LARGEST_EXPONENT,
    Given,
    Near,
    Room,
    gram_of,
    products,
    scales,
    single_gram,
    sweep,
)
from attsvm.solvers.small.small_distance import least_distance, without_idle
from attsvm.solvers.small.small_pivoting import pivot
from attsvm.solvers.small.small_proofs import certify, contradiction

UNSETTLED, WEIGHTS, CONTRADICTION = 0, 1, 2

_SWEEPS = 12
_WORTH_SHARING = 4000  # rows from which on threads save more than their start costs
# squared distance below which the least-distance multipliers are taken for a contradiction
_NEARLY_ZERO = 1e-9


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
    """Refuse arrays of :func:`solve_range` that do not fit together."""
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
    fitting_range(first, last, D, Z, offsets, instances, b, W, dual, outcome, systems)
    if figures.shape != (len(W), 4):
        raise ValueError("figures must have an entry per programme")
    longest, most = 0, 0
    for p in range(first, last):
        longest = max(longest, offsets[instances[p + 1]] - offsets[instances[p]])
        most = max(most, instances[p + 1] - instances[p])
    widest = (longest + LANES - 1) // LANES * LANES
    single = np.float32
    G, L, H = np.empty((longest, longest)), np.empty((longest, longest)), np.empty((0, 0))
    nearby, products_of = np.empty(longest * d_x), np.empty(most * most)
    grams, copies, turned = (
        np.empty((longest + 1) * widest, single),
        np.empty(longest * d_x, single),
        np.empty(d_x * widest, single),
    )
    padded = np.empty((3, widest), single)
    V, moved = np.empty((d_x, d_z)), np.empty(d_x)
    vectors = np.empty((9, longest))
    factor = np.empty(most)
    indices = np.empty((3, longest), dtype=np.int64)
    shifted = np.empty(most + 1, dtype=np.int64)
    for p in range(first, last):
        outcome[p], systems[p] = UNSETTLED, 0
        start, stop = offsets[instances[p]], offsets[instances[p + 1]]
        n, m = instances[p + 1] - instances[p], stop - start
        d, z, rhs, lam = (
            D[start:stop],
            Z[instances[p] : instances[p + 1]],
            b[start:stop],
            dual[start:stop],
        )
        rows, free, owner = indices[0, :m], indices[1, :m], indices[2, :m]
        for i in range(n + 1):
            shifted[i] = offsets[instances[p] + i] - start
        bounds = shifted[: n + 1]
        size, unit, stretch, scaled = vectors[0, :m], vectors[1, :m], vectors[2, :m], vectors[3, :m]
        slope, step, u, work, lengths = (
            vectors[4, :m],
            vectors[5, :m],
            vectors[6, :m],
            vectors[7, :m],
            vectors[8, :m],
        )
        if not (scales(d, size) and scales(z, factor[:n])):
            continue
        bits = size.view(np.int64)
        K = products_of[: n * n].reshape(n, n)
        products(z, K)
        weight_exponent, possible, known, exponent = -100000, True, 0.0, 0
        for i in range(n):
            for c in range(bounds[i], bounds[i + 1]):
                owner[c] = i
                size[c] *= factor[i]
                if rhs[c] > 0.0:
                    if rhs[c] != known:
                        known, exponent = rhs[c], math.frexp(rhs[c])[1]
                        possible &= abs(exponent) <= LARGEST_EXPONENT
                    weight_exponent = max(weight_exponent, exponent + (bits[c] >> 52) - 1023)
        if not possible or weight_exponent == -100000:
            continue
        down, up = math.ldexp(1.0, -weight_exponent), math.ldexp(1.0, weight_exponent)
        near = nearby[: m * d_x].reshape(m, d_x)
        for c in range(m):
            unit[c], stretch[c] = size[c] * down, size[c] * up
            scaled[c] = rhs[c] * unit[c]
            square = 0.0
            for k in range(d_x):
                near[c, k] = size[c] * d[c, k]
                square += near[c, k] * near[c, k]
            square *= K[owner[c], owner[c]]
            possible &= square > 0.0 or rhs[c] == 0.0
            root = math.sqrt(square)
            work[c], lengths[c] = 1.0 / root if root > 0.0 else 0.0, root / size[c]
            slope[c] = scaled[c] * work[c]
        if not possible:
            continue
        width = (m + LANES - 1) // LANES * LANES
        rough = grams[: (m + m % 2) * width].reshape(m + m % 2, width)
        if m % 2:
            rough[m] = 0.0
        single_gram(
            near,
            K,
            owner,
            work,
            copies[: m * d_x].reshape(m, d_x),
            turned[: d_x * width].reshape(d_x, width),
            padded[0, :width],
            rough[:m],
        )
        sweep(rough, slope, _SWEEPS, padded[1, :width], padded[2, :width], free)
        given = Given(d, z, bounds, rhs, unit, stretch, lengths)
        mine, room = Near(near, K, owner), Room(G, L, rows, slope, step, work, moved)
        taken, plain = pivot(given, mine, room, free, lam, W[p])
        systems[p] = abs(taken)
        if taken < 0:
            if H.size == 0:
                H = np.empty((longest, longest))
            for c in range(m):
                rows[c] = c
            gram_of(near, K, owner, rows, 0, m, G)
            for c in range(m):
                for q in range(c + 1):
                    H[c, q] = G[c, q] + scaled[c] * scaled[q]
                    H[q, c] = H[c, q]
            found = least_distance(H, scaled, L, rows, u, slope, step)
            if found < 0:
                continue
            distance = 1.0
            for c in range(m):
                distance -= scaled[c] * u[c]
            if distance <= _NEARLY_ZERO:
                found = without_idle(H, L, rows, found, u)
                if contradiction(given, room, found, u, lam, V):
                    outcome[p] = CONTRADICTION
                    W[p] = 0.0
                    figures[p, 0], figures[p, 1], figures[p, 2], figures[p, 3] = (
                        np.inf,
                        1.0,
                        rhs.max(),
                        0.0,
                    )
                continue
            for c in range(m):
                free[c] = 1 if u[c] > 0.0 else 0
            taken, plain = pivot(given, mine, room, free, lam, W[p])
            systems[p] += abs(taken)
            if taken < 0:
                continue
        for c in range(m):
            lam[c] *= stretch[c]
        if certify(given, room, lam, plain, W[p], V, figures[p]):
            outcome[p] = WEIGHTS


class Settled(NamedTuple):
    """What :func:`solve_range` writes."""

    W: FloatArray
    dual: FloatArray
    figures: FloatArray
    outcome: IntArray
    systems: IntArray


def settle(
    differences: FloatArray,
    queries: FloatArray,
    offsets: IntArray,
    instances: IntArray,
    rhs: FloatArray,
) -> Settled:
    """Solve programmes that lie end to end, on all cores when there is work for them; see
    :func:`solve_range` for the arguments.

    Values must be finite and right-hand sides not negative.
    """
    D, Z, b = (plain(array, np.float64) for array in (differences, queries, rhs))
    starts, parts = plain(offsets, np.int64), plain(instances, np.int64)
    found = unsettled(D, Z, parts)
    rows = starts[parts]
    shared_out(
        lambda part: solve_range(part[0], part[1], D, Z, starts, parts, b, *found),
        shares(rows) if len(b) >= _WORTH_SHARING else [(0, len(parts) - 1)],
    )
    return found


def unsettled(D: FloatArray, Z: FloatArray, instances: IntArray) -> Settled:
    """Arrays for what is found in these programmes."""
    count = len(instances) - 1
    return Settled(
        np.zeros((count, D.shape[1], Z.shape[1])),
        np.zeros(len(D)),
        np.zeros((count, 4)),
        np.zeros(count, dtype=np.int64),
        np.zeros(count, dtype=np.int64),
    )


def shares(rows: IntArray) -> list[tuple[int, int]]:
    """First and one past last of consecutive programmes for each share of the work, given where
    their rows begin: eight shares for each thread, so that none waits long for another.
    """
    cuts = np.searchsorted(rows, np.linspace(0, rows[-1], 8 * threads() + 1)[1:-1])
    ends = np.unique([0, *cuts, len(rows) - 1]).tolist()
    return list(itertools.pairwise(ends))


def plain(array: Any, kind: Any) -> Any:
    """Contiguous and writable, because other arrays would be compiled for once more."""
    plain = np.ascontiguousarray(array, kind)
    return plain if plain.flags.writeable else plain.copy()
