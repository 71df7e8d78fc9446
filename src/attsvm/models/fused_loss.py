"""One compiled pass from moved queries, or what moves them, to losses and gradients: :mod:`attsvm.models.linear` for float64 on the CPU."""

from __future__ import annotations

import math

import numba
import numpy as np

from attsvm.data import BoolArray, FloatArray, IntArray
from attsvm.jit import kernel, parallel_kernel, summing_kernel
from attsvm.models import kernels

Instances = tuple[FloatArray, FloatArray, BoolArray, FloatArray, FloatArray]
"""Keys, tokens, mask, labels and weights of the rows, as :attr:`attsvm.models.sequences.Sequences.arrays` holds them."""


@kernel
def _loss_and_slope(u: float, code: int) -> tuple[float, float, float]:
    """The loss, and its slope as in :func:`attsvm.models.kernels.log_slope_parts`; one exponential serves both."""
    if code == 0:
        small = math.exp(-abs(u))
        return max(-u, 0.0) + math.log1p(small), -max(u, 0.0), 1.0 / (1.0 + small)
    return kernels.loss_value(u, code), kernels.log_slope_top(u, code), 1.0


@kernel
def _scratch(N: int, T: int, d_x: int) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Room for all tokens, all rows and all outputs of a run."""
    return np.empty((6, N * T)), np.empty((8, N)), np.empty((N, d_x))


@summing_kernel
def _logits(keys: FloatArray, moved: FloatArray, mask: BoolArray, a: FloatArray) -> None:
    """Logits of all rows, one after the other; hidden tokens hold -inf."""
    n, q, T = mask.shape
    for i in range(n):
        for j in range(q):
            row = i * q + j
            for t in range(T):
                total = 0.0
                for k in range(keys.shape[2]):
                    total += keys[i, t, k] * moved[row, k]
                a[row * T + t] = total if mask[i, j, t] else -np.inf


@summing_kernel
def _scores(tokens: FloatArray, v: FloatArray, q: int, score: FloatArray) -> None:
    """Values of all tokens under ``v``, as often as a sequence has rows."""
    n, T = tokens.shape[0], tokens.shape[1]
    for i in range(n):
        first = i * q * T
        for t in range(T):
            total = 0.0
            for k in range(tokens.shape[2]):
                total += tokens[i, t, k] * v[k]
            for j in range(q):
                score[first + j * T + t] = total


@summing_kernel
def _expectation(S: FloatArray, g: FloatArray, lo: int, hi: int) -> float:
    total = 0.0
    for t in range(lo, hi):
        total += S[t] * g[t]
    return total


@summing_kernel
def _pull(b: FloatArray, factors: FloatArray, keys: FloatArray, q: int, pulled: FloatArray) -> None:
    """``pulled = sum_t factor b_t key_t`` for every row; a row whose factor is 0 pulls nothing."""
    T, d = keys.shape[1], keys.shape[2]
    for row in range(pulled.shape[0]):
        i, lo, factor = row // q, row * T, factors[row]
        for k in range(d):
            pulled[row, k] = 0.0
        if factor == 0.0:
            continue
        t = 0
        while t + 4 <= T:
            w0, w1, w2, w3 = factor * b[lo + t], factor * b[lo + t + 1], factor * b[lo + t + 2], factor * b[lo + t + 3]
            for k in range(d):
                pulled[row, k] += (w0 * keys[i, t, k] + w1 * keys[i, t + 1, k]) + (w2 * keys[i, t + 2, k] + w3 * keys[i, t + 3, k])
            t += 4
        while t < T:
            w0 = factor * b[lo + t]
            for k in range(d):
                pulled[row, k] += w0 * keys[i, t, k]
            t += 1


@kernel
def _loss_run(
    moved: FloatArray, keys: FloatArray, tokens: FloatArray, mask: BoolArray, labels: FloatArray, weights: FloatArray,
    readout: FloatArray, has_intercept: bool, code: int, rescale: bool, pulled: FloatArray, column: FloatArray,
    scratch: tuple[FloatArray, FloatArray, FloatArray],
) -> tuple[float, float, float, float]:  # fmt: skip
    """Loss of one run, logarithms of the largest slope (within a factor of two), of the weights' factor and of the head's.

    Writes both gradients. Exponentials of all rows are taken in one go. Rows are ranges of one array: a view for each of them would
    cost as much as the arithmetic.
    """
    q, T = mask.shape[1:]
    N, d_x = labels.shape[0], tokens.shape[2]
    b = readout[d_x] if has_intercept else 0.0
    joint = column.shape[0] > 0
    every, rows, outputs = scratch
    e, shifted, g, S, Q, score = every[0], every[1], every[2], every[3], every[4], every[5]
    logs, own_logs, signs, best, tops, gaps, factors, wins = rows[0], rows[1], rows[2], rows[3], rows[4], rows[5], rows[6], rows[7]
    _logits(keys, moved, mask, S)
    _scores(tokens, readout, q, score)
    for row in range(N):
        winner, tops[row] = kernels.compare(S, score, row * T, row * T + T, e, shifted, g)
        best[row], gaps[row], wins[row] = score[winner], e[winner], winner
    kernels.exp_into(e, S, 0, N * T)
    kernels.exp_into(shifted, Q, 0, N * T)
    total, steepest, largest, own_largest = 0.0, -np.inf, -np.inf, -np.inf
    for row in range(N):
        lo, winner = row * T, int(wins[row])
        own_logs[row], signs[row] = -np.inf, 0.0
        share = weights[row] if weights.shape[0] > 0 else 1.0 / N
        if share == 0.0:
            logs[row] = -np.inf
            continue
        Z, ratio = kernels.weigh(S, Q, g, lo, lo + T, winner)
        u = labels[row] * (best[row] + b - _expectation(S, g, lo, lo + T) / Z) + gaps[row]  # 0, or NaN where a logit is not finite
        value, mild, slope = _loss_and_slope(u, code)
        total += share * value
        steepest = max(steepest, mild)
        logs[row] = tops[row] + mild
        largest = max(largest, logs[row])
        signs[row] = -share * slope * labels[row]
        kernels.coefficients(S, Q, lo, lo + T, winner, ratio, signs[row] / Z, Q)
        if joint:
            relative, s = e[lo : lo + T], S[lo : lo + T]
            near = 0.0 if has_intercept else kernels.nearest(relative, tokens[row // q], winner - lo)
            own_logs[row] = mild + near
            own_largest = max(own_largest, own_logs[row])
            kernels.probabilities(relative, near, Z, s)
            kernels.combine(s, tokens[row // q], outputs[row])
    base = largest if largest > -np.inf else 0.0
    _factors(logs, base if rescale else 0.0, factors)
    _pull(Q, factors, keys, q, pulled)
    if joint:
        column[:] = 0.0
        base = own_largest if own_largest > -np.inf else 0.0
        _factors(own_logs, base if rescale else 0.0, factors)
        for row in range(N):
            if own_logs[row] > -np.inf:
                kernels.add_one(column[:d_x], signs[row] * factors[row], outputs[row])
                if has_intercept:
                    column[d_x] += signs[row] * factors[row]
    return total, steepest, largest, own_largest if joint else steepest


@kernel
def _factors(logs: FloatArray, base: float, out: FloatArray) -> None:
    for row in range(logs.shape[0]):
        out[row] = math.exp(logs[row] - base)


@kernel
def _own(count: int, run: int) -> int:
    """Which of ``count`` entries belongs to a run: its own, or the only one."""
    return run if count > 1 else 0


@kernel
def _run(
    r: int, moved: FloatArray, instances: Instances, readout: FloatArray, has_intercept: bool, codes: IntArray, rescale: bool,
    pulled: FloatArray, column: FloatArray, found: FloatArray, scratch: tuple[FloatArray, FloatArray, FloatArray],
) -> None:  # fmt: skip
    keys, tokens, mask, labels, weights = instances
    weight = weights[_own(weights.shape[0], r)] if weights.shape[0] > 0 else np.empty(0)
    found[0, r], loss, weights_too, found[3, r] = _loss_run(
        moved, keys[_own(keys.shape[0], r)], tokens[_own(tokens.shape[0], r)], mask[_own(mask.shape[0], r)],
        labels[_own(labels.shape[0], r)], weight, readout[_own(readout.shape[0], r)], has_intercept, codes[_own(codes.shape[0], r)],
        rescale, pulled, column, scratch,
    )  # fmt: skip
    found[1, r], found[2, r] = loss, weights_too - loss


@kernel
def loss(
    moved: FloatArray, instances: Instances, readout: FloatArray, has_intercept: bool, codes: IntArray, rescale: bool,
    pulled: FloatArray, column: FloatArray, found: FloatArray,
) -> None:  # fmt: skip
    """Losses ``found[0]``, gradients ``pulled`` and ``column`` (empty when the head is fixed), and logarithms of what was taken out.

    ``found[1]`` was taken out by the slopes, ``found[2]`` on top of it from ``pulled``, ``found[3]`` in all from ``column``. Without
    ``rescale`` nothing is taken out and they say what would have been.
    """
    scratch = _scratch(moved.shape[1], instances[1].shape[2], instances[1].shape[3])
    for r in range(moved.shape[0]):
        _run(r, moved[r], instances, readout, has_intercept, codes, rescale, pulled[r], column[r], found, scratch)


@parallel_kernel
def loss_shared(
    moved: FloatArray, instances: Instances, readout: FloatArray, has_intercept: bool, codes: IntArray, rescale: bool,
    pulled: FloatArray, column: FloatArray, found: FloatArray,
) -> None:  # fmt: skip
    """:func:`loss` on all cores."""
    for r in numba.prange(moved.shape[0]):
        run = int(np.int64(r))  # prange counts in unsigned integers
        scratch = _scratch(moved.shape[1], instances[1].shape[2], instances[1].shape[3])
        _run(run, moved[run], instances, readout, has_intercept, codes, rescale, pulled[run], column[run], found, scratch)


@summing_kernel
def _move(M: FloatArray, queries: FloatArray, moved: FloatArray) -> None:
    """``moved = queries M^T``."""
    for row in range(queries.shape[0]):
        for k in range(M.shape[0]):
            total = 0.0
            for j in range(M.shape[1]):
                total += M[k, j] * queries[row, j]
            moved[row, k] = total


@summing_kernel
def _outer(pulled: FloatArray, queries: FloatArray, G: FloatArray) -> None:
    """``G = pulled^T queries``."""
    d_z = G.shape[1]
    for k in range(G.shape[0]):
        for j in range(d_z):
            G[k, j] = 0.0
        row = 0
        while row + 2 <= queries.shape[0]:
            a, b = pulled[row, k], pulled[row + 1, k]
            for j in range(d_z):
                G[k, j] += a * queries[row, j] + b * queries[row + 1, j]
            row += 2
        if row < queries.shape[0]:
            for j in range(d_z):
                G[k, j] += pulled[row, k] * queries[row, j]


@kernel
def _matrix_run(
    r: int, M: FloatArray, queries: FloatArray, instances: Instances, readout: FloatArray, has_intercept: bool, codes: IntArray,
    rescale: bool, G: FloatArray, column: FloatArray, found: FloatArray, rows: FloatArray,
    scratch: tuple[FloatArray, FloatArray, FloatArray],
) -> None:  # fmt: skip
    z, moved, pulled = queries[_own(queries.shape[0], r)], rows[0], rows[1]
    _move(M, z, moved)
    _run(r, moved, instances, readout, has_intercept, codes, rescale, pulled, column, found, scratch)
    _outer(pulled, z, G)


@kernel
def matrix_loss(
    M: FloatArray, queries: FloatArray, instances: Instances, readout: FloatArray, has_intercept: bool, codes: IntArray, rescale: bool,
    G: FloatArray, column: FloatArray, found: FloatArray,
) -> None:  # fmt: skip
    """:func:`loss` of the matrix that moves the queries: reads ``M`` in the place of ``moved`` and writes its gradient ``G``."""
    N = queries.shape[1]
    rows, scratch = np.empty((2, N, M.shape[1])), _scratch(N, instances[1].shape[2], instances[1].shape[3])
    for r in range(M.shape[0]):
        _matrix_run(r, M[r], queries, instances, readout, has_intercept, codes, rescale, G[r], column[r], found, rows, scratch)


@parallel_kernel
def matrix_loss_shared(
    M: FloatArray, queries: FloatArray, instances: Instances, readout: FloatArray, has_intercept: bool, codes: IntArray, rescale: bool,
    G: FloatArray, column: FloatArray, found: FloatArray,
) -> None:  # fmt: skip
    """:func:`matrix_loss` on all cores."""
    for r in numba.prange(M.shape[0]):
        run, N = int(np.int64(r)), queries.shape[1]
        rows, scratch = np.empty((2, N, M.shape[1])), _scratch(N, instances[1].shape[2], instances[1].shape[3])
        _matrix_run(run, M[run], queries, instances, readout, has_intercept, codes, rescale, G[run], column[run], found, rows, scratch)
