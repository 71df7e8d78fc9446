"""Attention compiled for float64 on the CPU: the operation, from moved queries to outputs and back,
in one pass each; and with a linear head and the loss on top, in one pass for all.

The arithmetic is that of the torch operations in :mod:`attsvm.models.softmax`, without their twenty
kernel launches per step. Row ``i`` of a run asks sequence ``i // q``. Large batches share their
runs out among the cores, so the bits do not depend on their number; small ones stay away from the
thread pool, which on a busy machine costs more than the pass.

The stages of the fused loss (logits, comparison with the winner, slopes, coefficients, gradients)
go through all rows of a run, so that a loop is long enough for vector instructions. They take
whole arrays and the index of the run: a view of an array costs as much as the arithmetic of a row.
See :mod:`attsvm.models.softmax_kernels` for what the letters mean.
"""

from __future__ import annotations

import math

import numba
import numpy as np

from attsvm.data import BoolArray, FloatArray, IntArray
from attsvm.jit import kernel, summing_kernel
from attsvm.models import softmax_kernels
from attsvm.parallel import shareable

Scratch = tuple[FloatArray, FloatArray, FloatArray, FloatArray, FloatArray, FloatArray]
# of every token: e, e - L, S, Q and g of :mod:`attsvm.models.softmax_kernels`
_RELATIVE, _BELOW, _S, _Q, _G = range(5)
_WINNER, _TOP, _BEST, _GAP, _Z, _RATIO, _MILD, _SIGN, _FACTOR, _OWN = range(10)  # of every row
Instances = tuple[FloatArray, FloatArray, BoolArray, FloatArray, FloatArray]
"""Keys, tokens, mask, labels and weights of the rows, as
:attr:`attsvm.models.sequences.Sequences.arrays` holds them.
"""
Asked = tuple[Instances, FloatArray, FloatArray, bool, IntArray, bool]
"""What is read: instances, readout, scores of :func:`token_scores` (empty, they are computed on the
way), whether there is an intercept, codes of the losses, and whether gradients are rescaled.
"""


@kernel
def _forward_run(
    moved: FloatArray,
    keys: FloatArray,
    tokens: FloatArray,
    mask: BoolArray,
    outputs: FloatArray,
    log_s: FloatArray,
    winners: IntArray,
) -> None:
    n, q, T = mask.shape
    S = np.empty(T)
    for i in range(n):
        for j in range(q):
            row = i * q + j
            a = log_s[row]
            best = -np.inf
            winner = 0
            softmax_kernels.products(keys[i], moved[row], a)
            for t in range(T):
                if not mask[i, j, t]:
                    a[t] = -np.inf
                if a[t] > best:
                    best = a[t]
                    winner = t
            for t in range(T):
                a[t] -= best
            softmax_kernels.exp_into(a, S, 0, T)
            S[winner] = 0.0
            losers = 0.0
            for t in range(T):
                losers += S[t]
            S[winner] = 1.0
            shift = math.log1p(losers)
            for t in range(T):
                a[t] -= shift
                S[t] /= 1.0 + losers
            winners[row] = winner
            softmax_kernels.combine(S, tokens[i], outputs[row])


@shareable
def forward(
    moved: FloatArray,
    keys: FloatArray,
    tokens: FloatArray,
    mask: BoolArray,
    outputs: FloatArray,
    log_s: FloatArray,
    winners: IntArray,
) -> None:
    """Outputs ``(R, N, d_x)``, log-probabilities ``(R, N, T)`` and winners ``(R, N)`` of moved
    queries ``(R, N, d_k)``.
    """
    for r in numba.prange(moved.shape[0]):
        k = min(np.int64(r), tokens.shape[0] - 1)  # prange counts in unsigned integers
        m = min(np.int64(r), mask.shape[0] - 1)
        _forward_run(moved[r], keys[k], tokens[k], mask[m], outputs[r], log_s[r], winners[r])


@kernel
def _backward_run(
    grad: FloatArray,
    keys: FloatArray,
    tokens: FloatArray,
    log_s: FloatArray,
    winners: IntArray,
    q: int,
    rescale: bool,
    pulled: FloatArray,
) -> float:
    N, T = log_s.shape
    values, s, first, b = np.empty((N, T)), np.empty(T), np.empty(T), np.empty(T)
    largest = -np.inf
    for row in range(N):
        i, winner, line = row // q, winners[row], values[row]
        softmax_kernels.products(tokens[i], grad[row], line)
        base = line[winner]
        for t in range(T):
            line[t] -= base
            if line[t] != 0.0 and log_s[row, t] > largest:
                largest = log_s[row, t]
    factor = largest if rescale and largest > -np.inf else 0.0
    for row in range(N):
        i, winner = row // q, winners[row]
        softmax_kernels.exp_into(log_s[row], s, 0, T)
        if rescale:
            for t in range(T):
                b[t] = min(log_s[row, t] - factor, 0.0)
            softmax_kernels.exp_into(b, first, 0, T)
        else:
            first[:] = s
        mean = 0.0
        for t in range(T):
            first[t] = first[t] * values[row, t] if values[row, t] != 0.0 else 0.0
            mean += first[t]
        others = 0.0
        for t in range(T):
            b[t] = first[t] - s[t] * mean
            if t != winner:
                others += b[t]
        b[winner] = -others
        softmax_kernels.combine(b, keys[i], pulled[row])
    return largest


