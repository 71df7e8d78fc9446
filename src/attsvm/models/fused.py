"""The attention operation compiled for float64 on the CPU: from moved queries to outputs, and back,
in one pass each.

The same arithmetic as the torch operations in :mod:`attsvm.models.softmax`; a step of many small
runs is not worth twenty kernel launches. Row ``i`` of a run asks sequence ``i // q``. Large batches
share their runs out among the cores, so the bits do not depend on their number; small ones stay
away from the thread pool, which on a busy machine costs more than the pass.
"""

from __future__ import annotations

import math

import numba
import numpy as np

from attsvm.data import BoolArray, FloatArray, IntArray
from attsvm.jit import kernel
from attsvm.models import softmax_kernels
from attsvm.parallel import shareable


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
