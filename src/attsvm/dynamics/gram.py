r"""Small instances, many runs: descent on W without W.

Every step of gradient descent moves :math:`W` by a combination of the outer products
:math:`x_{jt}z_j^\top`, so the logits move by the same combination of columns of

.. math:: K_{(jt),(is)} = \langle x_{jt}z_j^\top, x_{is}z_i^\top\rangle = (x_{jt}^\top
    x_{is})(z_j^\top z_i).

With :math:`b` the coefficients of a step, :math:`Kb` is the change of all logits and
:math:`b^\top Kb` the squared Frobenius norm of the gradient: one small symmetric product per step.
Polyak's step divides the loss above that of the best tokens by it; both stay in log space.
:math:`W=W_0+\sum c_{jt}\,x_{jt}z_j^\top` is put together when somebody looks. Tokens are measured
from their sequence's mean, which changes nothing (the coefficients of a sequence sum to zero) and
keeps the digits.
"""

from __future__ import annotations

import math

import numba
import numpy as np

from attsvm.data import AttentionData, FloatArray, IntArray
from attsvm.dynamics import costs
from attsvm.dynamics.engine import Look, Setup, centred_tokens, restored
from attsvm.jit import kernel
from attsvm.models import softmax_kernels
from attsvm.parallel import parallel_kernel, threads_for

_LANES = 8
_ROUNDED = 1e-13  # a mean loss that somebody summed in another order
# below this share of its own diagonal, the quadratic form is taken again as the norm of an explicit
# matrix
_CANCELLED = 1e-2


