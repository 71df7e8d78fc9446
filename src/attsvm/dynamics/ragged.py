r"""Large instances: descent on W, and on the head beside it, over sequences of any lengths without
padding.

One pass over the sequences does what :mod:`attsvm.dynamics.packed` says; a second one sums
:math:`\nabla_W\propto\sum_ip_iz_i^\top`. Both work on a fixed number of chunks of sequences, and
sums are taken chunk by chunk in order: the bits do not depend on the number of threads.
"""

from __future__ import annotations

import math
from typing import ClassVar, NamedTuple

import numba
import numpy as np

from attsvm.data import AttentionData, FloatArray, IntArray
from attsvm.dynamics import costs, packed
from attsvm.dynamics.engine import Kept, Look, Setup
from attsvm.dynamics.packed import LOG, OWN, SLOPE, Found, Packed
from attsvm.jit import kernel
from attsvm.models import softmax_kernels
from attsvm.parallel import parallel_part, threads_for

_CHUNKS = 32


class Work(NamedTuple):
    """What the passes over one instance read and write beside its sequences.

    Attributes:
        bounds: ``(chunks + 1,)``: the sequences of each chunk.
        Wt: ``(d_z, d_x)``, the weights transposed.
        head: ``(d_x + 1,)``, the intercept last.
        loss: code of the loss.
        scratch: ``(chunks, 7, longest)``.
        parts: ``(chunks, d_z, d_x)`` sums of the weights' ascent direction.
        head_parts: ``(chunks, w)`` those of the head's.
    """

    bounds: IntArray
    Wt: FloatArray
    head: FloatArray
    loss: int
    scratch: FloatArray
    parts: FloatArray
    head_parts: FloatArray


class RaggedEngine(Kept):
    """Trains ``W``, and the head when asked; runs one after the other, each on all cores."""

    name = "ragged"
    _kept: ClassVar = {"Wt": "_Wt", "head": "_head", "stopped_at": "stopped_at"}

    def __init__(self, data: AttentionData, setup: Setup) -> None:
        setup.check(data)
        count = setup.W.shape[0]
        self._setup = setup
        self._cost = costs.ragged_cost(data)
        instances = packed.instances_of(data, count)
        self._packed = [packed.pack(one, setup) for one in instances]
        self._positions = [np.nonzero(one.mask)[1] for one in instances]
        self._Wt = np.array(np.swapaxes(setup.W, -1, -2), order="C")
        self._head = np.concatenate([setup.head, setup.intercept[:, None]], axis=1)
        self.stopped_at = np.full(count, -1, dtype=np.int64)

    def _passes(self, run: int) -> tuple[Packed, Found, Work]:
        """What the passes over a run's instance take; outputs only when the head needs them."""
        setup, data = self._setup, self._packed[run if len(self._packed) > 1 else 0]
        n, d_x = data.means.shape
        width = 0 if setup.head_lr is None else d_x + setup.has_intercept
        chunks = min(_CHUNKS, n)
        # a sequence costs about one token beside its tokens
        goals = np.linspace(0, data.offsets[-1] + n, chunks + 1)
        work = Work(
            np.searchsorted(data.offsets + np.arange(n + 1), goals).astype(np.int64),
            self._Wt[run],
            self._head[run],
            int(setup.loss[run]),
            np.zeros((chunks, 7, int(np.diff(data.offsets).max()))),
            np.zeros((chunks, data.queries.shape[1], d_x)),
            np.zeros((chunks, width)),
        )
        return data, packed.room((), n, d_x, width), work

    def advance(self, step: int, count: int) -> None:
        """Take ``count`` steps, the first of which is number ``step``."""
        setup = self._setup
        factors, head_factors = setup.factors(step, count), setup.head_factors(step, count)
        for r in np.flatnonzero(self.stopped_at < 0).tolist():
            head_lr = 0.0 if setup.head_lr is None else float(setup.head_lr[r])
            with threads_for(self._cost):
                self.stopped_at[r] = _advance(
                    *self._passes(r),
                    step,
                    float(setup.lr[r]) * factors,
                    setup.normalize,
                    head_lr * head_factors,
                    setup.head_normalize,
                )

    def look(self) -> Look:
        """Loss, selection and norms at the present weights."""
        passes = [self._passes(r) for r in range(len(self._Wt))]
        log_n, sizes = math.log(len(self._packed[0].labels)), []
        for one in passes:
            with threads_for(self._cost):
                norm, log_factor, _ = _gradient(*one)
            sizes.append(log_factor + math.log(norm) - log_n if norm > 0.0 else -np.inf)
        return packed.look(
            self._setup,
            Found(*map(np.stack, zip(*(found for _, found, _ in passes), strict=True))),
            self._positions,
            np.array(sizes),
            np.swapaxes(self._Wt, -1, -2),
            self._head,
        )


