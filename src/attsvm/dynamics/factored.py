r"""Descent on factors, :math:`W=KQ^\top`: every run a loop over its sequences, runs shared out
among the cores.

With :math:`p_i=\sum_t\beta_{it}x_{it}` the row that a sequence pulls back (see
:mod:`attsvm.dynamics.packed`), :math:`\nabla_K\propto \sum_ip_i(Q^\top z_i)^\top` and
:math:`\nabla_Q\propto\sum_iz_i(K^\top p_i)^\top`: no matrix of the size of W is ever formed. Both
carry one factor :math:`e^M`, kept as a logarithm; a penalty is added at the scale of the larger
term, as in :mod:`attsvm.models.losses`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import numpy as np

from attsvm.data import AttentionData, BoolArray, FloatArray, IntArray
from attsvm.dynamics import costs, packed
from attsvm.dynamics.engine import Kept, Look, Setup
from attsvm.dynamics.packed import LOG, Found, Packed
from attsvm.jit import kernel
from attsvm.models import softmax_kernels
from attsvm.parallel import share_runs


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


class Factors(NamedTuple):
    """Weights ``K`` and ``Q``, the ``penalty`` on their squares, and the ``head`` with the
    intercept last, of every run.
    """

    K: FloatArray
    Q: FloatArray
    penalty: FloatArray
    head: FloatArray


class Ascent(NamedTuple):
    r"""Scratch space of one run: ascent directions of both factors, mapped queries
    :math:`Q^\top z_i`, and rows.
    """

    up_K: FloatArray
    up_Q: FloatArray
    asked: FloatArray
    row: FloatArray
    moved: FloatArray
    scratch: FloatArray


class FactorEngine(Kept):
    """Trains K and Q under a fixed linear head; state: the factors of every run."""

    name = "factored"
    _kept: ClassVar = {"K": "_K", "Q": "_Q", "stopped_at": "stopped_at"}

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
        runs = len(factors.K)
        self._setup, self._factors = setup, factors
        instances = packed.instances_of(data, runs)
        self._data, self._positions = packed.stacked(instances, setup)
        self._head = np.concatenate([setup.head, setup.intercept[:, None]], axis=1)
        self._K, self._Q = factors.K.copy(), factors.Q.copy()
        self._cost = costs.ragged_cost(data)
        self.stopped_at = np.full(runs, -1, dtype=np.int64)
        self._found = packed.room((runs,), data.n, data.d_x, 0)

    @property
    def _weights(self) -> Factors:
        return Factors(self._K, self._Q, self._factors.penalty, self._head)

    def advance(self, step: int, count: int) -> None:
        """Take ``count`` steps, the first of which is number ``step``."""
        own = self._factors
        share_runs(
            _advance,
            len(self.stopped_at),
            self._cost * count,
            self._data,
            self._weights,
            self._found,
            self.stopped_at,
            self._setup.loss,
            step,
            self._setup.factors(step, count),
            own.rates,
            own.normalize,
            own.stacked,
        )

    def look(self) -> Look:
        """Loss, selection and norms at the present weights."""
        log_norm = np.full(len(self._K), -np.inf)
        _log_norms(self._data, self._weights, self._found, self._setup.loss, log_norm)
        K, Q = self._K.copy(), self._Q.copy()
        seen = packed.look(
            self._setup, self._found, self._positions, log_norm, K @ Q.mT, self._head
        )
        squares = (K**2).sum(axis=(1, 2)) + (Q**2).sum(axis=(1, 2))
        return replace(
            seen,
            loss=seen.loss + self._factors.penalty * squares,
            parameters={"KQ": np.concatenate([K, Q], axis=-2)}
            if self._factors.stacked
            else {"K": K, "Q": Q},
        )


@kernel
def _room(data: Packed, weights: Factors) -> Ascent:
    n, (d_x, m), d_z = data.labels.shape[0], weights.K.shape, weights.Q.shape[0]
    return Ascent(
        np.zeros((d_x, m)),
        np.zeros((d_z, m)),
        np.zeros((n, m)),
        np.zeros(m),
        np.zeros(d_x),
        np.zeros((7, data.tokens.shape[0])),
    )


@kernel
def _gradient(data: Packed, weights: Factors, found: Found, loss: int, to: Ascent) -> float:
    """Writes ascent directions of both factors; returns the logarithm of the factor that makes them
    the true gradients.
    """
    n = data.labels.shape[0]
    K, Q, up_K, up_Q = weights.K, weights.Q, to.up_K, to.up_Q
    penalty = weights.penalty[0]
    for i in range(n):
        softmax_kernels.combine(data.queries[i], Q, to.asked[i])
        softmax_kernels.products(K, to.asked[i], to.moved)
        packed.one_sequence(data, i, to.moved, weights.head, loss, found, to.scratch)
    top = packed.largest_factors(found.kept)[0]
    up_K[:] = 0.0
    up_Q[:] = 0.0
    for i in range(n):
        if found.kept[i, LOG] == -np.inf:
            continue
        share, pulled = math.exp(found.kept[i, LOG] - top), found.pulled[i]
        for a in range(pulled.shape[0]):
            pulled[a] *= share
            softmax_kernels.add_one(up_K[a], pulled[a], to.asked[i])
        softmax_kernels.combine(pulled, K, to.row)
        for b in range(data.queries.shape[1]):
            softmax_kernels.add_one(up_Q[b], data.queries[i, b], to.row)
    total = top - math.log(n)
    if penalty > 0.0:
        loudest = total
        total = max(loudest, math.log(penalty))
        share = math.exp(loudest - total)
        own = 2.0 * math.exp(math.log(penalty) - total)
        for k in range(K.shape[1]):
            for a in range(K.shape[0]):
                up_K[a, k] = share * up_K[a, k] - own * K[a, k]
            for b in range(Q.shape[0]):
                up_Q[b, k] = share * up_Q[b, k] - own * Q[b, k]
    return total


@kernel
def _of_run(weights: Factors, r: int) -> Factors:
    return Factors(weights.K[r], weights.Q[r], weights.penalty[r : r + 1], weights.head[r])


@kernel
def _run(
    r: int,
    stack: Packed,
    all_weights: Factors,
    all_found: Found,
    loss: IntArray,
    first: int,
    factors: FloatArray,
    rates: FloatArray,
    normalize: BoolArray,
    stacked: bool,
) -> int:
    """Steps of one run; returns the step whose gradient was exactly zero, else -1."""
    data, weights = packed.shared(stack, r), _of_run(all_weights, r)
    found, to = packed.of_run(all_found, r), _room(data, weights)
    K, Q = weights.K.reshape(weights.K.size), weights.Q.reshape(weights.Q.size)
    up_K, up_Q = to.up_K.reshape(K.size), to.up_Q.reshape(Q.size)
    for k in range(factors.shape[0]):
        total = _gradient(data, weights, found, loss[r], to)
        size_K, size_Q = packed.euclidean(up_K), packed.euclidean(up_Q)
        if size_K == 0.0 and size_Q == 0.0:
            return first + k
        if stacked:
            size_K = size_Q = math.hypot(size_K, size_Q)
        if size_K > 0.0:
            length = rates[0, r] * factors[k] * (1.0 / size_K if normalize[0] else math.exp(total))
            softmax_kernels.add_one(K, length, up_K)
        if size_Q > 0.0:
            length = rates[1, r] * factors[k] * (1.0 / size_Q if normalize[1] else math.exp(total))
            softmax_kernels.add_one(Q, length, up_Q)
    return -1


@kernel
def _advance(
    start: int,
    stop: int,
    data: Packed,
    weights: Factors,
    found: Found,
    stopped_at: IntArray,
    loss: IntArray,
    first: int,
    factors: FloatArray,
    rates: FloatArray,
    normalize: BoolArray,
    stacked: bool,
) -> None:
    for r in range(start, stop):
        if stopped_at[r] < 0:
            stopped_at[r] = _run(
                r, data, weights, found, loss, first, factors, rates, normalize, stacked
            )


@kernel
def _log_norms(
    stack: Packed, all_weights: Factors, all_found: Found, loss: IntArray, log_norm: FloatArray
) -> None:
    """Logarithm of the norm of every run's gradient."""
    for r in range(log_norm.shape[0]):
        data, weights = packed.shared(stack, r), _of_run(all_weights, r)
        to = _room(data, weights)
        found = packed.of_run(all_found, r)
        total = _gradient(data, weights, found, loss[r], to)
        size = math.hypot(
            packed.euclidean(to.up_K.reshape(to.up_K.size)),
            packed.euclidean(to.up_Q.reshape(to.up_Q.size)),
        )
        if size > 0.0:
            log_norm[r] = total + math.log(size)
