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
from typing import ClassVar, NamedTuple

import numpy as np

from attsvm.data import AttentionData, FloatArray, IntArray, centred_tokens
from attsvm.dynamics import costs, packed
from attsvm.dynamics.engine import Kept, Look, Setup
from attsvm.jit import kernel
from attsvm.models import softmax_kernels
from attsvm.parallel import share_runs

_LANES = 8
_ROUNDED = 1e-13  # a mean loss that somebody summed in another order
# below this share of its own diagonal, the quadratic form is taken again as the norm of an explicit
# matrix
_CANCELLED = 1e-2


class Gram(NamedTuple):
    """One instance; stacked, with an axis of instances in front.

    Attributes:
        K: ``(N, N)``, N tokens end to end with zeros up to a multiple of the vector lanes.
        tokens: ``(N, d_x)``.
        queries: ``(n, d_z)``.
        offsets: ``(n + 1,)``.
    """

    K: FloatArray
    tokens: FloatArray
    queries: FloatArray
    offsets: IntArray


class Runs(NamedTuple):
    """Every run, or with :func:`_of_run` one of them.

    Attributes:
        score: ``(N,)`` scores of the tokens under the head, without the intercept.
        shift: ``(n,)`` intercept times label.
        best: ``(n,)`` scores of the best tokens.
        logits: ``(N,)``.
        taken: ``(N,)`` coefficients of all steps together.
        work: ``(7, N)``; of a gradient, row 0 has the coefficients and row 1 their product with K.
        rows: ``(7, n)``; row 0 has the softmax sums and row 1 the margins of the sequences.
        winners: ``(n,)``.
    """

    score: FloatArray
    shift: FloatArray
    best: FloatArray
    logits: FloatArray
    taken: FloatArray
    work: FloatArray
    rows: FloatArray
    winners: IntArray