# Inside a parallel loop tuples may be handed on; a write to one of their arrays would be lost.
@parallel_part
def _read(data: Packed, found: Found, work: Work) -> None:
    for chunk in numba.prange(work.bounds.shape[0] - 1):
        _read_chunk(chunk, data, found, work)


@kernel
def _read_chunk(chunk: int, data: Packed, found: Found, work: Work) -> None:
    moved = np.zeros(data.means.shape[1])
    for i in range(work.bounds[chunk], work.bounds[chunk + 1]):
        moved[:] = 0.0
        softmax_kernels.add_rows(moved, data.queries[i], work.Wt, 0, work.Wt.shape[0])
        packed.one_sequence(data, i, moved, work.head, work.loss, found, work.scratch[chunk])


@parallel_part
def _sum(data: Packed, found: Found, work: Work, log_W: float, log_head: float) -> None:
    for chunk in numba.prange(work.bounds.shape[0] - 1):
        _sum_chunk(chunk, data, found, work, log_W, log_head)


@kernel
def _sum_chunk(
    chunk: int, data: Packed, found: Found, work: Work, log_W: float, log_head: float
) -> None:
    start, stop = work.bounds[chunk], work.bounds[chunk + 1]
    part, head_part = work.parts[chunk], work.head_parts[chunk]
    part[:] = 0.0
    head_part[:] = 0.0
    for i in range(start, stop):
        kept = found.kept[i]
        found.pulled[i] *= math.exp(kept[LOG] - log_W)
        if head_part.shape[0] > 0:
            share = data.labels[i] * kept[SLOPE] * math.exp(kept[OWN] - log_head)
            softmax_kernels.add_one(head_part, share, found.outputs[i])
    for m in range(part.shape[0]):
        softmax_kernels.add_rows(
            part[m], data.queries[start:stop, m], found.pulled[start:stop], 0, stop - start
        )


@kernel
def _gradient(data: Packed, found: Found, work: Work) -> tuple[float, float, float]:
    """Leaves ascent directions in ``parts[0]`` and ``head_parts[0]``; returns the first one's norm
    and the logarithms of both factors.
    """
    _read(data, found, work)
    log_W, log_head = packed.largest_factors(found.kept)
    bases = (log_W if log_W > -np.inf else 0.0, log_head if log_head > -np.inf else 0.0)
    _sum(data, found, work, bases[0], bases[1])
    parts, head_parts = work.parts, work.head_parts
    for chunk in range(1, parts.shape[0]):
        for m in range(parts.shape[1]):
            softmax_kernels.add_one(parts[0, m], 1.0, parts[chunk, m])
        softmax_kernels.add_one(head_parts[0], 1.0, head_parts[chunk])
    flat = parts[0].reshape(parts[0].size)
    return (packed.euclidean(flat) if log_W > -np.inf else 0.0), log_W, log_head


@kernel
def _advance(
    data: Packed,
    found: Found,
    work: Work,
    first: int,
    rates: FloatArray,
    normalize: bool,
    head_rates: FloatArray,
    head_normalize: bool,
) -> int:
    """A step per rate; returns the step whose gradient was exactly zero, else -1."""
    n = data.labels.shape[0]
    flat = work.Wt.reshape(work.Wt.size)
    up, head_up = work.parts[0].reshape(flat.size), work.head_parts[0]
    for k in range(rates.shape[0]):
        norm, log_W, log_head = _gradient(data, found, work)
        own = packed.euclidean(head_up)
        if norm == 0.0 and own == 0.0:
            return first + k
        if norm > 0.0:
            length = rates[k] * (1.0 / norm if normalize else math.exp(log_W) / n)
            softmax_kernels.add_one(flat, length, up)
        if own > 0.0:
            length = head_rates[k] * (1.0 / own if head_normalize else math.exp(log_head) / n)
            softmax_kernels.add_one(work.head[: head_up.shape[0]], length, head_up)
    return -1
