"""One compiled pass from moved queries, or what moves them, to losses and gradients:
:mod:`attsvm.models.linear` for float64 on the CPU.
"""

from __future__ import annotations

import numba
import numpy as np

from attsvm.data import BoolArray, FloatArray, IntArray
from attsvm.jit import kernel, summing_kernel
from attsvm.models import loss_stages, softmax_kernels
from attsvm.parallel import parallel_kernel

Instances = tuple[FloatArray, FloatArray, BoolArray, FloatArray, FloatArray]
"""Keys, tokens, mask, labels and weights of the rows, as
:attr:`attsvm.models.sequences.Sequences.arrays` holds them.
"""


@kernel
def token_scores(tokens: FloatArray, readout: FloatArray, scores: FloatArray) -> None:
    """Scores ``(k, n, T)`` of every instance under its own readout, or under the only one."""
    for r in range(scores.shape[0]):
        loss_stages.scores(
            tokens,
            loss_stages.own(tokens.shape[0], r),
            readout,
            loss_stages.own(readout.shape[0], r),
            scores,
            r,
        )


@kernel
def _run(
    r: int,
    moved: FloatArray,
    at: int,
    instances: Instances,
    readout: FloatArray,
    scores: FloatArray,
    has_intercept: bool,
    codes: IntArray,
    rescale: bool,
    pulled: FloatArray,
    to: int,
    column: FloatArray,
    found: FloatArray,
    room: loss_stages.Scratch,
) -> None:
    """One run: the stages of :mod:`attsvm.models.loss_stages`, one after the other."""
    keys, tokens, mask, labels, weights = instances
    every, powers, raised, rows, fresh, outputs = room
    q, v = mask.shape[2], loss_stages.own(readout.shape[0], r)
    loss_stages.logits(r, keys, moved, at, mask, every)
    if scores.shape[0] > 0:
        loss_stages.compare(scores, loss_stages.own(scores.shape[0], r), q, every, rows)
    else:
        loss_stages.scores(tokens, loss_stages.own(tokens.shape[0], r), readout, v, fresh, 0)
        loss_stages.compare(fresh, 0, q, every, rows)
    softmax_kernels.exp_into(powers, raised, 0, powers.size)
    loss_stages.weigh(every, rows)
    b = readout[v, tokens.shape[3]] if has_intercept else 0.0
    found[0, r], steepest, largest = loss_stages.slopes(
        r, labels, weights, b, codes[loss_stages.own(codes.shape[0], r)], rescale, rows
    )
    found[1, r], found[2, r], found[3, r] = steepest, largest - steepest, steepest
    loss_stages.coefficients(every, rows)
    loss_stages.pull(r, every, rows, keys, q, pulled, to)
    if column.shape[1] > 0:
        found[3, r] = loss_stages.head(
            r, tokens, q, has_intercept, rescale, every, rows, outputs, column
        )


@kernel
def loss(
    moved: FloatArray,
    instances: Instances,
    readout: FloatArray,
    scores: FloatArray,
    has_intercept: bool,
    codes: IntArray,
    rescale: bool,
    pulled: FloatArray,
    column: FloatArray,
    found: FloatArray,
) -> None:
    """Losses ``found[0]``, gradients ``pulled`` and ``column`` (empty when the head is fixed), and
    logarithms of what was taken out.

    ``found[1]`` was taken out by the slopes, ``found[2]`` on top of it from ``pulled``,
    ``found[3]`` in all from ``column``. Without ``rescale`` nothing is taken out and they say what
    would have been. ``scores`` are those of :func:`token_scores`; empty, they are computed on the
    way.
    """
    tokens = instances[1]
    room = loss_stages.scratch(moved.shape[1], tokens)
    for r in range(moved.shape[0]):
        _run(
            r,
            moved,
            r,
            instances,
            readout,
            scores,
            has_intercept,
            codes,
            rescale,
            pulled,
            r,
            column,
            found,
            room,
        )


@parallel_kernel
def loss_shared(
    moved: FloatArray,
    instances: Instances,
    readout: FloatArray,
    scores: FloatArray,
    has_intercept: bool,
    codes: IntArray,
    rescale: bool,
    pulled: FloatArray,
    column: FloatArray,
    found: FloatArray,
) -> None:
    """:func:`loss` on all cores."""
    tokens = instances[1]
    for run in numba.prange(moved.shape[0]):
        r = int(np.int64(run))  # prange counts in unsigned integers
        room = loss_stages.scratch(moved.shape[1], tokens)
        _run(
            r,
            moved,
            r,
            instances,
            readout,
            scores,
            has_intercept,
            codes,
            rescale,
            pulled,
            r,
            column,
            found,
            room,
        )


@summing_kernel
def _move(r: int, M: FloatArray, queries: FloatArray, moved: FloatArray, to: int) -> None:
    """``moved = queries M^T``."""
    z = loss_stages.own(queries.shape[0], r)
    for row in range(queries.shape[1]):
        for k in range(M.shape[1]):
            total = 0.0
            for j in range(M.shape[2]):
                total += M[r, k, j] * queries[z, row, j]
            moved[to, row, k] = total


@summing_kernel
def _outer(r: int, pulled: FloatArray, at: int, queries: FloatArray, G: FloatArray) -> None:
    """``G = pulled^T queries``, four queries at a time."""
    z, N = loss_stages.own(queries.shape[0], r), queries.shape[1]
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


@kernel
def matrix_loss(
    M: FloatArray,
    queries: FloatArray,
    instances: Instances,
    readout: FloatArray,
    scores: FloatArray,
    has_intercept: bool,
    codes: IntArray,
    rescale: bool,
    G: FloatArray,
    column: FloatArray,
    found: FloatArray,
) -> None:
    """:func:`loss` of the matrix that moves the queries: reads ``M`` in the place of ``moved`` and
    writes its gradient ``G``.
    """
    tokens = instances[1]
    room = loss_stages.scratch(queries.shape[1], tokens)
    pair = np.empty((2, queries.shape[1], M.shape[1]))  # moved and pulled
    for r in range(M.shape[0]):
        _move(r, M, queries, pair, 0)
        _run(
            r,
            pair,
            0,
            instances,
            readout,
            scores,
            has_intercept,
            codes,
            rescale,
            pair,
            1,
            column,
            found,
            room,
        )
        _outer(r, pair, 1, queries, G)


@parallel_kernel
def matrix_loss_shared(
    M: FloatArray,
    queries: FloatArray,
    instances: Instances,
    readout: FloatArray,
    scores: FloatArray,
    has_intercept: bool,
    codes: IntArray,
    rescale: bool,
    G: FloatArray,
    column: FloatArray,
    found: FloatArray,
) -> None:
    """:func:`matrix_loss` on all cores."""
    tokens = instances[1]
    for run in numba.prange(M.shape[0]):
        r = int(np.int64(run))  # prange counts in unsigned integers
        room = loss_stages.scratch(queries.shape[1], tokens)
        pair = np.empty((2, queries.shape[1], M.shape[1]))
        _move(r, M, queries, pair, 0)
        _run(
            r,
            pair,
            0,
            instances,
            readout,
            scores,
            has_intercept,
            codes,
            rescale,
            pair,
            1,
            column,
            found,
            room,
        )
        _outer(r, pair, 1, queries, G)
