"""The stages of the fused loss of one run: logits, comparison with the winner, slopes,
coefficients, gradients.

A stage goes through all rows, so that its loop is long enough for vector instructions, and takes
whole arrays and the index of the run: a view of an array costs as much as the arithmetic of a row.
See :mod:`attsvm.models.softmax_kernels` for what the letters mean.
"""

from __future__ import annotations

import math

import numpy as np

from attsvm.data import BoolArray, FloatArray
from attsvm.jit import kernel, summing_kernel
from attsvm.models import softmax_kernels

Scratch = tuple[FloatArray, FloatArray, FloatArray, FloatArray, FloatArray, FloatArray]

_RELATIVE, _BELOW, _S, _Q, _G = range(
    5
)  # of every token: e, e - L, S, Q and g of :mod:`attsvm.models.softmax_kernels`
_WINNER, _TOP, _BEST, _GAP, _Z, _RATIO, _MILD, _SIGN, _FACTOR, _OWN = range(10)  # of every row


@kernel
def own(count: int, run: int) -> int:
    """Which of ``count`` entries belongs to a run: its own, or the only one."""
    return run if count > 1 else 0


@kernel
def _loss_and_slope(u: float, code: int) -> tuple[float, float, float]:
    """The loss, and its slope as in :func:`attsvm.models.softmax_kernels.log_slope_parts`; one
    exponential serves both.
    """
    if code == 0:
        small = math.exp(-abs(u))
        return max(-u, 0.0) + math.log1p(small), -max(u, 0.0), 1.0 / (1.0 + small)
    return softmax_kernels.loss_value(u, code), softmax_kernels.log_slope_top(u, code), 1.0


@kernel
def scratch(N: int, tokens: FloatArray) -> Scratch:
    """Room for a run: all tokens of all rows, what exponentials are taken of and where they go, all
    rows, scores, outputs.
    """
    n, T, d_x = tokens.shape[1:]
    every = np.empty((5, N, T))
    powers, raised = every[_RELATIVE : _BELOW + 1].reshape(-1), every[_S : _Q + 1].reshape(-1)
    return every, powers, raised, np.empty((10, N)), np.empty((1, n, T)), np.empty((N, d_x))


@summing_kernel
def logits(
    r: int, keys: FloatArray, moved: FloatArray, at: int, mask: BoolArray, every: FloatArray
) -> None:
    """Logits of all rows, one after the other; hidden tokens hold -inf."""
    n, q, T = mask.shape[1:]
    k, m = own(keys.shape[0], r), own(mask.shape[0], r)
    for i in range(n):
        for j in range(q):
            row = i * q + j
            for t in range(T):
                total = 0.0
                for c in range(keys.shape[3]):
                    total += keys[k, i, t, c] * moved[at, row, c]
                every[_S, row, t] = total if mask[m, i, j, t] else -np.inf


@summing_kernel
def scores(
    tokens: FloatArray, x: int, readout: FloatArray, v: int, scores: FloatArray, to: int
) -> None:
    """Values of all tokens under a readout; equal tokens have equal bits, for a tie is a score
    difference of exactly zero.
    """
    n, T, d = tokens.shape[1:]
    for i in range(n):
        for t in range(T):
            total = 0.0
            for c in range(d):
                total += tokens[x, i, t, c] * readout[v, c]
            scores[to, i, t] = total


@kernel
def compare(scores: FloatArray, own: int, q: int, every: FloatArray, rows: FloatArray) -> None:
    """:func:`attsvm.models.softmax_kernels.compare` for all rows, whose logits lie in the place of
    ``S``.

    The gap is the relative logit of the winner: 0, or NaN where a logit is not finite.
    """
    N, T = every.shape[1:]
    for row in range(N):
        i = row // q
        highest, winner = every[_S, row, 0], 0
        for t in range(1, T):
            higher = every[_S, row, t] > highest
            highest = every[_S, row, t] if higher else highest
            winner = t if higher else winner
        best, top = scores[own, i, winner], -np.inf
        for t in range(T):
            relative, difference = every[_S, row, t] - highest, best - scores[own, i, t]
            every[_RELATIVE, row, t], every[_G, row, t] = relative, difference
            rival = relative if difference != 0.0 else -np.inf
            top = rival if rival > top else top
        base = top if top > -np.inf else 0.0
        for t in range(T):
            below = every[_RELATIVE, row, t] - base
            every[_BELOW, row, t] = below if below < 0.0 else 0.0
        rows[_WINNER, row], rows[_TOP, row], rows[_BEST, row], rows[_GAP, row] = (
            winner,
            top,
            best,
            every[_RELATIVE, row, winner],
        )


@summing_kernel
def weigh(every: FloatArray, rows: FloatArray) -> None:
    """:func:`attsvm.models.softmax_kernels.weigh` for all rows."""
    for row in range(every.shape[1]):
        mass, total = 0.0, 0.0
        for t in range(every.shape[2]):
            product = every[_Q, row, t] * every[_G, row, t]
            every[_Q, row, t] = product
            total += product
            mass += every[_S, row, t]
        rows[_Z, row], rows[_RATIO, row] = mass, total / mass


