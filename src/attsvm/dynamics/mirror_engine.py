r"""Mirror descent on W, and on the head beside it, for many small runs: powers and gradients in one
compiled pass per step.

One step of a run reads its sequences one after the other (:mod:`attsvm.dynamics.packed`), sums
:math:`\nabla_W\propto\sum_ip_iz_i^\top`, and moves the dual iterate :math:`Y=\mathrm{sp}(W,p-1)`.
The dual norm needs no power of its own: :math:`\|g\|_q^q=\langle\mathrm{sp}(g,q-1),g\rangle`, and
:math:`q-1=\frac1{p-1}` is the exponent that takes :math:`Y` to
:math:`W`. Runs are spread over the cores; each is computed by one thread, so the bits do not depend
on their number.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar, NamedTuple

import numpy as np

from attsvm.data import AttentionData, FloatArray, IntArray
from attsvm.dynamics import costs, packed
from attsvm.dynamics.engine import Kept, Look, Setup
from attsvm.dynamics.packed import SLOPE, Found, Packed
from attsvm.jit import kernel
from attsvm.models import softmax_kernels
from attsvm.optim.fused import compiled_power
from attsvm.optim.power_kernels import Power, image64
from attsvm.optim.powers import mirror_exponents
from attsvm.parallel import share_runs


class Mirror(NamedTuple):
    """What mirror descent knows of one parameter.

    Attributes:
        normalize: whether the gradient is divided by its dual norm.
        eps: what is added to that norm.
        keeps: whether the dual iterate is kept, or taken anew from the weights.
        inverse: power from dual to weight.
        forward: power from weight to dual.
    """

    normalize: bool
    eps: float
    keeps: bool
    inverse: Power
    forward: Power

    @classmethod
    def of(cls, group: dict[str, Any]) -> Mirror:
        """From a parameter group of :class:`~attsvm.optim.MirrorDescent`."""
        forward, inverse = mirror_exponents(float(group["p"]))
        keeps = bool(group["dual_state"]) and group["p"] != 2
        powers = compiled_power(inverse), compiled_power(forward)
        return cls(bool(group["normalize"]), float(group["eps"]), keeps, *powers)


class Iterates(NamedTuple):
    """Weights ``Wt`` (transposed) and ``v`` (the intercept last), their duals ``Y`` and ``u``, of
    every run, and two of each in scratch space: ascent directions and their powers.
    """

    Wt: FloatArray
    Y: FloatArray
    v: FloatArray
    u: FloatArray
    G: FloatArray
    g: FloatArray


class Steps(NamedTuple):
    """Step lengths ``lr`` and ``head_lr`` of every run times ``factors``, one for each step, under
    the rules of the weights and of the head.
    """

    factors: FloatArray
    lr: FloatArray
    weights: Mirror
    head_lr: FloatArray
    head: Mirror


class MirrorEngine(Kept):
    """Trains ``W``, and the head when asked, by mirror descent; state: weights and dual iterates of
    every run.
    """

    name = "mirror"
    _kept: ClassVar = {
        "Wt": "_Wt",
        "Y": "_Y",
        "head": "_v",
        "head_dual": "_u",
        "stopped_at": "stopped_at",
    }

    def __init__(
        self, data: AttentionData, setup: Setup, weights: Mirror, head: Mirror | None
    ) -> None:
        setup.check(data)
        runs = setup.W.shape[0]
        self._setup, self._weights, self._readout = setup, weights, head or weights
        self._cost = costs.mirror_cost(data)
        instances = packed.instances_of(data, runs)
        self._data, self._positions = packed.stacked(instances, setup)
        self._Wt = np.array(np.swapaxes(setup.W, -1, -2), order="C")
        self._v = np.concatenate([setup.head, setup.intercept[:, None]], axis=1)
        self._Y, self._u = np.empty_like(self._Wt), np.empty_like(self._v)
        for r in range(runs):
            image64(self._Wt[r].reshape(-1), self._Y[r].reshape(-1), *weights.forward)
            if head is not None:
                image64(self._v[r], self._u[r], *head.forward)
        self.stopped_at = np.full(runs, -1, dtype=np.int64)
        width = 0 if head is None else data.d_x + setup.has_intercept
        self._found = packed.room((runs,), data.n, data.d_x, width)
        self._scratch = np.zeros((runs, 8, max(data.T, data.d_x)))
        self._G, self._g = np.zeros((runs, 2, *self._Wt.shape[1:])), np.zeros((runs, 2, width))

    @property
    def _iterates(self) -> Iterates:
        return Iterates(self._Wt, self._Y, self._v, self._u, self._G, self._g)

    def advance(self, step: int, count: int) -> None:
        """Take ``count`` steps, the first of which is number ``step``."""
        setup = self._setup
        head_lr = np.zeros(len(self._Wt)) if setup.head_lr is None else setup.head_lr
        share_runs(
            _advance,
            len(self.stopped_at),
            self._cost * count,
            self._data,
            self._iterates,
            self._found,
            self._scratch,
            self.stopped_at,
            setup.loss,
            step,
            Steps(setup.factors(step, count), setup.lr, self._weights, head_lr, self._readout),
        )

    def look(self) -> Look:
        """Loss, selection and norms at the present weights."""
        runs = len(self._Wt)
        log_norm = np.full(runs, -np.inf)
        _log_norms(
            self._data,
            self._iterates,
            self._found,
            self._scratch,
            self._setup.loss,
            log_norm,
        )
        return packed.look(
            self._setup,
            self._found,
            self._positions,
            log_norm,
            np.swapaxes(self._Wt, -1, -2),
            self._v,
        )


@kernel
def _gradient(
    data: Packed, at: Iterates, found: Found, scratch: FloatArray, loss: int
) -> tuple[float, float]:
    """Leaves ascent directions in ``G[0]`` and ``g[0]``; returns the logarithms of the factors that
    make them the gradients', times n.
    """
    G, g = at.G[0], at.g[0]
    moved = scratch[7, : data.means.shape[1]]
    for i in range(data.labels.shape[0]):
        moved[:] = 0.0
        softmax_kernels.add_rows(moved, data.queries[i], at.Wt, 0, at.Wt.shape[0])
        packed.one_sequence(data, i, moved, at.v, loss, found, scratch)
    log_W, log_head = packed.largest_factors(found.kept)
    G[:] = 0.0
    g[:] = 0.0
    for i in range(data.labels.shape[0]):
        kept = found.kept[i]
        share = math.exp(kept[packed.LOG] - log_W) if log_W > -np.inf else 0.0
        for m in range(data.queries.shape[1]):
            softmax_kernels.add_one(G[m], share * data.queries[i, m], found.pulled[i])
        if g.shape[0] > 0:
            share = math.exp(kept[packed.OWN] - log_head) if log_head > -np.inf else 0.0
            softmax_kernels.add_one(g, data.labels[i] * kept[SLOPE] * share, found.outputs[i])
    return log_W, log_head


@kernel
def _move(
    w: FloatArray,
    y: FloatArray,
    g: FloatArray,
    work: FloatArray,
    log_factor: float,
    lr: float,
    rule: Mirror,
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
    inverse, forward = rule.inverse, rule.forward
    if rule.normalize:
        image64(g, work, inverse[0], inverse[1], inverse[2])
        norm = softmax_kernels.dot(work, g) ** (1.0 / (1.0 + inverse[1] + inverse[2]))
        # eps relative to the true norm: past the smallest number it is infinite, and the step zero
        length = lr / (norm * (1.0 + rule.eps * math.exp(min(-log_factor, 709.0)) / norm))
    else:
        length = lr * math.exp(log_factor)
    if not rule.keeps:
        image64(w, y, forward[0], forward[1], forward[2])
    softmax_kernels.add_one(y, length, g)
    image64(y, w, inverse[0], inverse[1], inverse[2])
    return True


@kernel
def _of_run(at: Iterates, r: int) -> Iterates:
    return Iterates(at.Wt[r], at.Y[r], at.v[r], at.u[r], at.G[r], at.g[r])


@kernel
def _descend(
    r: int, data: Packed, at: Iterates, found: Found, scratch: FloatArray, loss: int, steps: Steps
) -> int:
    """Steps of one run, whose number is ``r``; returns how many were taken before the gradient was
    exactly zero, else -1.
    """
    log_n = math.log(data.labels.shape[0])
    size, width = at.Wt.size, at.g.shape[1]
    w, y = at.Wt.reshape(size), at.Y.reshape(size)
    G, room = at.G[0].reshape(size), at.G[1].reshape(size)
    for k in range(steps.factors.shape[0]):
        log_W, log_head = _gradient(data, at, found, scratch, loss)
        factor = steps.factors[k]
        moving = _move(w, y, G, room, log_W - log_n, steps.lr[r] * factor, steps.weights)
        if width > 0:
            v, u = at.v[:width], at.u[:width]
            length = steps.head_lr[r] * factor
            moved = _move(v, u, at.g[0], at.g[1], log_head - log_n, length, steps.head)
            moving = moving or moved
        if not moving:
            return k
    return -1


@kernel
def _advance(
    start: int,
    stop: int,
    stack: Packed,
    all_iterates: Iterates,
    all_found: Found,
    scratch: FloatArray,
    stopped_at: IntArray,
    loss: IntArray,
    first: int,
    steps: Steps,
) -> None:
    for r in range(start, stop):
        if stopped_at[r] < 0:
            data, at = packed.shared(stack, r), _of_run(all_iterates, r)
            found = packed.of_run(all_found, r)
            k = _descend(r, data, at, found, scratch[r], loss[r], steps)
            stopped_at[r] = first + k if k >= 0 else -1


@kernel
def _log_norms(
    data: Packed,
    at: Iterates,
    found: Found,
    scratch: FloatArray,
    loss: IntArray,
    log_norm: FloatArray,
) -> None:
    """Logarithm of the norm of every run's gradient."""
    for r in range(log_norm.shape[0]):
        own = _of_run(at, r)
        run = packed.of_run(found, r)
        log_W = _gradient(packed.shared(data, r), own, run, scratch[r], loss[r])[0]
        size = packed.euclidean(own.G[0].reshape(own.Wt.size))
        if size > 0.0:
            log_norm[r] = log_W + math.log(size) - math.log(data.labels.shape[1])
