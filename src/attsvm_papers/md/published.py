"""Mirror descent as the third paper's released code computes it, rounding included, many runs at
once.
"""

import math
from collections.abc import Sequence

import numba
import numpy as np
from numpy.typing import NDArray

from attsvm import AttentionData, InputError
from attsvm.jit import kernel
from attsvm.parallel import parallel_kernel

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

EPSILON = 2.0**-52


def published_descent(
    data: AttentionData,
    head: FloatArray,
    start: FloatArray,
    p: float,
    lr: float,
    steps: int,
    at: Sequence[int],
    *,
    joint: bool = False,
) -> tuple[FloatArray, FloatArray]:
    r"""Normalised :math:`\ell_p` descent with three habits that :class:`attsvm.optim.MirrorDescent`
    does not have.

    The gradient of the softmax is the textbook one, :math:`s_t(\gamma_t-\bar\gamma)`, which cancels
    at the selected token once its probability rounds to one. The dual norm is a plain sum of
    powers, with machine epsilon added to it, so steps shrink once the gradient is smaller than
    that. The dual iterate is made from the weights at every step.

    Args:
        data: one instance per run, all sequences of the same length.
        head: ``(runs, d_x)``, where it starts.
        start: ``(runs, d_x, d_z)``.
        p: exponent of the potential.
        lr: step in the dual.
        steps: number of steps.
        at: steps at which weights are kept, sorted.
        joint: whether the head descends too, by the same rule.

    Returns:
        weights ``(records, runs, d_x, d_z)`` and heads ``(records, runs, d_x)``.

    Raises:
        InputError: starts of other shapes than the data asks for, sequences of different lengths.
    """
    W, v = (np.array(each, dtype=np.float64, order="C") for each in (start, head))
    X, Z, y = (np.ascontiguousarray(each) for each in (data.tokens, data.queries, data.labels))
    if X.ndim != 4 or W.shape != (len(X), data.d_x, data.d_z) or v.shape != (len(X), data.d_x):
        raise InputError(
            f"start and head have shapes {W.shape} and {v.shape} for tokens {X.shape} and queries"
            f" {Z.shape}; give (runs, d_x, d_z) and (runs, d_x), and one instance per run"
        )
    if not data.mask.all():
        raise InputError("sequences have different lengths; the published code takes equal ones")
    weights, heads = np.empty((len(at), *W.shape)), np.empty((len(at), *v.shape))
    step = 0
    for record, stop in enumerate([*at, steps]):
        _advance(X, Z, y, W, v, p, lr, stop - step, joint)
        step = stop
        if record < len(at):
            weights[record], heads[record] = W, v
    return weights, heads


@kernel
def _signed_power(x: float, r: float) -> float:
    if r == 1.0:
        return x
    if r == 2.0:
        return x * abs(x)
    return math.copysign(math.sqrt(abs(x)) if r == 0.5 else abs(x) ** r, x)


@kernel
def _move(w: FloatArray, g: FloatArray, p: float, lr: float) -> None:
    total = 0.0
    for j in range(g.shape[0]):
        size = abs(g[j])
        total += size * _signed_power(size, 1.0 / (p - 1.0))
    norm = total ** ((p - 1.0) / p) + EPSILON
    for j in range(w.shape[0]):
        w[j] = _signed_power(_signed_power(w[j], p - 1.0) - lr * (g[j] / norm), 1.0 / (p - 1.0))


@kernel
def _descend(
    X: FloatArray,
    Z: FloatArray,
    y: FloatArray,
    W: FloatArray,
    v: FloatArray,
    p: float,
    lr: float,
    count: int,
    joint: bool,
) -> None:
    n, T, d = X.shape
    moved, a, score = np.empty(d), np.empty(T), np.empty(T)
    G, g = np.empty_like(W), np.empty_like(v)
    for _ in range(count):
        G[:] = 0.0
        g[:] = 0.0
        for i in range(n):
            for j in range(d):
                moved[j] = 0.0
                for k in range(Z.shape[1]):
                    moved[j] += W[j, k] * Z[i, k]
            top = -np.inf
            for t in range(T):
                a[t], score[t] = 0.0, 0.0
                for j in range(d):
                    a[t] += X[i, t, j] * moved[j]
                    score[t] += X[i, t, j] * v[j]
                top = max(top, a[t])
            mass, output = 0.0, 0.0
            for t in range(T):
                a[t] = math.exp(a[t] - top)
                mass += a[t]
            for t in range(T):
                a[t] /= mass
                output += a[t] * score[t]
            slope = -y[i] / (1.0 + math.exp(y[i] * output)) / n
            for j in range(d):
                moved[j] = 0.0
            for t in range(T):
                pull = slope * (a[t] * (score[t] - output))
                for j in range(d):
                    moved[j] += pull * X[i, t, j]
                    g[j] += slope * a[t] * X[i, t, j]
            for j in range(d):
                for k in range(Z.shape[1]):
                    G[j, k] += moved[j] * Z[i, k]
        _move(W.reshape(W.size), G.reshape(G.size), p, lr)
        if joint:
            _move(v, g, p, lr)


@parallel_kernel
def _advance(
    X: FloatArray,
    Z: FloatArray,
    y: FloatArray,
    W: FloatArray,
    v: FloatArray,
    p: float,
    lr: float,
    count: int,
    joint: bool,
) -> None:
    for r in numba.prange(W.shape[0]):
        _descend(X[r], Z[r], y[r], W[r], v[r], p, lr, count, joint)
