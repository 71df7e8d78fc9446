r"""Large instances: descent on W, and on the head beside it, over sequences of any lengths without
padding.

Visible tokens of all sequences lie end to end. One pass over them does everything that a sequence
needs while its tokens are in the cache: moved query :math:`Wz_i`, logits, softmax, coefficients
:math:`\beta_{it}`, pulled-back row
:math:`p_i=\sum_t\beta_{it}x_{it}`. A second pass over the sequences sums
:math:`\nabla_W\propto\sum_ip_iz_i^\top`. Each :math:`p_i` is kept without its factor, whose
logarithm is kept beside it, so the factors meet only once the largest is known.

Both passes work on a fixed number of chunks of sequences and sums are taken chunk by chunk in
order: the bits do not depend on the number of threads.
"""

from __future__ import annotations

import math
from typing import Any

import numba
import numpy as np

from attsvm.data import AttentionData, FloatArray, IntArray
from attsvm.dynamics import costs
from attsvm.dynamics.engine import Look, Setup, centred_tokens, restored
from attsvm.jit import kernel
from attsvm.models import softmax_kernels
from attsvm.parallel import parallel_part, threads_for

_CHUNKS = 32
# what is kept per sequence: margin, softmax sum, log factor of the weights' share, slope, log
# factor of the head's share
MARGIN, MASS, LOG, SLOPE, OWN = range(5)
_WINNERS, _KEPT = 9, 10  # their places among the arguments of the passes


class RaggedEngine:
    """Trains ``W``, and the head when asked; runs one after the other, each on all cores."""

    name = "ragged"

    def __init__(self, data: AttentionData, setup: Setup) -> None:
        setup.check(data)
        count = setup.W.shape[0]
        self._setup = setup
        self._cost = costs.ragged_cost(data)
        self._parts = (
            [_Packed(data.instance(r), setup) for r in range(count)]
            if data.batch_shape
            else [_Packed(data, setup)]
        )
        self._Wt = np.array(np.swapaxes(setup.W, -1, -2), order="C")
        self._head = np.concatenate([setup.head, setup.intercept[:, None]], axis=1)
        self.stopped_at = np.full(count, -1, dtype=np.int64)

    def _arguments(self, run: int) -> tuple[_Packed, tuple[Any, ...]]:
        """The instance of a run, and all that the passes over it read and write."""
        part = self._parts[run if len(self._parts) > 1 else 0]
        return part, (
            *part.arrays,
            self._Wt[run],
            self._head[run],
            self._setup.loss[run],
            *part.work(self._setup.head_lr is not None, self._setup.has_intercept),
        )

    def advance(self, step: int, count: int) -> None:
        """Take ``count`` steps, the first of which is number ``step``."""
        setup = self._setup
        for r in np.flatnonzero(self.stopped_at < 0).tolist():
            head_lr = 0.0 if setup.head_lr is None else setup.head_lr[r]
            rates = (
                setup.lr[r],
                setup.normalize,
                head_lr,
                setup.head_normalize,
                setup.has_intercept,
            )
            factors = setup.factors(step, count), setup.head_factors(step, count)
            arguments: tuple[Any, ...] = (*self._arguments(r)[1], step, *factors, *rates)
            with threads_for(self._cost):
                self.stopped_at[r] = _advance(*arguments)

    def look(self) -> Look:
        """Loss, selection and norms at the present weights."""
        count = len(self._Wt)
        n, setup = self._parts[0].labels.shape[0], self._setup
        loss, log_norm = np.empty(count), np.empty(count)
        selected, probability = np.empty((count, n), dtype=np.int64), np.empty((count, n))
        for r in range(count):
            part, arguments = self._arguments(r)
            with threads_for(self._cost):
                norm, log_factor, _ = _gradient(*arguments)
            winners, kept = arguments[_WINNERS], arguments[_KEPT]
            log_norm[r] = log_factor + math.log(norm) - math.log(n) if norm > 0.0 else -np.inf
            loss[r] = mean_loss(kept[:, MARGIN], setup.loss[r])
            selected[r] = part.positions[winners]
            probability[r] = 1.0 / kept[:, MASS]
        W = np.array(
            np.swapaxes(self._Wt, -1, -2), order="C"
        )  # a copy even of a single column, whose transpose is a view
        return Look(
            loss,
            selected,
            probability,
            log_norm,
            W,
            self._head[:, :-1].copy(),
            self._head[:, -1].copy(),
        )

    def state(self) -> dict[str, FloatArray | IntArray]:
        """What :meth:`restore` needs, copied."""
        return {
            "Wt": self._Wt.copy(),
            "head": self._head.copy(),
            "stopped_at": self.stopped_at.copy(),
        }

    def restore(self, arrays: dict[str, FloatArray | IntArray]) -> None:
        """Continue from a :meth:`state`."""
        found = restored(arrays, self.state())
        self._Wt, self._head = found["Wt"], found["head"]
        self.stopped_at = found["stopped_at"]