class GramEngine:
    """Trains ``W`` under a fixed linear head; state: logits and coefficients of every run."""

    name = "gram"

    def __init__(self, data: AttentionData, setup: Setup) -> None:
        setup.check(data, keys=True)
        count = setup.W.shape[0]
        instances = [data.instance(r) for r in range(count)] if data.batch_shape else [data]
        self._width = -(-max(int(one.mask.sum()) for one in instances) // _LANES) * _LANES
        packed = [_pack(one, setup, self._width) for one in instances]
        self._K, self._tokens, self._at, self._queries, self._positions, self._offsets = (
            np.stack(part) for part in zip(*packed, strict=True)
        )
        self._score = np.zeros((count, self._width))
        for r in range(count):
            one = instances[r if data.batch_shape else 0]
            scores = one.labels[:, None] * (one.tokens @ setup.head[r])
            self._score[r, : int(one.mask.sum())] = scores[one.mask]
        labels = np.broadcast_to(data.labels, (count, data.n))
        self._shift = labels * setup.intercept[:, None]
        self._best = np.zeros((count, data.n))
        for r in range(count):
            starts = self._offsets[self._shared(r), :-1]
            self._best[r] = (
                np.maximum.reduceat(self._score[r, : self._offsets[self._shared(r), -1]], starts)
                + self._shift[r]
            )
        self._beyond = (
            np.zeros(count) if setup.floor is None else _beyond(self._best, setup.loss, setup.floor)
        )
        self._setup = setup
        self._cost = costs.gram_cost(data) or math.inf
        self._start = setup.W
        self._coefficients = np.zeros((count, self._width))
        self._logits = np.stack([self._logits_of(r, setup.W[r]) for r in range(count)])
        self.stopped_at = np.full(count, -1, dtype=np.int64)
        self._scratch = (
            np.zeros((count, 7, self._width)),
            np.zeros((count, 7, data.n)),
            np.zeros((count, data.n), dtype=np.int64),
        )

    def _shared(self, run: int) -> int:
        return run if len(self._K) > 1 else 0

    def _logits_of(self, run: int, W: FloatArray) -> FloatArray:
        k = self._shared(run)
        logits: FloatArray = np.sum(self._tokens[k] * (self._at[k] @ W.T), axis=1)
        return logits

    def advance(self, step: int, count: int) -> None:
        """Take ``count`` steps, the first of which is number ``step``."""
        with threads_for(self._cost * count * len(self._logits)):
            _advance(
                self._K,
                self._tokens,
                self._queries,
                self._offsets,
                self._score,
                self._shift,
                self._logits,
                self._coefficients,
                self.stopped_at,
                *self._scratch,
                self._setup.loss,
                self._best,
                self._beyond,
                step,
                self._setup.factors(step, count),
                self._setup.lr,
                self._setup.normalize,
                0.0 if self._setup.floor is None else self._setup.polyak_factor,
            )

    def look(self) -> Look:
        """Loss, selection and norms at the present weights."""
        runs, n = self._shift.shape
        loss, log_norm = np.empty(runs), np.empty(runs)
        selected, probability = np.empty((runs, n), dtype=np.int64), np.empty((runs, n))
        _look(
            self._K,
            self._tokens,
            self._queries,
            self._offsets,
            self._positions,
            self._score,
            self._shift,
            self._logits,
            self._setup.loss,
            loss,
            log_norm,
            selected,
            probability,
        )
        return Look(
            loss,
            selected,
            probability,
            log_norm,
            self.weights(),
            self._setup.head,
            self._setup.intercept,
        )

    def weights(self) -> FloatArray:
        """``(runs, d_x, d_z)``: the weights that the coefficients stand for."""
        weighted = self._coefficients[..., None] * self._tokens
        weights: FloatArray = self._start + weighted.mT @ self._at
        return weights

    def state(self) -> dict[str, FloatArray | IntArray]:
        """What :meth:`restore` needs, copied."""
        return {
            "start": self._start.copy(),
            "logits": self._logits.copy(),
            "coefficients": self._coefficients.copy(),
            "stopped_at": self.stopped_at.copy(),
        }

    def restore(self, arrays: dict[str, FloatArray | IntArray]) -> None:
        """Continue from a :meth:`state`."""
        found = restored(arrays, self.state())
        self._start = found["start"]
        self._logits = found["logits"]
        self._coefficients = found["coefficients"]
        self.stopped_at = found["stopped_at"]


def _pack(
    data: AttentionData, setup: Setup, width: int
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray, IntArray, IntArray]:
    """Gram matrix, centred tokens, their queries, all queries, positions and offsets of one
    instance, zeros up to ``width`` tokens.
    """
    sequence, position = np.nonzero(data.mask)
    keys = centred_tokens(data)[sequence, position]
    keys = keys if setup.keys is None else keys @ setup.keys.T
    queries = np.ones((data.n, 1)) if setup.prompt else np.array(data.queries)
    tokens = np.zeros((width, keys.shape[1]))
    tokens[: len(sequence)] = keys
    at = np.zeros((width, queries.shape[1]))
    at[: len(sequence)] = queries[sequence]
    positions = np.zeros(width, dtype=np.int64)
    positions[: len(sequence)] = position
    gram = (tokens @ tokens.T) * (at @ at.T)
    return gram, tokens, at, queries, positions, softmax_kernels.offsets_of(data.lengths)


def _beyond(best: FloatArray, loss: IntArray, floor: FloatArray) -> FloatArray:
    """``(runs,)``: loss of the best tokens above the floor that was given; nothing where that is
    the rounding of a mean.
    """
    lowest = np.array(
        [
            np.mean([softmax_kernels.loss_value(value, code) for value in row])
            for row, code in zip(best, loss, strict=True)
        ]
    )
    beyond = lowest - floor
    return np.where(np.abs(beyond) <= _ROUNDED * np.abs(floor), 0.0, beyond)


@kernel
def _gradient(
    K: FloatArray,
    tokens: FloatArray,
    queries: FloatArray,
    offsets: IntArray,
    score: FloatArray,
    shift: FloatArray,
    a: FloatArray,
    work: FloatArray,
    rows: FloatArray,
    winners: IntArray,
    loss: int,
) -> tuple[float, float]:
    """Writes ascent coefficients to ``work[0]`` (largest magnitude one) and their product with
    ``K`` to ``work[1]``.

    Returns the norm of that ascent direction and the logarithm of the factor that makes it the true
    gradient's, times n. ``rows`` keeps ``Z`` (row 0) and the margins ``u`` (row 1) of the
    sequences. A zero gradient has norm 0.
    """
    b, y, e, shifted, g, S, Q = work[0], work[1], work[2], work[3], work[4], work[5], work[6]
    Z, u, top, ratio, mild, part, factor = (
        rows[0],
        rows[1],
        rows[2],
        rows[3],
        rows[4],
        rows[5],
        rows[6],
    )
    n = shift.shape[0]
    N = offsets[n]
    width = b.shape[0]
    for i in range(n):
        winners[i], top[i] = softmax_kernels.compare(
            a, score, offsets[i], offsets[i + 1], e, shifted, g
        )
    softmax_kernels.exp_into(e, S, 0, int(N))
    softmax_kernels.exp_into(shifted, Q, 0, int(N))
    softmax_kernels.exp_into(top, factor, 0, n)
    for i in range(n):
        Z[i], ratio[i] = softmax_kernels.weigh(S, Q, g, offsets[i], offsets[i + 1], winners[i])
        u[i] = score[winners[i]] + shift[i] - factor[i] * ratio[i]
        part[i] = -abs(u[i])
    if loss == 0:
        softmax_kernels.exp_into(part, factor, 0, n)
    else:
        factor[:] = 0.0
    largest = -np.inf
    for i in range(n):
        mild[i] = top[i] + softmax_kernels.log_slope_top(u[i], loss)
        largest = max(largest, mild[i])
    if largest == -np.inf:
        return 0.0, -np.inf
    for i in range(n):
        part[i] = 1.0 / ((1.0 + factor[i]) * Z[i])
        mild[i] -= largest
    softmax_kernels.exp_into(mild, factor, 0, n)
    for i in range(n):
        softmax_kernels.coefficients(
            S, Q, offsets[i], offsets[i + 1], winners[i], ratio[i], factor[i] * part[i], b
        )
    peak = 0.0
    for t in range(N):
        peak = max(peak, abs(b[t]))
    if peak == 0.0:
        return 0.0, -np.inf
    for t in range(N):
        b[t] /= peak
    y[:] = 0.0
    softmax_kernels.add_rows(y, b, K, 0, width)
    square = softmax_kernels.dot(b, y)
    own = 0.0
    for t in range(N):
        own += b[t] * b[t] * K[t, t]
    norm = (
        math.sqrt(square)
        if square > _CANCELLED * own
        else _explicit_norm(b, tokens, queries, offsets)
    )
    return norm, largest + math.log(peak)


@kernel
def _log_excess(
    score: FloatArray,
    shift: FloatArray,
    rows: FloatArray,
    winners: IntArray,
    best: FloatArray,
    loss: int,
) -> float:
    """Logarithm of the summed loss above that of the best tokens, from what :func:`_gradient` left
    in ``rows`` and ``winners``.
    """
    log, top, ratio = rows[5], rows[2], rows[3]
    highest = -np.inf
    for i in range(shift.shape[0]):
        lag = best[i] - (score[winners[i]] + shift[i])  # exactly zero for the best token
        if lag > 0.0:
            fall = lag + math.exp(top[i]) * ratio[i]
            log_fall = math.log(fall) if fall > 0.0 else -np.inf
        else:
            log_fall = top[i] + math.log(ratio[i]) if ratio[i] > 0.0 else -np.inf
        log[i] = (
            softmax_kernels.log_excess(best[i], log_fall, loss) if log_fall > -np.inf else -np.inf
        )
        highest = max(highest, log[i])
    if highest == -np.inf:
        return highest
    total = 0.0
    for i in range(shift.shape[0]):
        total += math.exp(log[i] - highest)
    return highest + math.log(total)


@kernel
def _explicit_norm(
    b: FloatArray, tokens: FloatArray, queries: FloatArray, offsets: IntArray
) -> float:
    """Frobenius norm of ``sum_t b_t x_t z^T``, for gradients in which the sequences nearly cancel
    each other.
    """
    G = np.zeros((queries.shape[1], tokens.shape[1]))
    for i in range(offsets.shape[0] - 1):
        pulled = np.zeros(tokens.shape[1])
        softmax_kernels.add_rows(pulled, b, tokens, offsets[i], offsets[i + 1])
        for m in range(queries.shape[1]):
            softmax_kernels.add_one(G[m], queries[i, m], pulled)
    flat = G.reshape(G.size)
    return math.sqrt(softmax_kernels.dot(flat, flat))


@parallel_kernel
def _advance(
    K: FloatArray,
    tokens: FloatArray,
    queries: FloatArray,
    offsets: IntArray,
    score: FloatArray,
    shift: FloatArray,
    logits: FloatArray,
    taken: FloatArray,
    stopped_at: IntArray,
    work: FloatArray,
    rows: FloatArray,
    winners: IntArray,
    loss: IntArray,
    best: FloatArray,
    beyond: FloatArray,
    first: int,
    factors: FloatArray,
    lr: FloatArray,
    normalize: bool,
    polyak: float,
) -> None:
    for r in numba.prange(logits.shape[0]):
        if stopped_at[r] < 0:
            k = min(np.int64(r), K.shape[0] - 1)  # prange counts in unsigned integers
            stopped_at[r] = _descend(
                K[k],
                tokens[k],
                queries[k],
                offsets[k],
                score[r],
                shift[r],
                logits[r],
                taken[r],
                work[r],
                rows[r],
                winners[r],
                loss[r],
                best[r],
                beyond[r],
                first,
                factors,
                lr[r],
                normalize,
                polyak,
            )


@kernel
def _descend(
    K: FloatArray,
    tokens: FloatArray,
    queries: FloatArray,
    offsets: IntArray,
    score: FloatArray,
    shift: FloatArray,
    a: FloatArray,
    taken: FloatArray,
    work: FloatArray,
    rows: FloatArray,
    winners: IntArray,
    loss: int,
    best: FloatArray,
    beyond: float,
    first: int,
    factors: FloatArray,
    lr: float,
    normalize: bool,
    polyak: float,
) -> int:
    """Steps of one run, Polyak's over ``polyak`` unless that is 0; returns the step whose gradient
    was zero, else -1.
    """
    for k in range(factors.shape[0]):
        norm, log_factor = _gradient(
            K, tokens, queries, offsets, score, shift, a, work, rows, winners, loss
        )
        if norm == 0.0:
            return first + k
        own = lr * factors[k]
        if (
            polyak > 0.0
            # gap / |gradient|^2, with n times the gap and n times the gradient, whose factor the
            # direction lacks
        ):
            above = math.exp(_log_excess(score, shift, rows, winners, best, loss) - log_factor)
            above += beyond * shift.shape[0] * math.exp(-log_factor) if beyond != 0.0 else 0.0
            length = own * max(above, 0.0) / (polyak * norm * norm)
            if not math.isfinite(
                length
            ):  # the floor is below the infimum: the gradient vanishes against the gap
                return first + k
        else:
            length = own / norm if normalize else own * math.exp(log_factor) / shift.shape[0]
        softmax_kernels.add_one(a, length, work[1])
        softmax_kernels.add_one(taken, length, work[0])
    return -1


@kernel
def _look(
    K: FloatArray,
    tokens: FloatArray,
    queries: FloatArray,
    offsets: IntArray,
    positions: IntArray,
    score: FloatArray,
    shift: FloatArray,
    logits: FloatArray,
    kind: IntArray,
    loss: FloatArray,
    log_norm: FloatArray,
    selected: IntArray,
    probability: FloatArray,
) -> None:
    n = shift.shape[1]
    work = np.zeros((7, K.shape[1]))
    rows = np.zeros((7, n))
    winners = np.zeros(n, dtype=np.int64)
    for r in range(logits.shape[0]):
        k = r if K.shape[0] > 1 else 0
        norm, log_factor = _gradient(
            K[k],
            tokens[k],
            queries[k],
            offsets[k],
            score[r],
            shift[r],
            logits[r],
            work,
            rows,
            winners,
            kind[r],
        )
        log_norm[r] = log_factor + math.log(norm) - math.log(n) if norm > 0.0 else -np.inf
        total = 0.0
        for i in range(n):
            total += softmax_kernels.loss_value(rows[1, i], kind[r])
            selected[r, i] = positions[k, winners[i]]
            probability[r, i] = 1.0 / rows[0, i]
        loss[r] = total / n
