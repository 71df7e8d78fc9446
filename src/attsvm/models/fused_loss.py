"""One compiled pass from moved queries to losses and gradients: :mod:`attsvm.models.linear` for float64 on the CPU."""

from __future__ import annotations

import math

import numba
import numpy as np

from attsvm.data import BoolArray, FloatArray, IntArray
from attsvm.jit import kernel, parallel_kernel
from attsvm.models import kernels


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


@kernel
def _loss_run(
    moved: FloatArray, keys: FloatArray, tokens: FloatArray, mask: BoolArray, labels: FloatArray, weights: FloatArray,
    readout: FloatArray, has_intercept: bool, code: int, rescale: bool, pulled: FloatArray, column: FloatArray,
    scratch: tuple[FloatArray, FloatArray, FloatArray],
) -> tuple[float, float, float, float]:  # fmt: skip
    """Loss of one run, logarithms of the largest slope (within a factor of two), of the weights' factor and of the head's.

    Writes both gradients. Exponentials of all rows are taken in one go.
    """
    n, q, T = mask.shape
    N, d_x = labels.shape[0], tokens.shape[2]
    v = readout[:d_x]
    b = readout[d_x] if has_intercept else 0.0
    joint = column.shape[0] > 0
    every, rows, outputs = scratch
    e, shifted, g, S, Q, score = every[0], every[1], every[2], every[3], every[4], every[5][:T]
    logs, own_logs, signs, best, tops, gaps, factors, wins = rows[0], rows[1], rows[2], rows[3], rows[4], rows[5], rows[6], rows[7]
    for i in range(n):
        kernels.products(tokens[i], v, score)
        for j in range(q):
            row = i * q + j
            lo = row * T
            a = S[lo : lo + T]
            kernels.products(keys[i], moved[row], a)
            for t in range(T):
                if not mask[i, j, t]:
                    a[t] = -np.inf
            winner, tops[row] = kernels.compare(a, score, 0, T, e[lo : lo + T], shifted[lo : lo + T], g[lo : lo + T])
            best[row], gaps[row], wins[row] = score[winner], e[lo + winner], winner
    kernels.exp_into(e, S, 0, N * T)
    kernels.exp_into(shifted, Q, 0, N * T)
    total, steepest, largest, own_largest = 0.0, -np.inf, -np.inf, -np.inf
    for row in range(N):
        i, lo, winner = row // q, row * T, int(wins[row])
        own_logs[row], signs[row] = -np.inf, 0.0
        share = weights[row] if weights.shape[0] > 0 else 1.0 / N
        if share == 0.0:
            logs[row] = -np.inf
            continue
        s, b_row = S[lo : lo + T], Q[lo : lo + T]
        Z, ratio = kernels.weigh(s, b_row, g[lo : lo + T], 0, T, winner)
        u = labels[row] * (best[row] + b - kernels.dot(s, g[lo : lo + T]) / Z) + gaps[row]  # 0, or NaN where a logit is not finite
        value, mild, slope = _loss_and_slope(u, code)
        total += share * value
        steepest = max(steepest, mild)
        logs[row] = tops[row] + mild
        largest = max(largest, logs[row])
        signs[row] = -share * slope * labels[row]
        kernels.coefficients(s, b_row, 0, T, winner, ratio, signs[row] / Z, b_row)
        if joint:
            near = 0.0 if has_intercept else kernels.nearest(e[lo : lo + T], tokens[i], winner)
            own_logs[row] = mild + near
            own_largest = max(own_largest, own_logs[row])
            kernels.probabilities(e[lo : lo + T], near, Z, s)
            kernels.combine(s, tokens[i], outputs[row])
    base = largest if largest > -np.inf else 0.0
    _factors(logs, base if rescale else 0.0, factors)
    for row in range(N):
        if logs[row] > -np.inf:
            for t in range(row * T, row * T + T):
                Q[t] *= factors[row]
            kernels.combine(Q[row * T : row * T + T], keys[row // q], pulled[row])
        else:
            pulled[row] = 0.0
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
    r: int, moved: FloatArray, keys: FloatArray, tokens: FloatArray, mask: BoolArray, labels: FloatArray, weights: FloatArray,
    readout: FloatArray, has_intercept: bool, codes: IntArray, rescale: bool, pulled: FloatArray, column: FloatArray, found: FloatArray,
    scratch: tuple[FloatArray, FloatArray, FloatArray],
) -> None:  # fmt: skip
    weight = weights[_own(weights.shape[0], r)] if weights.shape[0] > 0 else np.empty(0)
    found[0, r], loss, weights_too, found[3, r] = _loss_run(
        moved[r], keys[_own(keys.shape[0], r)], tokens[_own(tokens.shape[0], r)], mask[_own(mask.shape[0], r)],
        labels[_own(labels.shape[0], r)], weight, readout[_own(readout.shape[0], r)], has_intercept, codes[_own(codes.shape[0], r)],
        rescale, pulled[r], column[r], scratch,
    )  # fmt: skip
    found[1, r], found[2, r] = loss, weights_too - loss


@kernel
def loss(
    moved: FloatArray, keys: FloatArray, tokens: FloatArray, mask: BoolArray, labels: FloatArray, weights: FloatArray,
    readout: FloatArray, has_intercept: bool, codes: IntArray, rescale: bool, pulled: FloatArray, column: FloatArray, found: FloatArray,
) -> None:  # fmt: skip
    """Losses ``found[0]``, gradients ``pulled`` and ``column`` (empty when the head is fixed), and logarithms of what was taken out.

    ``found[1]`` was taken out by the slopes, ``found[2]`` on top of it from ``pulled``, ``found[3]`` in all from ``column``. Without
    ``rescale`` nothing is taken out and they say what would have been.
    """
    scratch = _scratch(labels.shape[1], mask.shape[3], tokens.shape[3])
    for r in range(moved.shape[0]):
        _run(r, moved, keys, tokens, mask, labels, weights, readout, has_intercept, codes, rescale, pulled, column, found, scratch)


@parallel_kernel
def loss_shared(
    moved: FloatArray, keys: FloatArray, tokens: FloatArray, mask: BoolArray, labels: FloatArray, weights: FloatArray,
    readout: FloatArray, has_intercept: bool, codes: IntArray, rescale: bool, pulled: FloatArray, column: FloatArray, found: FloatArray,
) -> None:  # fmt: skip
    """:func:`loss` on all cores."""
    for r in numba.prange(moved.shape[0]):
        run = int(np.int64(r))  # prange counts in unsigned integers
        scratch = _scratch(labels.shape[1], mask.shape[3], tokens.shape[3])
        _run(run, moved, keys, tokens, mask, labels, weights, readout, has_intercept, codes, rescale, pulled, column, found, scratch)
