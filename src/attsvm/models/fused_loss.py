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
Scratch = tuple[FloatArray, FloatArray, FloatArray, FloatArray]


@kernel
def _own(count: int, run: int) -> int:
    """Which of ``count`` entries belongs to a run: its own, or the only one."""
    return run if count > 1 else 0


@kernel
def _loss_and_slope(u: float, code: int) -> tuple[float, float, float]:
    """The loss, and its slope as in :func:`attsvm.models.kernels.log_slope_parts`; one exponential serves both."""
    if code == 0:
        small = math.exp(-abs(u))
        return max(-u, 0.0) + math.log1p(small), -max(u, 0.0), 1.0 / (1.0 + small)
    return kernels.loss_value(u, code), kernels.log_slope_top(u, code), 1.0


@kernel
def _scratch(N: int, tokens: FloatArray) -> Scratch:
    """Room for all logits, all rows, all scores and all outputs of a run."""
    n, T, d_x = tokens.shape[1:]
    return np.empty((5, N, T)), np.empty((10, N)), np.empty((n, T)), np.empty((N, d_x))


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
                a[row, t] = total if mask[i, j, t] else -np.inf


@summing_kernel
def _scores(tokens: FloatArray, v: FloatArray, score: FloatArray) -> None:
    """Values of all tokens under ``v``; equal tokens have equal bits, for a tie is a score difference of exactly zero."""
    n, T, d = tokens.shape
    for i in range(n):
        for t in range(T):
            total = 0.0
            for k in range(d):
                total += tokens[i, t, k] * v[k]
            score[i, t] = total


@kernel
def token_scores(tokens: FloatArray, readout: FloatArray, scores: FloatArray) -> None:
    """Scores ``(k, n, T)`` of every instance under its own readout, or under the only one."""
    for r in range(scores.shape[0]):
        _scores(tokens[_own(tokens.shape[0], r)], readout[_own(readout.shape[0], r)], scores[r])