class _Packed:
    """One instance, token after token."""

    def __init__(self, data: AttentionData, setup: Setup) -> None:
        sequence, self.positions = np.nonzero(data.mask)
        self.labels = np.array(data.labels)
        tokens = centred_tokens(data)[sequence, self.positions]
        means = data.tokens.sum(axis=-2) / data.lengths[:, None]
        offsets = softmax_kernels.offsets_of(data.lengths)
        chunks = min(_CHUNKS, data.n)
        goals = np.linspace(
            0, offsets[-1] + data.n, chunks + 1
        )  # a sequence costs about one token beside its tokens
        bounds = np.searchsorted(offsets + np.arange(data.n + 1), goals).astype(np.int64)
        queries = np.ones((data.n, 1)) if setup.prompt else np.array(data.queries)
        self.arrays: tuple[Any, ...] = (tokens, means, queries, self.labels, offsets, bounds)

    def work(self, joint: bool, has_intercept: bool) -> tuple[Any, ...]:
        """Scratch space for the passes; attention outputs only when the head needs them."""
        tokens, _, queries, labels, offsets, bounds = self.arrays
        n, d_x, d_z, chunks = len(labels), tokens.shape[1], queries.shape[1], len(bounds) - 1
        longest = int(np.diff(offsets).max())
        width = d_x + has_intercept
        outputs = np.zeros((n if joint else 0, width))
        return (
            np.zeros(n, dtype=np.int64),
            np.zeros((n, 5)),
            np.zeros((n, d_x)),
            outputs,
            np.zeros((chunks, 7, longest)),
            np.zeros((chunks, d_z, d_x)),
            np.zeros((chunks, width)),
        )


@kernel
def one_sequence(
    tokens: FloatArray,
    mean: FloatArray,
    label: float,
    lo: int,
    hi: int,
    moved: FloatArray,
    head: FloatArray,
    loss: int,
    kept: FloatArray,
    pulled: FloatArray,
    output: FloatArray,
    scratch: FloatArray,
) -> int:
    """Everything one sequence needs; returns its winner, counted over all tokens.

    ``output`` is empty when the head is fixed, has ``d_x`` entries without an intercept and one
    more with it.
    """
    a, score, e, shifted, g, S, Q = (
        scratch[0],
        scratch[1],
        scratch[2],
        scratch[3],
        scratch[4],
        scratch[5],
        scratch[6],
    )
    length = hi - lo
    v = head[:-1]
    for t in range(length):
        a[t] = softmax_kernels.dot(tokens[lo + t], moved)
        score[t] = label * softmax_kernels.dot(tokens[lo + t], v)
    winner, top = softmax_kernels.compare(a, score, 0, length, e, shifted, g)
    softmax_kernels.exp_into(e, S, 0, length)
    softmax_kernels.exp_into(shifted, Q, 0, length)
    Z, ratio = softmax_kernels.weigh(S, Q, g, 0, length, winner)
    u = score[winner] + label * (softmax_kernels.dot(mean, v) + head[-1]) - math.exp(top) * ratio
    mild, slope = softmax_kernels.log_slope_parts(u, loss)
    kept[MARGIN], kept[MASS], kept[LOG], kept[SLOPE], kept[OWN] = u, Z, top + mild, slope, mild
    b = a  # the logits are not needed any more
    softmax_kernels.coefficients(S, Q, 0, length, winner, ratio, slope / Z, b)
    pulled[:] = 0.0
    softmax_kernels.add_rows(pulled, b, tokens[lo:hi], 0, length)
    if output.shape[0] == v.shape[0] and not (tokens[lo + winner] + mean).any():
        raw = tokens[lo:hi] + mean  # zeros are exact again
        near = softmax_kernels.nearest(e[:length], raw, winner)
        kept[OWN] = mild + near
        softmax_kernels.probabilities(e[:length], near, Z, S[:length])
        softmax_kernels.combine(S[:length], raw, output)
    elif output.shape[0] > 0:
        for t in range(length):
            S[t] = S[t] / Z
        output[: v.shape[0]] = mean
        softmax_kernels.add_rows(output[: v.shape[0]], S, tokens[lo:hi], 0, length)
        output[v.shape[0] :] = 1.0
    return lo + winner


@parallel_part
def _read(
    tokens: FloatArray,
    means: FloatArray,
    queries: FloatArray,
    labels: FloatArray,
    offsets: IntArray,
    bounds: IntArray,
    Wt: FloatArray,
    head: FloatArray,
    loss: int,
    winners: IntArray,
    kept: FloatArray,
    pulled: FloatArray,
    outputs: FloatArray,
    scratch: FloatArray,
) -> None:
    nothing = np.zeros(0)
    for chunk in numba.prange(bounds.shape[0] - 1):
        moved = np.zeros(means.shape[1])
        for i in range(bounds[chunk], bounds[chunk + 1]):
            moved[:] = 0.0
            softmax_kernels.add_rows(moved, queries[i], Wt, 0, Wt.shape[0])
            winners[i] = one_sequence(
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
                outputs[i] if outputs.shape[0] > 0 else nothing,
                scratch[chunk],
            )


