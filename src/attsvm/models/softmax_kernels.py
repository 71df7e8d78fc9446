"""Compiled pieces that both training kernels share: exponentials, products, and the softmax step of
one sequence.

A sequence is read relative to its winner (see :mod:`attsvm.models.softmax`). For every rival ``t``
of the winner

    S_t = exp(e_t)                 e_t = a_t - a_winner
    Q_t = exp(e_t - L) g_t         g_t = score of the winner minus score of t
    L   = max e_t over rivals with g_t != 0

so that the gradient with respect to the logits is ``-(exp(L) |l'| / Z) (Q_t - S_t sum(Q) / Z)``
with ``Z = 1 + sum(S)``: one factor that may be any power of ten, kept as a logarithm, and numbers
of order one. A rival with a tied score has ``Q_t = 0`` and keeps its exact second-order term.
"""

from __future__ import annotations

import math

import numpy as np

from attsvm.data import FloatArray, IntArray
from attsvm.jit import kernel, summing_kernel

_LOG2E = 1.0 / math.log(2.0)
_LN2_HIGH = 6.93147180369123816490e-01  # its product with an exponent below 2^20 is exact
_LN2_LOW = 1.90821492927058770002e-10
_ROUND = 6755399441055744.0  # 1.5 * 2^52: adding it leaves the rounded integer in the low bits
_C = tuple(1.0 / math.factorial(k) for k in range(14))
_C2, _C3, _C4, _C5, _C6, _C7, _C8, _C9, _C10, _C11, _C12, _C13 = _C[2:]


@kernel
def exp_into(x: FloatArray, out: FloatArray, start: int, stop: int) -> None:
    """``out = exp(x)`` for ``x <= 0`` to about one unit in the last place, as vector code; below
    -708 the answer is 0.
    """
    for j in range(start, stop):
        y = x[j] if x[j] > -708.0 else -708.0
        shifted = y * _LOG2E + _ROUND
        k = shifted - _ROUND
        r = (y - k * _LN2_HIGH) - k * _LN2_LOW
        q = _C8 + r * (_C9 + r * (_C10 + r * (_C11 + r * (_C12 + r * _C13))))
        q = _C2 + r * (_C3 + r * (_C4 + r * (_C5 + r * (_C6 + r * (_C7 + r * q)))))
        power = np.int64((np.float64(shifted).view(np.int64) + 1023) << 52).view(np.float64)
        out[j] = power * (1.0 + (r + r * r * q)) if x[j] > -708.0 else 0.0


@summing_kernel
def dot(a: FloatArray, b: FloatArray) -> float:
    """Inner product."""
    total = 0.0
    for j in range(a.shape[0]):
        total += a[j] * b[j]
    return total


@summing_kernel
def add_four(
    y: FloatArray,
    w0: float,
    x0: FloatArray,
    w1: float,
    x1: FloatArray,
    w2: float,
    x2: FloatArray,
    w3: float,
    x3: FloatArray,
) -> None:
    """``y += w0 x0 + w1 x1 + w2 x2 + w3 x3``."""
    for k in range(y.shape[0]):
        y[k] += (w0 * x0[k] + w1 * x1[k]) + (w2 * x2[k] + w3 * x3[k])


@summing_kernel
def add_one(y: FloatArray, w: float, x: FloatArray) -> None:
    """``y += w x``."""
    for k in range(y.shape[0]):
        y[k] += w * x[k]


@kernel
def add_rows(y: FloatArray, weights: FloatArray, rows: FloatArray, start: int, stop: int) -> None:
    """``y += sum_j weights[j] rows[j]`` over ``start <= j < stop``."""
    j = start
    while j + 4 <= stop:
        add_four(
            y,
            weights[j],
            rows[j],
            weights[j + 1],
            rows[j + 1],
            weights[j + 2],
            rows[j + 2],
            weights[j + 3],
            rows[j + 3],
        )
        j += 4
    while j < stop:
        add_one(y, weights[j], rows[j])
        j += 1


@summing_kernel
def products(rows: FloatArray, x: FloatArray, out: FloatArray) -> None:
    """``out = rows x``."""
    for t in range(rows.shape[0]):
        total = 0.0
        for k in range(rows.shape[1]):
            total += rows[t, k] * x[k]
        out[t] = total


@summing_kernel
def combine(weights: FloatArray, rows: FloatArray, out: FloatArray) -> None:
    """``out = sum_t weights[t] rows[t]``."""
    for k in range(rows.shape[1]):
        out[k] = 0.0
    t = 0
    while t + 4 <= rows.shape[0]:
        a, b, c, d = weights[t], weights[t + 1], weights[t + 2], weights[t + 3]
        for k in range(rows.shape[1]):
            out[k] += (a * rows[t, k] + b * rows[t + 1, k]) + (
                c * rows[t + 2, k] + d * rows[t + 3, k]
            )
        t += 4
    while t < rows.shape[0]:
        for k in range(rows.shape[1]):
            out[k] += weights[t] * rows[t, k]
        t += 1


