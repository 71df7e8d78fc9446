r"""Descent on factors, :math:`W=KQ^\top`: every run a loop over its sequences, runs shared out
among the cores.

With :math:`p_i=\sum_t\beta_{it}x_{it}` the row that a sequence pulls back (see
:mod:`attsvm.dynamics.ragged`), :math:`\nabla_K\propto \sum_ip_i(Q^\top z_i)^\top` and
:math:`\nabla_Q\propto\sum_iz_i(K^\top p_i)^\top`: no matrix of the size of W is ever formed. Both
carry one factor :math:`e^M`, kept as a logarithm; a penalty is added at the scale of the larger
term, as in :mod:`attsvm.models.penalty`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numba
import numpy as np

from attsvm.data import AttentionData, BoolArray, FloatArray, IntArray
from attsvm.dynamics import costs, ragged
from attsvm.dynamics.engine import Look, Setup, centred_tokens, restored
from attsvm.jit import kernel
from attsvm.models import softmax_kernels
from attsvm.parallel import parallel_kernel, threads_for


@dataclass(frozen=True, eq=False)
class FactorSetup:
    """Starts and rates of both factors. ``rates`` is ``(2, runs)``; ``normalize`` holds one flag
    per factor; ``stacked`` means one norm.

    ``penalty`` is ``(runs,)``.
    """

    K: FloatArray
    Q: FloatArray
    rates: FloatArray
    normalize: BoolArray
    stacked: bool
    penalty: FloatArray


class FactorEngine:
    """Trains K and Q under a fixed linear head; state: the factors of every run."""

    name = "factored"

    def __init__(self, data: AttentionData, setup: Setup, factors: FactorSetup) -> None:
        inner = factors.K.shape[-1:]
        setup.check(
            data,
            K=(factors.K, (data.d_x, *inner)),
            Q=(factors.Q, (data.d_z, *inner)),
            rates=(factors.rates.T, (2,)),
            penalty=(factors.penalty, ()),
            normalize=(np.broadcast_to(factors.normalize, (len(setup.W), 2)), (2,)),
        )
        count, n = len(factors.K), data.n
        self._setup, self._factors = setup, factors
        instances = [data.instance(r) for r in range(count)] if data.batch_shape else [data]
        width = max(int(one.mask.sum()) for one in instances)
        self._tokens = np.zeros((len(instances), width, data.d_x))
        self._positions = np.zeros((len(instances), width), dtype=np.int64)
        for k, one in enumerate(instances):
            sequence, position = np.nonzero(one.mask)
            self._tokens[k, : len(sequence)] = centred_tokens(one)[sequence, position]
            self._positions[k, : len(sequence)] = position
        self._means = np.stack(
            [one.tokens.sum(axis=-2) / one.lengths[:, None] for one in instances]
        )
        self._queries = np.stack([np.array(one.queries) for one in instances])
        self._labels = np.stack([np.array(one.labels) for one in instances])
        self._offsets = np.stack([softmax_kernels.offsets_of(one.lengths) for one in instances])
        self._head = np.concatenate([setup.head, setup.intercept[:, None]], axis=1)
        self._K, self._Q = factors.K.copy(), factors.Q.copy()
        self._cost = costs.ragged_cost(data)
        self.stopped_at = np.full(count, -1, dtype=np.int64)
        self._winners, self._kept = np.zeros((count, n), dtype=np.int64), np.zeros((count, n, 5))

    def _data(
        self,
    ) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray, IntArray, FloatArray, IntArray]:
        return (
            self._tokens,
            self._means,
            self._queries,
            self._labels,
            self._offsets,
            self._head,
            self._setup.loss,
        )

    def advance(self, step: int, count: int) -> None:
        """Take ``count`` steps, the first of which is number ``step``."""
        own = self._factors
        with threads_for(self._cost * count * len(self._K)):
            _advance(
                *self._data(),
                self._K,
                self._Q,
                self.stopped_at,
                self._winners,
                self._kept,
                step,
                self._setup.factors(step, count),
                own.rates,
                own.normalize,
                own.stacked,
                own.penalty,
            )

    def look(self) -> Look:
        """Loss, selection and norms at the present weights."""
        runs = len(self._kept)
        loss, log_norm = np.empty(runs), np.empty(runs)
        _look(
            *self._data(),
            self._K,
            self._Q,
            self._winners,
            self._kept,
            self._factors.penalty,
            loss,
            log_norm,
        )
        shared = np.zeros(runs, dtype=np.int64) if len(self._positions) == 1 else np.arange(runs)
        selected = self._positions[shared[:, None], self._winners]
        K, Q = self._K.copy(), self._Q.copy()
        parameters = (
            {"KQ": np.concatenate([K, Q], axis=-2)} if self._factors.stacked else {"K": K, "Q": Q}
        )
        probability = 1.0 / self._kept[:, :, ragged.MASS]
        return Look(
            loss,
            selected,
            probability,
            log_norm,
            K @ Q.mT,
            self._setup.head,
            self._setup.intercept,
            parameters,
        )

    def state(self) -> dict[str, FloatArray | IntArray]:
        """What :meth:`restore` needs, copied."""
        return {"K": self._K.copy(), "Q": self._Q.copy(), "stopped_at": self.stopped_at.copy()}

    def restore(self, arrays: dict[str, FloatArray | IntArray]) -> None:
        """Continue from a :meth:`state`."""
        found = restored(arrays, self.state())
        self._K, self._Q = (
            found["K"],
            found["Q"],
        )
        self.stopped_at = found["stopped_at"]


@kernel
def _gradient(
    tokens: FloatArray,
    means: FloatArray,
    queries: FloatArray,
    labels: FloatArray,
    offsets: IntArray,
    head: FloatArray,
    loss: int,
    K: FloatArray,
    Q: FloatArray,
    winners: IntArray,
    kept: FloatArray,
    scratch: FloatArray,
    moved: FloatArray,
    asked: FloatArray,
    pulled: FloatArray,
    row: FloatArray,
    up_K: FloatArray,
    up_Q: FloatArray,
    penalty: float,
) -> float:
    """Writes ascent directions of both factors; returns the logarithm of the factor that makes them
    the true gradients.
    """
    n = labels.shape[0]
    nothing = np.zeros(0)
    top = -np.inf
    for i in range(n):
        softmax_kernels.combine(queries[i], Q, asked[i])
        softmax_kernels.products(K, asked[i], moved)
        winners[i] = ragged.one_sequence(
            tokens,
            means[i],
            labels[i],
            offsets[i],
            offsets[i + 1],
            moved,
            head,
            loss,
            kept[i],
            pulled[i],
            nothing,
            scratch,
        )
        top = max(top, kept[i, ragged.LOG])
    up_K[:] = 0.0
    up_Q[:] = 0.0
    for i in range(n):
        if kept[i, ragged.LOG] == -np.inf:
            continue
        share = math.exp(kept[i, ragged.LOG] - top)
        for a in range(pulled.shape[1]):
            pulled[i, a] *= share
            softmax_kernels.add_one(up_K[a], pulled[i, a], asked[i])
        softmax_kernels.combine(pulled[i], K, row)
        for b in range(queries.shape[1]):
            softmax_kernels.add_one(up_Q[b], queries[i, b], row)
    total = top - math.log(n)
    if penalty > 0.0:
        data = total
        total = max(data, math.log(penalty))
        share = math.exp(data - total)
        own = 2.0 * math.exp(math.log(penalty) - total)
        for k in range(K.shape[1]):
            for a in range(K.shape[0]):
                up_K[a, k] = share * up_K[a, k] - own * K[a, k]
            for b in range(Q.shape[0]):
                up_Q[b, k] = share * up_Q[b, k] - own * Q[b, k]
    return total


@kernel
def _descend(
    tokens: FloatArray,
    means: FloatArray,
    queries: FloatArray,
    labels: FloatArray,
    offsets: IntArray,
    head: FloatArray,
    loss: int,
    K: FloatArray,
    Q: FloatArray,
    winners: IntArray,
    kept: FloatArray,
    first: int,
    factors: FloatArray,
    rate_K: float,
    rate_Q: float,
    normalize: BoolArray,
    stacked: bool,
    penalty: float,
) -> int:
    """Steps of one run; returns the step whose gradient was exactly zero, else -1."""
    scratch = np.zeros((7, tokens.shape[0]))
    moved, row = np.zeros(K.shape[0]), np.zeros(K.shape[1])
    asked, pulled = np.zeros((labels.shape[0], K.shape[1])), np.zeros((labels.shape[0], K.shape[0]))
    up_K, up_Q = np.zeros(K.shape), np.zeros(Q.shape)
    for k in range(factors.shape[0]):
        total = _gradient(
            tokens,
            means,
            queries,
            labels,
            offsets,
            head,
            loss,
            K,
            Q,
            winners,
            kept,
            scratch,
            moved,
            asked,
            pulled,
            row,
            up_K,
            up_Q,
            penalty,
        )
        size_K, size_Q = (
            ragged.euclidean(up_K.reshape(up_K.size)),
            ragged.euclidean(up_Q.reshape(up_Q.size)),
        )
        if size_K == 0.0 and size_Q == 0.0:
            return first + k
        if stacked:
            size_K = size_Q = math.hypot(size_K, size_Q)
        if size_K > 0.0:
            length = rate_K * factors[k] * (1.0 / size_K if normalize[0] else math.exp(total))
            softmax_kernels.add_one(K.reshape(K.size), length, up_K.reshape(K.size))
        if size_Q > 0.0:
            length = rate_Q * factors[k] * (1.0 / size_Q if normalize[1] else math.exp(total))
            softmax_kernels.add_one(Q.reshape(Q.size), length, up_Q.reshape(Q.size))
    return -1


@parallel_kernel
def _advance(
    tokens: FloatArray,
    means: FloatArray,
    queries: FloatArray,
    labels: FloatArray,
    offsets: IntArray,
    head: FloatArray,
    loss: IntArray,
    K: FloatArray,
    Q: FloatArray,
    stopped_at: IntArray,
    winners: IntArray,
    kept: FloatArray,
    first: int,
    factors: FloatArray,
    rates: FloatArray,
    normalize: BoolArray,
    stacked: bool,
    penalty: FloatArray,
) -> None:
    for r in numba.prange(K.shape[0]):
        if stopped_at[r] < 0:
            k = min(np.int64(r), tokens.shape[0] - 1)  # prange counts in unsigned integers
            stopped_at[r] = _descend(
                tokens[k],
                means[k],
                queries[k],
                labels[k],
                offsets[k],
                head[r],
                loss[r],
                K[r],
                Q[r],
                winners[r],
                kept[r],
                first,
                factors,
                rates[0, r],
                rates[1, r],
                normalize,
                stacked,
                penalty[r],
            )


@kernel
def _look(
    tokens: FloatArray,
    means: FloatArray,
    queries: FloatArray,
    labels: FloatArray,
    offsets: IntArray,
    head: FloatArray,
    loss: IntArray,
    K: FloatArray,
    Q: FloatArray,
    winners: IntArray,
    kept: FloatArray,
    penalty: FloatArray,
    mean: FloatArray,
    log_norm: FloatArray,
) -> None:
    n, d_x, m = labels.shape[1], K.shape[1], K.shape[2]
    scratch, moved, row = np.zeros((7, tokens.shape[1])), np.zeros(d_x), np.zeros(m)
    asked, pulled, up_K, up_Q = (
        np.zeros((n, m)),
        np.zeros((n, d_x)),
        np.zeros(K.shape[1:]),
        np.zeros(Q.shape[1:]),
    )
    for r in range(K.shape[0]):
        k = r if tokens.shape[0] > 1 else 0
        total = _gradient(
            tokens[k],
            means[k],
            queries[k],
            labels[k],
            offsets[k],
            head[r],
            loss[r],
            K[r],
            Q[r],
            winners[r],
            kept[r],
            scratch,
            moved,
            asked,
            pulled,
            row,
            up_K,
            up_Q,
            penalty[r],
        )
        size = math.hypot(
            ragged.euclidean(up_K.reshape(up_K.size)), ragged.euclidean(up_Q.reshape(up_Q.size))
        )
        log_norm[r] = total + math.log(size) if size > 0.0 else -np.inf
        square = 0.0
        for x in K[r].reshape(d_x * m):
            square += x * x
        for x in Q[r].reshape(Q.shape[1] * m):
            square += x * x
        mean[r] = ragged.mean_loss(kept[r, :, ragged.MARGIN], loss[r]) + penalty[r] * square