@parallel_part
def _sum(
    queries: FloatArray,
    labels: FloatArray,
    bounds: IntArray,
    kept: FloatArray,
    pulled: FloatArray,
    outputs: FloatArray,
    log_W: float,
    log_head: float,
    parts: FloatArray,
    head_parts: FloatArray,
) -> None:
    for chunk in numba.prange(bounds.shape[0] - 1):
        start, stop = bounds[chunk], bounds[chunk + 1]
        parts[chunk] = 0.0
        head_parts[chunk] = 0.0
        for i in range(start, stop):
            pulled[i] *= math.exp(kept[i, LOG] - log_W)
            if outputs.shape[0] > 0:
                softmax_kernels.add_one(
                    head_parts[chunk],
                    labels[i] * kept[i, SLOPE] * math.exp(kept[i, OWN] - log_head),
                    outputs[i],
                )
        for m in range(queries.shape[1]):
            softmax_kernels.add_rows(
                parts[chunk, m], queries[start:stop, m], pulled[start:stop], 0, stop - start
            )


@kernel
def _gradient(
    tokens: FloatArray,
    means: FloatArray,
    queries: FloatArray,
    labels: FloatArray,
    offsets: IntArray,
    bounds: IntArray,
    Wt: FloatArray,
    head: FloatArray,
    loss: int,
    winners: IntArray,
    kept: FloatArray,
    pulled: FloatArray,
    outputs: FloatArray,
    scratch: FloatArray,
    parts: FloatArray,
    head_parts: FloatArray,
) -> tuple[float, float, float]:
    """Leaves ascent directions in ``parts[0]`` and ``head_parts[0]``; returns the first one's norm
    and the logarithms of both factors.
    """
    _read(
        tokens,
        means,
        queries,
        labels,
        offsets,
        bounds,
        Wt,
        head,
        loss,
        winners,
        kept,
        pulled,
        outputs,
        scratch,
    )
    log_W, log_head = -np.inf, -np.inf
    for i in range(labels.shape[0]):
        log_W = max(log_W, kept[i, LOG])
        log_head = max(log_head, kept[i, OWN])
    bases = (log_W if log_W > -np.inf else 0.0, log_head if log_head > -np.inf else 0.0)
    _sum(queries, labels, bounds, kept, pulled, outputs, bases[0], bases[1], parts, head_parts)
    for chunk in range(1, parts.shape[0]):
        for m in range(parts.shape[1]):
            softmax_kernels.add_one(parts[0, m], 1.0, parts[chunk, m])
        softmax_kernels.add_one(head_parts[0], 1.0, head_parts[chunk])
    flat = parts[0].reshape(parts[0].size)
    return (euclidean(flat) if log_W > -np.inf else 0.0), log_W, log_head


@kernel
def euclidean(x: FloatArray) -> float:
    """Euclidean norm that neither overflows nor underflows."""
    peak = 0.0
    for j in range(x.shape[0]):
        peak = max(peak, abs(x[j]))
    if peak == 0.0:
        return 0.0
    total = 0.0
    for j in range(x.shape[0]):
        total += (x[j] / peak) ** 2
    return float(peak * math.sqrt(total))


@kernel
def _advance(
    tokens: FloatArray,
    means: FloatArray,
    queries: FloatArray,
    labels: FloatArray,
    offsets: IntArray,
    bounds: IntArray,
    Wt: FloatArray,
    head: FloatArray,
    loss: int,
    winners: IntArray,
    kept: FloatArray,
    pulled: FloatArray,
    outputs: FloatArray,
    scratch: FloatArray,
    parts: FloatArray,
    head_parts: FloatArray,
    first: int,
    factors: FloatArray,
    head_factors: FloatArray,
    lr: float,
    normalize: bool,
    head_lr: float,
    head_normalize: bool,
    has_intercept: bool,
) -> int:
    n = labels.shape[0]
    flat = Wt.reshape(Wt.size)
    joint = outputs.shape[0] > 0
    for k in range(factors.shape[0]):
        norm, log_W, log_head = _gradient(
            tokens,
            means,
            queries,
            labels,
            offsets,
            bounds,
            Wt,
            head,
            loss,
            winners,
            kept,
            pulled,
            outputs,
            scratch,
            parts,
            head_parts,
        )
        own = 0.0
        ascent = head_parts[0]
        if joint:
            own = euclidean(ascent)
        if norm == 0.0 and own == 0.0:
            return first + k
        if norm > 0.0:
            length = lr * factors[k] * (1.0 / norm if normalize else math.exp(log_W) / n)
            softmax_kernels.add_one(flat, length, parts[0].reshape(flat.size))
        if own > 0.0:
            length = (
                head_lr
                * head_factors[k]
                * (1.0 / own if head_normalize else math.exp(log_head) / n)
            )
            softmax_kernels.add_one(head if has_intercept else head[:-1], length, ascent)
    return -1


@kernel
def mean_loss(u: FloatArray, loss: int) -> float:
    """Mean loss of these margins."""
    total = 0.0
    for i in range(u.shape[0]):
        total += softmax_kernels.loss_value(u[i], loss)
    return float(total / u.shape[0])