@kernel
def _compare(a: FloatArray, score: FloatArray, q: int, e: FloatArray, shifted: FloatArray, g: FloatArray, rows: FloatArray) -> None:
    """:func:`attsvm.models.kernels.compare` for all rows: ``e``, ``e - L``, ``g``, and in ``rows`` winner, ``L``, best score and gap.

    The gap is the relative logit of the winner: 0, or NaN where a logit is not finite.
    """
    N, T = a.shape
    for row in range(N):
        own = score[row // q]
        highest, winner = a[row, 0], 0
        for t in range(1, T):
            higher = a[row, t] > highest
            highest = a[row, t] if higher else highest
            winner = t if higher else winner
        best, top = own[winner], -np.inf
        for t in range(T):
            relative, difference = a[row, t] - highest, best - own[t]
            e[row, t], g[row, t] = relative, difference
            rival = relative if difference != 0.0 else -np.inf
            top = rival if rival > top else top
        base = top if top > -np.inf else 0.0
        for t in range(T):
            below = e[row, t] - base
            shifted[row, t] = below if below < 0.0 else 0.0
        rows[0, row], rows[1, row], rows[2, row], rows[3, row] = winner, top, best, e[row, winner]


@summing_kernel
def _weigh(S: FloatArray, Q: FloatArray, g: FloatArray, Z: FloatArray, ratio: FloatArray) -> None:
    """:func:`attsvm.models.kernels.weigh` for all rows."""
    for row in range(S.shape[0]):
        mass, total = 0.0, 0.0
        for t in range(S.shape[1]):
            product = Q[row, t] * g[row, t]
            Q[row, t] = product
            total += product
            mass += S[row, t]
        Z[row], ratio[row] = mass, total / mass


@summing_kernel
def _coefficients(S: FloatArray, Q: FloatArray, winners: FloatArray, ratio: FloatArray, factor: FloatArray) -> None:
    """:func:`attsvm.models.kernels.coefficients` for all rows, in the place of ``Q``: the winner's takes what rounding left of their sum."""
    for row in range(S.shape[0]):
        total = 0.0
        for t in range(S.shape[1]):
            value = factor[row] * (S[row, t] * ratio[row] - Q[row, t])
            Q[row, t] = value
            total += value
        Q[row, int(winners[row])] -= total


@summing_kernel
def _pull(b: FloatArray, factors: FloatArray, keys: FloatArray, q: int, pulled: FloatArray) -> None:
    """``pulled = sum_t b_t key_t`` for every row; one whose coefficients had the factor 0 pulls nothing."""
    n, T, d = keys.shape
    for i in range(n):
        for j in range(q):
            row = i * q + j
            for k in range(d):
                pulled[row, k] = 0.0
            if factors[row] == 0.0:
                continue
            for four in range(T // 4):
                t = 4 * four
                w0, w1, w2, w3 = b[row, t], b[row, t + 1], b[row, t + 2], b[row, t + 3]
                for k in range(d):
                    pulled[row, k] += (w0 * keys[i, t, k] + w1 * keys[i, t + 1, k]) + (w2 * keys[i, t + 2, k] + w3 * keys[i, t + 3, k])
            for t in range(T - T % 4, T):
                w0 = b[row, t]
                for k in range(d):
                    pulled[row, k] += w0 * keys[i, t, k]


@kernel
def _loss_run(
    moved: FloatArray, keys: FloatArray, tokens: FloatArray, mask: BoolArray, labels: FloatArray, weights: FloatArray,
    score: FloatArray, has_intercept: bool, b: float, code: int, rescale: bool, pulled: FloatArray, column: FloatArray,
    scratch: Scratch,
) -> tuple[float, float, float, float]:  # fmt: skip
    """Loss of one run, logarithms of the largest slope (within a factor of two), of the weights' factor and of the head's.

    Writes both gradients. Every stage goes through all rows, so that its loop is long enough for vector instructions.
    """
    q = mask.shape[1]
    N, d_x = labels.shape[0], tokens.shape[2]
    every, rows, _, outputs = scratch
    e, shifted, g, S, Q = every[0], every[1], every[2], every[3], every[4]
    wins, tops, best, gaps, Z, ratio, mild, signs, factors, own_logs = (
        rows[0], rows[1], rows[2], rows[3], rows[4], rows[5], rows[6], rows[7], rows[8], rows[9],
    )  # fmt: skip
    _logits(keys, moved, mask, S)
    _compare(S, score, q, e, shifted, g, rows)
    kernels.exp_into(e.reshape(e.size), S.reshape(e.size), 0, e.size)
    kernels.exp_into(shifted.reshape(e.size), Q.reshape(e.size), 0, e.size)
    _weigh(S, Q, g, Z, ratio)
    total, steepest, largest = 0.0, -np.inf, -np.inf
    for row in range(N):
        share = weights[row] if weights.shape[0] > 0 else 1.0 / N
        mild[row], signs[row] = -np.inf, 0.0
        if share == 0.0:
            continue
        u = labels[row] * (best[row] + b - math.exp(tops[row]) * ratio[row]) + gaps[row]
        value, mild[row], slope = _loss_and_slope(u, code)
        total += share * value
        steepest = max(steepest, mild[row])
        largest = max(largest, mild[row] + tops[row])
        signs[row] = -share * slope * labels[row]
    base = largest if rescale and largest > -np.inf else 0.0
    for row in range(N):
        factors[row] = signs[row] * math.exp(mild[row] + tops[row] - base) / Z[row]
    _coefficients(S, Q, wins, ratio, factors)
    _pull(Q, factors, keys, q, pulled)
    if column.shape[0] == 0:
        return total, steepest, largest, steepest
    largest_own = -np.inf
    for row in range(N):
        own_logs[row] = -np.inf
        if signs[row] != 0.0:
            near = 0.0 if has_intercept else kernels.nearest(e[row], tokens[row // q], int(wins[row]))
            own_logs[row] = mild[row] + near
            largest_own = max(largest_own, own_logs[row])
            kernels.probabilities(e[row], near, Z[row], S[row])
            kernels.combine(S[row], tokens[row // q], outputs[row])
    base = largest_own if rescale and largest_own > -np.inf else 0.0
    column[:] = 0.0
    for row in range(N):
        if own_logs[row] > -np.inf:
            size = signs[row] * math.exp(own_logs[row] - base)
            kernels.add_one(column[:d_x], size, outputs[row])
            if has_intercept:
                column[d_x] += size
    return total, steepest, largest, largest_own


@kernel
def _run(
    r: int, moved: FloatArray, instances: Instances, readout: FloatArray, scores: FloatArray, has_intercept: bool, codes: IntArray,
    rescale: bool, pulled: FloatArray, column: FloatArray, found: FloatArray, scratch: Scratch,
) -> None:  # fmt: skip
    keys, tokens, mask, labels, weights = instances
    mine, x = readout[_own(readout.shape[0], r)], tokens[_own(tokens.shape[0], r)]
    score = scratch[2]
    if scores.shape[0] > 0:
        score = scores[_own(scores.shape[0], r)]
    else:
        _scores(x, mine, score)
    found[0, r], loss, weights_too, found[3, r] = _loss_run(
        moved, keys[_own(keys.shape[0], r)], x, mask[_own(mask.shape[0], r)], labels[_own(labels.shape[0], r)],
        weights[_own(weights.shape[0], r) : _own(weights.shape[0], r) + 1].reshape(-1), score, has_intercept,
        mine[x.shape[2]] if has_intercept else 0.0, codes[_own(codes.shape[0], r)], rescale, pulled, column, scratch,
    )  # fmt: skip
    found[1, r], found[2, r] = loss, weights_too - loss


@kernel
def loss(
    moved: FloatArray, instances: Instances, readout: FloatArray, scores: FloatArray,
    has_intercept: bool, codes: IntArray, rescale: bool, pulled: FloatArray, column: FloatArray, found: FloatArray,
) -> None:  # fmt: skip
    """Losses ``found[0]``, gradients ``pulled`` and ``column`` (empty when the head is fixed), and logarithms of what was taken out.

    ``found[1]`` was taken out by the slopes, ``found[2]`` on top of it from ``pulled``, ``found[3]`` in all from ``column``. Without
    ``rescale`` nothing is taken out and they say what would have been. ``scores`` are those of :func:`token_scores`; empty, they are
    computed on the way.
    """
    scratch = _scratch(moved.shape[1], instances[1])
    for r in range(moved.shape[0]):
        _run(r, moved[r], instances, readout, scores, has_intercept, codes, rescale, pulled[r], column[r], found, scratch)


@parallel_kernel
def loss_shared(
    moved: FloatArray, instances: Instances, readout: FloatArray, scores: FloatArray,
    has_intercept: bool, codes: IntArray, rescale: bool, pulled: FloatArray, column: FloatArray, found: FloatArray,
) -> None:  # fmt: skip
    """:func:`loss` on all cores."""
    for r in numba.prange(moved.shape[0]):
        run = int(np.int64(r))  # prange counts in unsigned integers
        scratch = _scratch(moved.shape[1], instances[1])
        _run(run, moved[run], instances, readout, scores, has_intercept, codes, rescale, pulled[run], column[run], found, scratch)


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
    """``G = pulled^T queries``, four queries at a time."""
    N, d_k, d_z = queries.shape[0], G.shape[0], G.shape[1]
    for k in range(d_k):
        for j in range(d_z):
            G[k, j] = 0.0
    for four in range(N // 4):
        row = 4 * four
        for k in range(d_k):
            w0, w1, w2, w3 = pulled[row, k], pulled[row + 1, k], pulled[row + 2, k], pulled[row + 3, k]
            for j in range(d_z):
                G[k, j] += (w0 * queries[row, j] + w1 * queries[row + 1, j]) + (w2 * queries[row + 2, j] + w3 * queries[row + 3, j])
    for row in range(N - N % 4, N):
        for k in range(d_k):
            w0 = pulled[row, k]
            for j in range(d_z):
                G[k, j] += w0 * queries[row, j]


@kernel
def _matrix_run(
    r: int, M: FloatArray, queries: FloatArray, instances: Instances, readout: FloatArray, scores: FloatArray,
    has_intercept: bool, codes: IntArray, rescale: bool, G: FloatArray, column: FloatArray, found: FloatArray, rows: FloatArray,
    scratch: Scratch,
) -> None:  # fmt: skip
    z, moved, pulled = queries[_own(queries.shape[0], r)], rows[0], rows[1]
    _move(M, z, moved)
    _run(r, moved, instances, readout, scores, has_intercept, codes, rescale, pulled, column, found, scratch)
    _outer(pulled, z, G)


@kernel
def matrix_loss(
    M: FloatArray, queries: FloatArray, instances: Instances, readout: FloatArray, scores: FloatArray,
    has_intercept: bool, codes: IntArray, rescale: bool, G: FloatArray, column: FloatArray, found: FloatArray,
) -> None:  # fmt: skip
    """:func:`loss` of the matrix that moves the queries: reads ``M`` in the place of ``moved`` and writes its gradient ``G``."""
    N = queries.shape[1]
    rows, scratch = np.empty((2, N, M.shape[1])), _scratch(N, instances[1])
    for r in range(M.shape[0]):
        _matrix_run(r, M[r], queries, instances, readout, scores, has_intercept, codes, rescale, G[r], column[r], found, rows, scratch)


@parallel_kernel
def matrix_loss_shared(
    M: FloatArray, queries: FloatArray, instances: Instances, readout: FloatArray, scores: FloatArray,
    has_intercept: bool, codes: IntArray, rescale: bool, G: FloatArray, column: FloatArray, found: FloatArray,
) -> None:  # fmt: skip
    """:func:`matrix_loss` on all cores."""
    for r in numba.prange(M.shape[0]):
        run, N = int(np.int64(r)), queries.shape[1]
        rows, scratch = np.empty((2, N, M.shape[1])), _scratch(N, instances[1])
        _matrix_run(run, M[run], queries, instances, readout, scores, has_intercept, codes, rescale, G[run], column[run], found, rows, scratch)