class GramEngine(Kept):
    """Trains ``W`` under a fixed linear head; state: logits and coefficients of every run."""

    name = "gram"
    _kept: ClassVar = {
        "start": "_start",
        "logits": "_logits",
        "coefficients": "_coefficients",
        "stopped_at": "stopped_at",
    }

    def __init__(self, data: AttentionData, setup: Setup) -> None:
        setup.check(data, keys=True)
        count = setup.W.shape[0]
        instances = packed.instances_of(data, count)
        width = -(-max(int(one.mask.sum()) for one in instances) // _LANES) * _LANES
        pairs = [_pack(one, setup, width) for one in instances]
        self._gram = Gram(*map(np.stack, zip(*(gram for gram, _ in pairs), strict=True)))
        self._at = np.stack([at for _, at in pairs])
        self._positions = [np.nonzero(one.mask)[1] for one in instances]
        self._shift = np.broadcast_to(data.labels, (count, data.n)) * setup.intercept[:, None]
        self._score, self._best = np.zeros((count, width)), np.zeros((count, data.n))
        for r in range(count):
            one, offsets = instances[self._shared(r)], self._gram.offsets[self._shared(r)]
            visible = self._score[r, : offsets[-1]]
            visible[:] = (one.labels[:, None] * (one.tokens @ setup.head[r]))[one.mask]
            self._best[r] = np.maximum.reduceat(visible, offsets[:-1]) + self._shift[r]
        self._beyond = (
            np.zeros(count) if setup.floor is None else _beyond(self._best, setup.loss, setup.floor)
        )
        self._setup = setup
        self._cost = costs.gram_cost(data) or math.inf
        self._start = setup.W
        self._coefficients = np.zeros((count, width))
        self._logits = np.stack([self._logits_of(r, setup.W[r]) for r in range(count)])
        self.stopped_at = np.full(count, -1, dtype=np.int64)
        self._work, self._rows = np.zeros((count, 7, width)), np.zeros((count, 7, data.n))
        self._winners = np.zeros((count, data.n), dtype=np.int64)

    def _shared(self, run: int) -> int:
        return run if len(self._at) > 1 else 0

    def _logits_of(self, run: int, W: FloatArray) -> FloatArray:
        k = self._shared(run)
        return np.sum(self._gram.tokens[k] * (self._at[k] @ W.T), axis=1)

    @property
    def _runs(self) -> Runs:
        return Runs(
            self._score,
            self._shift,
            self._best,
            self._logits,
            self._coefficients,
            self._work,
            self._rows,
            self._winners,
        )

    def advance(self, step: int, count: int) -> None:
        """Take ``count`` steps, the first of which is number ``step``."""
        setup = self._setup
        share_runs(
            _advance,
            len(self.stopped_at),
            self._cost * count,
            self._gram,
            self._runs,
            self.stopped_at,
            setup.loss,
            self._beyond,
            step,
            setup.factors(step, count),
            setup.lr,
            setup.normalize,
            0.0 if setup.floor is None else setup.polyak_factor,
        )

    def look(self) -> Look:
        """Loss, selection and norms at the present weights."""
        setup, runs = self._setup, self._runs
        loss, log_norm = np.empty(len(self._logits)), np.empty(len(self._logits))
        _look(self._gram, runs, setup.loss, loss, log_norm)
        return Look(
            loss,
            np.stack([self._positions[self._shared(r)][w] for r, w in enumerate(runs.winners)]),
            1.0 / runs.rows[:, 0],
            log_norm,
            self.weights(),
            setup.head,
            setup.intercept,
        )

    def weights(self) -> FloatArray:
        """``(runs, d_x, d_z)``: the weights that the coefficients stand for."""
        weighted = self._coefficients[..., None] * self._gram.tokens
        return self._start + weighted.mT @ self._at


def _pack(data: AttentionData, setup: Setup, width: int) -> tuple[Gram, FloatArray]:
    """One instance of centred tokens, zeros up to ``width`` tokens, and the query of each token."""
    sequence = np.nonzero(data.mask)[0]
    keys = centred_tokens(data)[data.mask]
    keys = keys if setup.keys is None else keys @ setup.keys.T
    queries = np.ones((data.n, 1)) if setup.prompt else np.array(data.queries)
    tokens = np.zeros((width, keys.shape[1]))
    tokens[: len(sequence)] = keys
    at = np.zeros((width, queries.shape[1]))
    at[: len(sequence)] = queries[sequence]
    gram = (tokens @ tokens.T) * (at @ at.T)
    return Gram(gram, tokens, queries, softmax_kernels.offsets_of(data.lengths)), at


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
def _of_run(runs: Runs, r: int) -> Runs:
    return Runs(
        runs.score[r],
        runs.shift[r],
        runs.best[r],
        runs.logits[r],
        runs.taken[r],
        runs.work[r],
        runs.rows[r],
        runs.winners[r],
    )


@kernel
def _shared(stack: Gram, r: int) -> Gram:
    """The instance of run ``r``, of a stack that may hold one for all."""
    k = min(r, stack.K.shape[0] - 1)
    return Gram(stack.K[k], stack.tokens[k], stack.queries[k], stack.offsets[k])


@kernel
def _gradient(gram: Gram, run: Runs, loss: int) -> tuple[float, float]:
    """Writes ascent coefficients to ``work[0]`` (largest magnitude one) and their product with
    ``K`` to ``work[1]``, winners, softmax sums and margins.

    Returns the norm of that ascent direction and the logarithm of the factor that makes it the true
    gradient's, times n. A zero gradient has norm 0.
    """
    K, offsets, score, shift, winners = gram.K, gram.offsets, run.score, run.shift, run.winners
    a, work, rows = run.logits, run.work, run.rows
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
    norm = math.sqrt(square) if square > _CANCELLED * own else _explicit_norm(b, gram)
    return norm, largest + math.log(peak)


@kernel
def _log_excess(run: Runs, loss: int) -> float:
    """Logarithm of the summed loss above that of the best tokens, from what :func:`_gradient` left
    in ``rows`` and ``winners``.
    """
    score, shift, best, winners = run.score, run.shift, run.best, run.winners
    log, top, ratio = run.rows[5], run.rows[2], run.rows[3]
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
def _explicit_norm(b: FloatArray, gram: Gram) -> float:
    """Frobenius norm of ``sum_t b_t x_t z^T``, for gradients in which the sequences nearly cancel
    each other.
    """
    tokens, queries, offsets = gram.tokens, gram.queries, gram.offsets
    G = np.zeros((queries.shape[1], tokens.shape[1]))
    for i in range(offsets.shape[0] - 1):
        pulled = np.zeros(tokens.shape[1])
        softmax_kernels.add_rows(pulled, b, tokens, offsets[i], offsets[i + 1])
        for m in range(queries.shape[1]):
            softmax_kernels.add_one(G[m], queries[i, m], pulled)
    flat = G.reshape(G.size)
    return math.sqrt(softmax_kernels.dot(flat, flat))


@kernel
def _advance(
    start: int,
    stop: int,
    stack: Gram,
    runs: Runs,
    stopped_at: IntArray,
    loss: IntArray,
    beyond: FloatArray,
    first: int,
    factors: FloatArray,
    lr: FloatArray,
    normalize: bool,
    polyak: float,
) -> None:
    for r in range(start, stop):
        if stopped_at[r] < 0:
            stopped_at[r] = _descend(
                _shared(stack, r),
                _of_run(runs, r),
                loss[r],
                beyond[r],
                first,
                factors,
                lr[r],
                normalize,
                polyak,
            )


@kernel
def _descend(
    gram: Gram,
    run: Runs,
    loss: int,
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
    n = run.shift.shape[0]
    for k in range(factors.shape[0]):
        norm, log_factor = _gradient(gram, run, loss)
        if norm == 0.0:
            return first + k
        own = lr * factors[k]
        if polyak > 0.0:
            # gap / |gradient|^2, with n times the gap and n times the gradient, whose factor the
            # direction lacks
            above = math.exp(_log_excess(run, loss) - log_factor)
            above += beyond * n * math.exp(-log_factor) if beyond != 0.0 else 0.0
            length = own * max(above, 0.0) / (polyak * norm * norm)
            if not math.isfinite(length):
                # the floor is below the infimum: the gradient vanishes against the gap
                return first + k
        else:
            length = own / norm if normalize else own * math.exp(log_factor) / n
        softmax_kernels.add_one(run.logits, length, run.work[1])
        softmax_kernels.add_one(run.taken, length, run.work[0])
    return -1


@kernel
def _look(stack: Gram, runs: Runs, kind: IntArray, loss: FloatArray, log_norm: FloatArray) -> None:
    log_n = math.log(runs.shift.shape[1])
    for r in range(loss.shape[0]):
        run = _of_run(runs, r)
        norm, log_factor = _gradient(_shared(stack, r), run, kind[r])
        log_norm[r] = log_factor + math.log(norm) - log_n if norm > 0.0 else -np.inf
        loss[r] = packed.mean_loss(run.rows[1], kind[r])
