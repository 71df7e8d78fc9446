r"""The sequences of an instance as compiled engines read them, and the one pass over a sequence
that they share.

Visible tokens of all sequences lie end to end, so sequences of any lengths need no padding. One
pass does everything that a sequence needs while its tokens are in the cache: logits, softmax,
coefficients :math:`\beta_{it}`, and the pulled-back row :math:`p_i=\sum_t\beta_{it}x_{it}`, of
which the gradient is made: :math:`\nabla_W\propto\sum_ip_iz_i^\top`. Each :math:`p_i` is kept
without its factor, whose logarithm is kept beside it, so the factors meet only once the largest is
known.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from attsvm.data import AttentionData, FloatArray, IntArray, mean_tokens
from attsvm.dynamics.engine import Look, Setup
from attsvm.jit import kernel
from attsvm.models import softmax_kernels

# what is kept per sequence: margin, softmax sum, log factor of the weights' share, slope, log
# factor of the head's share
MARGIN, MASS, LOG, SLOPE, OWN = range(5)


class Packed(NamedTuple):
    """One instance; stacked, with an axis of instances in front of every array.

    Attributes:
        tokens: ``(N, d_x)``, minus the mean of their sequence, all sequences end to end.
        means: ``(n, d_x)``.
        queries: ``(n, d_z)``.
        labels: ``(n,)``.
        offsets: ``(n + 1,)``: where each sequence starts.
    """

    tokens: FloatArray
    means: FloatArray
    queries: FloatArray
    labels: FloatArray
    offsets: IntArray


class Found(NamedTuple):
    """What a pass leaves of every sequence; stacked, with an axis of runs in front.

    Attributes:
        winners: ``(n,)``, counted over all tokens.
        kept: ``(n, 5)``: ``MARGIN, MASS, LOG, SLOPE, OWN``.
        pulled: ``(n, d_x)``.
        outputs: ``(n, w)`` attention outputs, with ``w = 0`` when the head is fixed, ``d_x``
            without an intercept, and one more with it.
    """

    winners: IntArray
    kept: FloatArray
    pulled: FloatArray
    outputs: FloatArray


def pack(data: AttentionData, setup: Setup, width: int | None = None) -> Packed:
    """The visible tokens of one instance end to end, with zeros up to ``width`` rows."""
    offsets = softmax_kernels.offsets_of(data.lengths)
    means = mean_tokens(data)
    tokens = np.zeros((offsets[-1] if width is None else width, data.d_x))
    visible = data.tokens[data.mask]
    np.subtract(visible, np.repeat(means, data.lengths, axis=0), out=tokens[: len(visible)])
    queries = np.ones((data.n, 1)) if setup.prompt else np.array(data.queries)
    return Packed(tokens, means, queries, np.array(data.labels), offsets)


def instances_of(data: AttentionData, runs: int) -> list[AttentionData]:
    """One instance per run, or the one that all share."""
    return [data.instance(r) for r in range(runs)] if data.batch_shape else [data]


def stacked(instances: list[AttentionData], setup: Setup) -> tuple[Packed, list[IntArray]]:
    """All instances, and where each visible token stands in its sequence."""
    width = max(int(one.mask.sum()) for one in instances)
    parts = zip(*(pack(one, setup, width) for one in instances), strict=True)
    return Packed(*map(np.stack, parts)), [np.nonzero(one.mask)[1] for one in instances]


def room(lead: tuple[int, ...], n: int, d_x: int, width: int) -> Found:
    """Zeros for what passes leave, behind the axes ``lead``."""
    return Found(
        np.zeros((*lead, n), dtype=np.int64),
        np.zeros((*lead, n, 5)),
        np.zeros((*lead, n, d_x)),
        np.zeros((*lead, n, width)),
    )


def look(
    setup: Setup,
    found: Found,
    positions: list[IntArray],
    log_norm: FloatArray,
    W: FloatArray,
    head: FloatArray,
) -> Look:
    """What is recorded of a step, from what the passes left of every run.

    Args:
        setup: for the losses.
        found: stacked over runs.
        positions: per instance, where each visible token stands in its sequence.
        log_norm: ``(runs,)``: logarithm of the gradient's norm.
        W: ``(runs, d_x, d_z)``; copied.
        head: ``(runs, d_x + 1)``, the intercept last; copied.
    """
    runs = len(found.winners)
    return Look(
        np.array([mean_loss(found.kept[r, :, MARGIN], setup.loss[r]) for r in range(runs)]),
        np.stack([positions[r % len(positions)][found.winners[r]] for r in range(runs)]),
        1.0 / found.kept[:, :, MASS],
        log_norm,
        np.array(W, order="C"),
        head[:, :-1].copy(),
        head[:, -1].copy(),
    )


@kernel
def shared(data: Packed, r: int) -> Packed:
    """The instance of run ``r``, of a stack that may hold one for all."""
    k = min(r, data.tokens.shape[0] - 1)
    return Packed(data.tokens[k], data.means[k], data.queries[k], data.labels[k], data.offsets[k])


@kernel
def of_run(found: Found, r: int) -> Found:
    """The room of run ``r``."""
    return Found(found.winners[r], found.kept[r], found.pulled[r], found.outputs[r])


@kernel
def one_sequence(
    data: Packed,
    i: int,
    moved: FloatArray,
    head: FloatArray,
    loss: int,
    found: Found,
    scratch: FloatArray,
) -> None:
    """Everything that sequence ``i`` needs, written to its places in ``found``.

    ``moved`` is :math:`Wz_i`; ``scratch`` has seven rows of the longest sequence.
    """
    kept, pulled, output = found.kept[i], found.pulled[i], found.outputs[i]
    a, score, e, shifted, g, S, Q = (
        scratch[0],
        scratch[1],
        scratch[2],
        scratch[3],
        scratch[4],
        scratch[5],
        scratch[6],
    )
    lo = data.offsets[i]
    length = data.offsets[i + 1] - lo
    tokens, mean, label = data.tokens[lo : lo + length], data.means[i], data.labels[i]
    v = head[:-1]
    for t in range(length):
        a[t] = softmax_kernels.dot(tokens[t], moved)
        score[t] = label * softmax_kernels.dot(tokens[t], v)
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
    softmax_kernels.add_rows(pulled, b, tokens, 0, length)
    if output.shape[0] == v.shape[0] and not (tokens[winner] + mean).any():
        raw = tokens + mean  # zeros are exact again
        near = softmax_kernels.nearest(e[:length], raw, winner)
        kept[OWN] = mild + near
        softmax_kernels.probabilities(e[:length], near, Z, S[:length])
        softmax_kernels.combine(S[:length], raw, output)
    elif output.shape[0] > 0:
        for t in range(length):
            S[t] = S[t] / Z
        output[: v.shape[0]] = mean
        softmax_kernels.add_rows(output[: v.shape[0]], S, tokens, 0, length)
        output[v.shape[0] :] = 1.0
    found.winners[i] = lo + winner


@kernel
def largest_factors(kept: FloatArray) -> tuple[float, float]:
    """The largest log factors of the weights' and of the head's shares."""
    log_W, log_head = -np.inf, -np.inf
    for i in range(kept.shape[0]):
        log_W = max(log_W, kept[i, LOG])
        log_head = max(log_head, kept[i, OWN])
    return log_W, log_head


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
def mean_loss(u: FloatArray, loss: int) -> float:
    """Mean loss of these margins."""
    total = 0.0
    for i in range(u.shape[0]):
        total += softmax_kernels.loss_value(u[i], loss)
    return float(total / u.shape[0])