@shareable
def backward(
    grad: FloatArray,
    keys: FloatArray,
    tokens: FloatArray,
    log_s: FloatArray,
    winners: IntArray,
    q: int,
    rescale: bool,
    pulled: FloatArray,
    factors: FloatArray,
) -> None:
    """Gradient ``(R, N, d_k)`` for the moved queries from that for the outputs, and the logarithms
    ``(R,)`` of what was taken out of it.
    """
    for r in numba.prange(grad.shape[0]):
        k = min(np.int64(r), tokens.shape[0] - 1)
        factors[r] = _backward_run(
            grad[r], keys[k], tokens[k], log_s[r], winners[r], q, rescale, pulled[r]
        )


@kernel
def token_scores(tokens: FloatArray, readout: FloatArray, scores: FloatArray) -> None:
    """Scores ``(k, n, T)`` of every instance under its own readout, or under the only one."""
    for r in range(scores.shape[0]):
        _scores(tokens, own(tokens.shape[0], r), readout, own(readout.shape[0], r), scores, r)


@kernel
def _run(
    r: int,
    moved: FloatArray,
    at: int,
    asked: Asked,
    pulled: FloatArray,
    to: int,
    column: FloatArray,
    found: FloatArray,
    room: Scratch,
) -> None:
    """One run: the stages below, one after the other."""
    instances, readout, scores, has_intercept, codes, rescale = asked
    keys, tokens, mask, labels, weights = instances
    every, powers, raised, rows, fresh, outputs = room
    q, v = mask.shape[2], own(readout.shape[0], r)
    logits(r, keys, moved, at, mask, every)
    if scores.shape[0] > 0:
        compare(scores, own(scores.shape[0], r), q, every, rows)
    else:
        _scores(tokens, own(tokens.shape[0], r), readout, v, fresh, 0)
        compare(fresh, 0, q, every, rows)
    softmax_kernels.exp_into(powers, raised, 0, powers.size)
    weigh(every, rows)
    b = readout[v, tokens.shape[3]] if has_intercept else 0.0
    found[0, r], steepest, largest = slopes(
        r, labels, weights, b, codes[own(codes.shape[0], r)], rescale, rows
    )
    found[1, r], found[2, r], found[3, r] = steepest, largest - steepest, steepest
    coefficients(every, rows)
    pull(r, every, rows, keys, q, pulled, to)
    if column.shape[1] > 0:
        found[3, r] = head(r, tokens, q, has_intercept, rescale, every, rows, outputs, column)


@kernel
def _share(count: int, chunk: int, chunks: int) -> tuple[int, int]:
    """The runs of a chunk; ``numba.prange`` counts in unsigned integers."""
    k = np.int64(chunk)
    return int(count * k // chunks), int(count * (k + 1) // chunks)


@shareable
def loss(
    chunks: int,
    moved: FloatArray,
    asked: Asked,
    pulled: FloatArray,
    column: FloatArray,
    found: FloatArray,
) -> None:
    """Losses ``found[0]``, gradients ``pulled`` and ``column`` (empty when the head is fixed), and
    logarithms of what was taken out; runs are worked off in so many chunks.

    ``found[1]`` was taken out by the slopes, ``found[2]`` on top of it from ``pulled``,
    ``found[3]`` in all from ``column``. Without ``rescale`` nothing is taken out and they say what
    would have been.
    """
    tokens = asked[0][1]
    for chunk in numba.prange(chunks):
        room = scratch(moved.shape[1], tokens)
        start, stop = _share(moved.shape[0], chunk, chunks)
        for r in range(start, stop):
            _run(r, moved, r, asked, pulled, r, column, found, room)


@summing_kernel
def _move(r: int, M: FloatArray, queries: FloatArray, moved: FloatArray, to: int) -> None:
    """``moved = queries M^T``."""
    z = own(queries.shape[0], r)
    for row in range(queries.shape[1]):
        for k in range(M.shape[1]):
            total = 0.0
            for j in range(M.shape[2]):
                total += M[r, k, j] * queries[z, row, j]
            moved[to, row, k] = total


@summing_kernel
def _outer(r: int, pulled: FloatArray, at: int, queries: FloatArray, G: FloatArray) -> None:
    """``G = pulled^T queries``, four queries at a time."""
    z, N = own(queries.shape[0], r), queries.shape[1]
    d_k, d_z = G.shape[1:]
    for k in range(d_k):
        for j in range(d_z):
            G[r, k, j] = 0.0
    for four in range(N // 4):
        i = 4 * four
        for k in range(d_k):
            w0, w1, w2, w3 = (
                pulled[at, i, k],
                pulled[at, i + 1, k],
                pulled[at, i + 2, k],
                pulled[at, i + 3, k],
            )
            for j in range(d_z):
                G[r, k, j] += (w0 * queries[z, i, j] + w1 * queries[z, i + 1, j]) + (
                    w2 * queries[z, i + 2, j] + w3 * queries[z, i + 3, j]
                )
    for i in range(N - N % 4, N):
        for k in range(d_k):
            w0 = pulled[at, i, k]
            for j in range(d_z):
                G[r, k, j] += w0 * queries[z, i, j]


@shareable
def matrix_loss(
    chunks: int,
    M: FloatArray,
    queries: FloatArray,
    asked: Asked,
    G: FloatArray,
    column: FloatArray,
    found: FloatArray,
) -> None:
    """:func:`loss` of the matrix that moves the queries: reads ``M`` in the place of ``moved`` and
    writes its gradient ``G``.
    """
    tokens = asked[0][1]
    for chunk in numba.prange(chunks):
        room = scratch(queries.shape[1], tokens)
        pair = np.empty((2, queries.shape[1], M.shape[1]))  # moved and pulled
        start, stop = _share(M.shape[0], chunk, chunks)
        for r in range(start, stop):
            _move(r, M, queries, pair, 0)
            _run(r, pair, 0, asked, pair, 1, column, found, room)
            _outer(r, pair, 1, queries, G)


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
def _scores(
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
