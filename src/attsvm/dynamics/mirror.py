r"""Mirror descent on W, and on the head beside it, for many small runs: powers and gradients in one
compiled pass per step.

One step of a run reads its sequences one after the other
(:func:`~attsvm.dynamics.ragged.one_sequence`, relative to the winner and in log space), sums
:math:`\nabla_W\propto\sum_ip_iz_i^\top`, and moves the dual iterate :math:`Y=\mathrm{sp}(W,p-1)`.
The dual norm needs no power of its own: :math:`\|g\|_q^q=\langle\mathrm{sp}(g,q-1),g\rangle`, and
:math:`q-1=\frac1{p-1}` is the exponent that takes :math:`Y` to
:math:`W`. Runs are spread over the cores; each is computed by one thread, so the bits do not depend
on their number.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numba
import numpy as np

from attsvm.data import AttentionData, FloatArray, IntArray
from attsvm.dynamics import costs
from attsvm.dynamics.engine import Look, Setup, centred_tokens, restored
from attsvm.dynamics.ragged import LOG, MARGIN, MASS, OWN, SLOPE, mean_loss, one_sequence
from attsvm.jit import kernel
from attsvm.models import softmax_kernels
from attsvm.optim.fused import compiled_power
from attsvm.optim.power_kernels import Power, image64
from attsvm.optim.powers import mirror_exponents
from attsvm.parallel import parallel_kernel, threads_for


@dataclass(frozen=True)
class Mirror:
    """What mirror descent knows of one parameter: its powers (dual to weight, weight to dual),
    ``eps``, and whether it keeps a dual.
    """

    inverse: Power
    forward: Power
    eps: float
    keeps: bool

    @classmethod
    def of(cls, group: dict[str, Any]) -> Mirror:
        """From a parameter group of :class:`~attsvm.optim.MirrorDescent`."""
        forward, inverse = mirror_exponents(float(group["p"]))
        keeps = bool(group["dual_state"]) and group["p"] != 2
        return cls(compiled_power(inverse), compiled_power(forward), float(group["eps"]), keeps)


class MirrorEngine:
    """Trains ``W``, and the head when asked, by mirror descent; state: weights and dual iterates of
    every run.
    """

    name = "mirror"

    def __init__(
        self, data: AttentionData, setup: Setup, weights: Mirror, head: Mirror | None
    ) -> None:
        setup.check(data)
        runs = setup.W.shape[0]
        self._setup, self._weights, self._readout = setup, weights, head
        self._cost = costs.mirror_cost(data)
        instances = [data.instance(r) for r in range(runs)] if data.batch_shape else [data]
        width = max(int(one.mask.sum()) for one in instances)
        self._data = tuple(
            np.stack(part)
            for part in zip(*(_pack(one, setup, width) for one in instances), strict=True)
        )
        self._positions = [np.nonzero(one.mask)[1] for one in instances]
        n, d_x, d_z = data.n, data.d_x, setup.W.shape[-1]
        self._Wt = np.array(np.swapaxes(setup.W, -1, -2), order="C")
        self._v = np.concatenate([setup.head, setup.intercept[:, None]], axis=1)
        self._Y, self._u = np.empty_like(self._Wt), np.empty_like(self._v)
        for r in range(runs):
            image64(self._Wt[r].reshape(-1), self._Y[r].reshape(-1), *weights.forward)
            if head is not None:
                image64(self._v[r], self._u[r], *head.forward)
        self.stopped_at = np.full(runs, -1, dtype=np.int64)
        output = 0 if head is None else d_x + setup.has_intercept
        self._scratch = (
            np.zeros((runs, n), dtype=np.int64),
            np.zeros((runs, n, 5)),
            np.zeros((runs, n, d_x)),
            np.zeros((runs, n, output)),
            np.zeros((runs, 8, max(data.T, d_x))),
            np.zeros((runs, 2, d_z, d_x)),
            np.zeros((runs, 2, output)),
        )

    def advance(self, step: int, count: int) -> None:
        """Take ``count`` steps, the first of which is number ``step``."""
        setup, W, head = self._setup, self._weights, self._readout or self._weights
        head_lr = np.zeros(len(self._Wt)) if setup.head_lr is None else setup.head_lr
        arguments: tuple[Any, ...] = (
            *self._data,
            self._Wt,
            self._Y,
            self._v,
            self._u,
            self.stopped_at,
            *self._scratch,
            setup.loss,
            step,
            setup.factors(step, count),
            setup.lr,
            setup.normalize,
            W.eps,
            W.keeps,
            W.inverse,
            W.forward,
            head_lr,
            setup.head_normalize,
            head.eps,
            head.keeps,
            head.inverse,
            head.forward,
        )
        with threads_for(self._cost * count * len(self._Wt)):
            _advance(*arguments)

    def look(self) -> Look:
        """Loss, selection and norms at the present weights."""
        runs, n = self._scratch[0].shape
        loss, log_norm = np.empty(runs), np.empty(runs)
        selected, probability = np.empty((runs, n), dtype=np.int64), np.empty((runs, n))
        for r in range(runs):
            k = r if len(self._positions) > 1 else 0
            work: list[Any] = [part[r] for part in self._scratch]
            arguments: list[Any] = [
                *(part[k] for part in self._data),
                self._Wt[r],
                self._v[r],
                self._setup.loss[r],
                *work,
            ]
            log = _gradient(*arguments)[0]
            winners, kept, ascent = work[0], work[1], work[5][0]
            with np.errstate(divide="ignore"):
                log_norm[r] = (
                    log + np.log(np.linalg.norm(ascent)) - math.log(n) if log > -np.inf else -np.inf
                )
            loss[r] = mean_loss(kept[:, MARGIN], self._setup.loss[r])
            selected[r] = self._positions[k][winners]
            probability[r] = 1.0 / kept[:, MASS]
        W = np.array(np.swapaxes(self._Wt, -1, -2), order="C")
        return Look(
            loss, selected, probability, log_norm, W, self._v[:, :-1].copy(), self._v[:, -1].copy()
        )

    def state(self) -> dict[str, FloatArray | IntArray]:
        """What :meth:`restore` needs, copied."""
        named = {
            "Wt": self._Wt,
            "Y": self._Y,
            "head": self._v,
            "head_dual": self._u,
            "stopped_at": self.stopped_at,
        }
        return {name: value.copy() for name, value in named.items()}

    def restore(self, arrays: dict[str, FloatArray | IntArray]) -> None:
        """Continue from a :meth:`state`."""
        found = restored(arrays, self.state())
        self._Wt, self._Y = found["Wt"], found["Y"]
        self._v, self._u = found["head"], found["head_dual"]
        self.stopped_at = found["stopped_at"]


def _pack(
    data: AttentionData, setup: Setup, width: int
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray, IntArray]:
    """Centred tokens end to end with zeros up to ``width``, their means, queries, labels and
    offsets.
    """
    visible = centred_tokens(data)[data.mask]
    tokens = np.zeros((width, data.d_x))
    tokens[: len(visible)] = visible
    means = data.tokens.sum(axis=-2) / data.lengths[:, None]
    queries = np.ones((data.n, 1)) if setup.prompt else np.array(data.queries)
    return tokens, means, queries, np.array(data.labels), softmax_kernels.offsets_of(data.lengths)


@kernel
def _gradient(
    tokens: FloatArray,
    means: FloatArray,
    queries: FloatArray,
    labels: FloatArray,
    offsets: IntArray,
    Wt: FloatArray,
    head: FloatArray,
    loss: int,
    winners: IntArray,
    kept: FloatArray,
    pulled: FloatArray,
    outputs: FloatArray,
    scratch: FloatArray,
    G: FloatArray,
    g: FloatArray,
) -> tuple[float, float]:
    """Leaves ascent directions in ``G[0]`` and ``g[0]``; returns the logarithms of the factors that
    make them the gradients', times n.
    """
    moved = scratch[7]
    log_W, log_head = -np.inf, -np.inf
    for i in range(labels.shape[0]):
        moved[:] = 0.0
        softmax_kernels.add_rows(moved[: means.shape[1]], queries[i], Wt, 0, Wt.shape[0])
        winners[i] = one_sequence(
            tokens,
            means[i],
            labels[i],
            offsets[i],
            offsets[i + 1],
            moved[: means.shape[1]],
            head,
            loss,
            kept[i],
            pulled[i],
            outputs[i],
            scratch,
        )
        log_W = max(log_W, kept[i, LOG])
        log_head = max(log_head, kept[i, OWN])
    G[0] = 0.0
    g[0] = 0.0
    for i in range(labels.shape[0]):
        share = math.exp(kept[i, LOG] - log_W) if log_W > -np.inf else 0.0
        for m in range(queries.shape[1]):
            softmax_kernels.add_one(G[0, m], share * queries[i, m], pulled[i])
        if outputs.shape[1] > 0:
            share = math.exp(kept[i, OWN] - log_head) if log_head > -np.inf else 0.0
            softmax_kernels.add_one(g[0], labels[i] * kept[i, SLOPE] * share, outputs[i])
    return log_W, log_head


@kernel
def _move(
    w: FloatArray,
    y: FloatArray,
    g: FloatArray,
    work: FloatArray,
    log_factor: float,
    lr: float,
    normalize: bool,
    eps: float,
    keeps: bool,
    inverse: Power,
    forward: Power,
) -> bool:
    """One mirror step along the ascent direction ``g``, whose true size is ``exp(log_factor)``
    times its own; False where it is zero.
    """
    peak = 0.0
    for j in range(g.shape[0]):
        peak = max(peak, abs(g[j]))
    if peak == 0.0:
        return False
    for j in range(g.shape[0]):
        g[j] /= peak
    log_factor += math.log(peak)
    if normalize:
        image64(g, work, inverse[0], inverse[1], inverse[2])
        norm = softmax_kernels.dot(work, g) ** (1.0 / (1.0 + inverse[1] + inverse[2]))
        # eps relative to the true norm: past the smallest number it is infinite, and the step zero
        length = lr / (norm * (1.0 + eps * math.exp(min(-log_factor, 709.0)) / norm))
    else:
        length = lr * math.exp(log_factor)
    if not keeps:
        image64(w, y, forward[0], forward[1], forward[2])
    softmax_kernels.add_one(y, length, g)
    image64(y, w, inverse[0], inverse[1], inverse[2])
    return True


@kernel
def _descend(
    tokens: FloatArray,
    means: FloatArray,
    queries: FloatArray,
    labels: FloatArray,
    offsets: IntArray,
    Wt: FloatArray,
    Y: FloatArray,
    v: FloatArray,
    u: FloatArray,
    winners: IntArray,
    kept: FloatArray,
    pulled: FloatArray,
    outputs: FloatArray,
    scratch: FloatArray,
    G: FloatArray,
    g: FloatArray,
    loss: int,
    first: int,
    factors: FloatArray,
    lr: float,
    normalize: bool,
    eps: float,
    keeps: bool,
    inverse: Power,
    forward: Power,
    head_lr: float,
    head_normalize: bool,
    head_eps: float,
    head_keeps: bool,
    head_inverse: Power,
    head_forward: Power,
) -> int:
    """Steps of one run; returns the step whose gradient was exactly zero, else -1."""
    log_n = math.log(labels.shape[0])
    width = outputs.shape[1]
    for k in range(factors.shape[0]):
        log_W, log_head = _gradient(
            tokens,
            means,
            queries,
            labels,
            offsets,
            Wt,
            v,
            loss,
            winners,
            kept,
            pulled,
            outputs,
            scratch,
            G,
            g,
        )
        moving = _move(
            Wt.reshape(Wt.size),
            Y.reshape(Y.size),
            G[0].reshape(Wt.size),
            G[1].reshape(Wt.size),
            log_W - log_n,
            lr * factors[k],
            normalize,
            eps,
            keeps,
            inverse,
            forward,
        )
        if width > 0:
            moved = _move(
                v[:width],
                u[:width],
                g[0],
                g[1],
                log_head - log_n,
                head_lr * factors[k],
                head_normalize,
                head_eps,
                head_keeps,
                head_inverse,
                head_forward,
            )
            moving = moving or moved
        if not moving:
            return first + k
    return -1


@parallel_kernel
def _advance(
    tokens: FloatArray,
    means: FloatArray,
    queries: FloatArray,
    labels: FloatArray,
    offsets: IntArray,
    Wt: FloatArray,
    Y: FloatArray,
    v: FloatArray,
    u: FloatArray,
    stopped_at: IntArray,
    winners: IntArray,
    kept: FloatArray,
    pulled: FloatArray,
    outputs: FloatArray,
    scratch: FloatArray,
    G: FloatArray,
    g: FloatArray,
    loss: IntArray,
    first: int,
    factors: FloatArray,
    lr: FloatArray,
    normalize: bool,
    eps: float,
    keeps: bool,
    inverse: Power,
    forward: Power,
    head_lr: FloatArray,
    head_normalize: bool,
    head_eps: float,
    head_keeps: bool,
    head_inverse: Power,
    head_forward: Power,
) -> None:
    for r in numba.prange(Wt.shape[0]):
        if stopped_at[r] < 0:
            k = min(np.int64(r), tokens.shape[0] - 1)  # prange counts in unsigned integers
            stopped_at[r] = _descend(
                tokens[k],
                means[k],
                queries[k],
                labels[k],
                offsets[k],
                Wt[r],
                Y[r],
                v[r],
                u[r],
                winners[r],
                kept[r],
                pulled[r],
                outputs[r],
                scratch[r],
                G[r],
                g[r],
                loss[r],
                first,
                factors,
                lr[r],
                normalize,
                eps,
                keeps,
                inverse,
                forward,
                head_lr[r],
                head_normalize,
                head_eps,
                head_keeps,
                head_inverse,
                head_forward,
            )