@summing_kernel
def coefficients(every: FloatArray, rows: FloatArray) -> None:
    """:func:`attsvm.models.softmax_kernels.coefficients` for all rows, in the place of ``Q``; the
    winner's takes what is left of the sum.
    """
    for row in range(every.shape[1]):
        total, factor, ratio = 0.0, rows[_FACTOR, row], rows[_RATIO, row]
        for t in range(every.shape[2]):
            value = factor * (every[_S, row, t] * ratio - every[_Q, row, t])
            every[_Q, row, t] = value
            total += value
        every[_Q, row, int(rows[_WINNER, row])] -= total


@summing_kernel
def pull(
    r: int,
    every: FloatArray,
    rows: FloatArray,
    keys: FloatArray,
    q: int,
    pulled: FloatArray,
    to: int,
) -> None:
    """``pulled = sum_t b_t key_t`` for every row; one whose coefficients had the factor 0 pulls
    nothing.
    """
    n, T, d = keys.shape[1:]
    x = own(keys.shape[0], r)
    for i in range(n):
        for j in range(q):
            row = i * q + j
            for c in range(d):
                pulled[to, row, c] = 0.0
            if rows[_FACTOR, row] == 0.0:
                continue
            for four in range(T // 4):
                t = 4 * four
                w0, w1, w2, w3 = (
                    every[_Q, row, t],
                    every[_Q, row, t + 1],
                    every[_Q, row, t + 2],
                    every[_Q, row, t + 3],
                )
                for c in range(d):
                    pulled[to, row, c] += (w0 * keys[x, i, t, c] + w1 * keys[x, i, t + 1, c]) + (
                        w2 * keys[x, i, t + 2, c] + w3 * keys[x, i, t + 3, c]
                    )
            for t in range(T - T % 4, T):
                w0 = every[_Q, row, t]
                for c in range(d):
                    pulled[to, row, c] += w0 * keys[x, i, t, c]


@kernel
def slopes(
    r: int,
    labels: FloatArray,
    weights: FloatArray,
    b: float,
    code: int,
    rescale: bool,
    rows: FloatArray,
) -> tuple[float, float, float]:
    """The loss, logarithms of the largest slope and of the weights' factor; writes the factors of
    all coefficients.
    """
    N, y, w = labels.shape[1], own(labels.shape[0], r), own(weights.shape[0], r)
    total, steepest, largest = 0.0, -np.inf, -np.inf
    for row in range(N):
        share = weights[w, row] if weights.shape[0] > 0 else 1.0 / N
        rows[_MILD, row], rows[_SIGN, row] = -np.inf, 0.0
        if share == 0.0:
            continue
        top, label = rows[_TOP, row], labels[y, row]
        u = label * (rows[_BEST, row] + b - math.exp(top) * rows[_RATIO, row]) + rows[_GAP, row]
        value, mild, slope = _loss_and_slope(u, code)
        total += share * value
        steepest = max(steepest, mild)
        largest = max(largest, mild + top)
        rows[_MILD, row], rows[_SIGN, row] = mild, -share * slope * label
    base = largest if rescale and largest > -np.inf else 0.0
    for row in range(N):
        rows[_FACTOR, row] = (
            rows[_SIGN, row] * math.exp(rows[_MILD, row] + rows[_TOP, row] - base) / rows[_Z, row]
        )
    return total, steepest, largest


@kernel
def head(
    r: int,
    tokens: FloatArray,
    q: int,
    has_intercept: bool,
    rescale: bool,
    every: FloatArray,
    rows: FloatArray,
    outputs: FloatArray,
    column: FloatArray,
) -> float:
    """Writes the gradient of the head; returns the logarithm of its factor."""
    N, d_x = outputs.shape
    x, largest = tokens[own(tokens.shape[0], r)], -np.inf
    for row in range(N):
        rows[_OWN, row] = -np.inf
        if rows[_SIGN, row] != 0.0:
            e, S = every[_RELATIVE, row], every[_S, row]
            near = (
                0.0
                if has_intercept
                else softmax_kernels.nearest(e, x[row // q], int(rows[_WINNER, row]))
            )
            rows[_OWN, row] = rows[_MILD, row] + near
            largest = max(largest, rows[_OWN, row])
            softmax_kernels.probabilities(e, near, rows[_Z, row], S)
            softmax_kernels.combine(S, x[row // q], outputs[row])
    base = largest if rescale and largest > -np.inf else 0.0
    for c in range(column.shape[1]):
        column[r, c] = 0.0
    for row in range(N):
        if rows[_OWN, row] > -np.inf:
            size = rows[_SIGN, row] * math.exp(rows[_OWN, row] - base)
            for c in range(d_x):
                column[r, c] += size * outputs[row, c]
            if has_intercept:
                column[r, d_x] += size
    return largest