@kernel
def compare(
    a: FloatArray,
    score: FloatArray,
    lo: int,
    hi: int,
    e: FloatArray,
    shifted: FloatArray,
    g: FloatArray,
) -> tuple[int, float]:
    """Winner and ``L`` of the sequence ``lo:hi``; writes ``e``, ``e - L`` (at most 0) and ``g``."""
    winner = lo
    for t in range(lo + 1, hi):
        if a[t] > a[winner]:
            winner = t
    top = -np.inf
    for t in range(lo, hi):
        e[t] = a[t] - a[winner]
        g[t] = score[winner] - score[t]
        if g[t] != 0.0 and e[t] > top:
            top = e[t]
    base = top if top > -np.inf else 0.0
    for t in range(lo, hi):
        shifted[t] = min(e[t] - base, 0.0)
    return winner, top


@kernel
def weigh(
    S: FloatArray, Q: FloatArray, g: FloatArray, lo: int, hi: int, winner: int
) -> tuple[float, float]:
    """``Z`` and ``sum(Q) / Z``; on entry ``Q`` holds ``exp(e - L)``, on return the ``Q`` of the
    module. ``S[winner]`` stays 1.
    """
    mass = 0.0
    total = 0.0
    for t in range(lo, hi):
        Q[t] *= g[t]
        total += Q[t]
        if t != winner:
            mass += S[t]
    Z = 1.0 + mass
    return Z, total / Z


@kernel
def coefficients(
    S: FloatArray,
    Q: FloatArray,
    lo: int,
    hi: int,
    winner: int,
    ratio: float,
    factor: float,
    b: FloatArray,
) -> None:
    """Ascent coefficients of the logits, ``b_t = -factor (Q_t - S_t ratio)``, the winner's so that
    they sum to zero.
    """
    total = 0.0
    for t in range(lo, hi):
        value = factor * (Q[t] - S[t] * ratio)
        if t != winner:
            b[t] = -value
            total += value
    b[winner] = total


@kernel
def log_slope_top(u: float, loss: int) -> float:
    r"""The ``m`` of :func:`log_slope_parts`. Losses are numbered as in
    :mod:`attsvm.models.losses`.
    """
    if loss == 0:
        return -max(u, 0.0)
    return -u if loss == 1 else 0.0


@kernel
def log_slope_parts(u: float, loss: int) -> tuple[float, float]:
    r"""``m, r`` with slope :math:`|\ell'(u)|=e^{m}r`, ``r`` between one half and one: for the
    logistic loss ``m = -max(u, 0)``.
    """
    return log_slope_top(u, loss), 1.0 / (1.0 + math.exp(-abs(u))) if loss == 0 else 1.0


@kernel
def loss_value(u: float, loss: int) -> float:
    """The loss itself; logistic without overflow."""
    if loss == 0:
        return max(-u, 0.0) + math.log1p(math.exp(-abs(u)))
    return math.exp(-u) if loss == 1 else -u


@kernel
def log_excess(best: float, log_fall: float, loss: int) -> float:
    r""":math:`\log(\ell(b-f)-\ell(b))` from :math:`b` and :math:`\log f`, without cancellation and
    for any size of either.
    """
    if loss == 2:
        return log_fall
    fall = math.exp(log_fall)
    growth = log_fall  # log(exp(fall) - 1)
    if fall > 1.0:
        growth = fall + math.log1p(-math.exp(-fall))
    elif fall > 1e-16:
        growth = math.log(math.expm1(fall))
    if loss == 1:
        return growth - best
    x = growth - max(best, 0.0) - math.log1p(math.exp(-abs(best)))  # the excess is log(1 + exp(x))
    if x < -37.0:
        return x
    return math.log(x if x > 37.0 else math.log1p(math.exp(x)))


@kernel
def nearest(e: FloatArray, tokens: FloatArray, winner: int) -> float:
    """Largest relative logit of a token that is not zero: 0 unless a zero token wins, -inf when all
    tokens are zero.
    """
    if tokens[winner].any():
        return 0.0
    near = -np.inf
    for t in range(e.shape[0]):
        if e[t] > near and tokens[t].any():
            near = e[t]
    return near


@kernel
def probabilities(e: FloatArray, near: float, Z: float, S: FloatArray) -> None:
    """``S = exp(e - near) / Z`` where that is at most one; it holds ``exp(e)`` on entry. Beyond
    ``near`` there are only zero tokens.
    """
    if near < 0.0:
        for t in range(e.shape[0]):
            S[t] = math.exp(min(e[t] - near, 0.0)) if near > -np.inf else 0.0
    for t in range(e.shape[0]):
        S[t] /= Z


def offsets_of(lengths: IntArray) -> IntArray:
    """Where each sequence starts when the visible tokens of all are laid end to end; the last entry
    is their number.
    """
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
