r"""The training loops, compiled: a call trains some runs, and calls are shared out among threads
that need no interpreter.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from attsvm.data import BoolArray, FloatArray, IntArray
from attsvm.dynamics.next_token.sentence_kernels import (
    CROSS_ENTROPY,
    Corpus,
    attended_gradient,
    excess,
    gradient,
    log_probabilities,
    output_gradient,
    output_loss,
    room,
    sentences_of,
    spread,
    spread_output,
)
from attsvm.jit import kernel

NORMALIZED, PLAIN, POLYAK = 0, 1, 2
_FARTHEST = 1e300  # scores after a longer step would not be numbers


class Steps(NamedTuple):
    """How long steps are.

    Attributes:
        rule: ``NORMALIZED``, ``PLAIN`` or ``POLYAK``.
        lr: ``(runs,)``.
        decay: exponent by which step lengths fall with the number of the step.
        factor: that of Polyak's rule.
        floor: ``(runs,)``, its smallest loss.
        watch: whether rises of the loss are counted.
    """

    rule: int
    lr: FloatArray
    decay: float
    factor: float
    floor: FloatArray
    watch: bool


class Matrices(NamedTuple):
    """A trained matrix of every run: ``coordinates`` of what it has moved by, and its ``products``
    with the embeddings (scores, or logits), both ``(runs, K, K)``.
    """

    coordinates: FloatArray
    products: FloatArray


class Space(NamedTuple):
    """Gram matrices ``(runs, K, K)`` of the embeddings, and whether each is the identity."""

    gram: FloatArray
    orthonormal: BoolArray


class Records(NamedTuple):
    """What a training leaves.

    Attributes:
        marks: increasing steps at which to look.
        looks: ``(runs, marks, K, K)``.
        ends: ``(runs, 3)``: the step that could not be taken (-1 without one), see
            :class:`~attsvm.dynamics.next_token.course.Course`, the number of rises of the loss,
            counted from what stands there, and the step of the last one.
    """

    marks: IntArray
    looks: FloatArray
    ends: IntArray


@kernel
def _length(
    steps: Steps, r: int, t: int, top: float, size: float, sign: float, log_gap: float
) -> float:
    """What the gradient's coefficients are multiplied by; ``size`` is their norm, ``exp(top)``
    their factor.
    """
    fall = math.pow(t + 1.0, steps.decay) if steps.decay > 0.0 else 1.0
    rate = float(steps.lr[r] / fall)
    if steps.rule == NORMALIZED:
        return rate / size
    if steps.rule == PLAIN:
        return rate * math.exp(top)
    if steps.floor[r] != 0.0:
        gap = sign * math.exp(log_gap) - steps.floor[r]
        log_gap = math.log(gap) if gap > 0.0 else -np.inf
    elif sign < 0.0:
        return 0.0
    return rate * math.exp(log_gap - top - 2.0 * math.log(size)) / steps.factor


@kernel
def _record(weights: FloatArray, looks: FloatArray, marks: IntArray, mark: int, t: int) -> int:
    """Writes the looks that are due before step ``t``, from number ``mark`` on; returns the number
    of the next.
    """
    while mark < marks.shape[0] and marks[mark] <= t:
        looks[mark] = weights
        mark += 1
    return mark


@kernel
def _watch(end: IntArray, t: int, before: float, now: float) -> float:
    """Counts a rise of the loss."""
    if now > before:
        end[1] += 1
        end[2] = t
    return now


@kernel
def attention_runs(
    start: int,
    stop: int,
    matrices: Matrices,
    space: Space,
    all_values: FloatArray,
    corpus: Corpus,
    loss: int,
    textbook: bool,
    steps: Steps,
    records: Records,
) -> None:
    """The query-key matrix of the runs from ``start`` to before ``stop``, with these value tables
    ``(runs, K, classes)``.
    """
    marks = records.marks
    for r in range(start, stop):
        A, s, values = matrices.coordinates[r], matrices.products[r], all_values[r]
        sentences, looks, end = sentences_of(corpus, r), records.looks[r], records.ends[r]
        K, work = s.shape[0], room(sentences, values.shape[1])
        C, half, M = np.zeros((K, K)), np.zeros((K, K)), np.zeros((K, K))
        table = np.zeros((2, K, values.shape[1]))
        log_probabilities(values, table)
        before, mark = np.inf, 0
        for t in range(marks[-1] + 1):
            mark = _record(A, looks, marks, mark, t)
            if mark == marks.shape[0]:
                break
            sign, log_gap = 1.0, -np.inf
            if steps.watch or steps.rule == POLYAK:
                sign, log_gap = excess(s, values, table, sentences, loss, work)
                if steps.watch:
                    before = _watch(end, t, before, log_gap if sign > 0.0 else -np.inf)
            top = gradient(s, values, sentences, loss, textbook, work, C)
            square = 0.0
            if top > -np.inf:
                square = spread(space.gram[r], C, space.orthonormal[r], half, M)
            if not square > 0.0:
                end[0] = t
                break
            size = math.sqrt(square)
            step = _length(steps, r, t, top, size, sign, log_gap)
            if not step * size < _FARTHEST:
                end[0] = t
                break
            for q in range(K):
                for v in range(K):
                    A[q, v] -= step * C[q, v]
                    s[q, v] -= step * M[q, v]
        _record(A, looks, marks, mark, marks[-1])


@kernel
def output_runs(
    start: int,
    stop: int,
    matrices: Matrices,
    space: Space,
    all_x: IntArray,
    all_y: IntArray,
    run_start: IntArray,
    all_log_weight: FloatArray,
    steps: Steps,
    records: Records,
) -> None:
    """The output matrix of these runs, trained on single tokens ``x`` followed by ``y``."""
    marks = records.marks
    for r in range(start, stop):
        B, U, looks, end = (
            matrices.coordinates[r],
            matrices.products[r],
            records.looks[r],
            records.ends[r],
        )
        a, b = run_start[r], run_start[r + 1]
        x, y, log_weight = all_x[a:b], all_y[a:b], all_log_weight[a:b]
        rate, rows, line = np.zeros(len(x)), np.zeros((len(x), U.shape[1])), np.zeros(U.shape[1])
        F, M = np.zeros(U.shape), np.zeros(U.shape)
        before, mark = np.inf, 0
        for t in range(marks[-1] + 1):
            mark = _record(B, looks, marks, mark, t)
            if mark == marks.shape[0]:
                break
            if steps.watch:
                before = _watch(end, t, before, output_loss(U, x, y, log_weight, rows, line))
            top = output_gradient(U, x, y, log_weight, rate, rows, line, F)
            square = 0.0
            if top > -np.inf:
                square = spread_output(space.gram[r], F, space.orthonormal[r], M)
            if not square > 0.0:
                end[0] = t
                break
            step = _length(steps, r, t, top, math.sqrt(square), 1.0, 0.0)
            for q in range(U.shape[0]):
                for v in range(U.shape[1]):
                    B[q, v] -= step * F[q, v]
                    U[q, v] -= step * M[q, v]
        _record(B, looks, marks, mark, marks[-1])


@kernel
def joint_runs(
    start: int,
    stop: int,
    attention: Matrices,
    output: Matrices,
    space: Space,
    corpus: Corpus,
    together: bool,
    steps: Steps,
    lr_output: FloatArray,
    records: Records,
    outputs: FloatArray,
) -> None:
    """Both matrices of these runs at once, by normalised steps, each with its own norm or
    ``together`` with one.
    """
    marks = records.marks
    for r in range(start, stop):
        A, s, B, U = (
            attention.coordinates[r],
            attention.products[r],
            output.coordinates[r],
            output.products[r],
        )
        gram, orthonormal = space.gram[r], space.orthonormal[r]
        sentences = sentences_of(corpus, r)
        K, work = s.shape[0], room(sentences, U.shape[1])
        C, half, M = np.zeros((K, K)), np.zeros((K, K)), np.zeros((K, K))
        F, MF = np.zeros(U.shape), np.zeros(U.shape)
        mark = 0
        for t in range(marks[-1] + 1):
            _record(B, outputs[r], marks, mark, t)
            mark = _record(A, records.looks[r], marks, mark, t)
            if mark == marks.shape[0]:
                break
            top = gradient(s, U, sentences, CROSS_ENTROPY, False, work, C)
            square = spread(gram, C, orthonormal, half, M) if top > -np.inf else 0.0
            top_output = attended_gradient(sentences, work, F)
            square_output = spread_output(gram, F, orthonormal, MF) if top_output > -np.inf else 0.0
            size, size_output = math.sqrt(square), math.sqrt(square_output)
            if size == 0.0 and size_output == 0.0:
                records.ends[r, 0] = t
                break
            if together:  # one norm for both: each is divided by it at its own scale
                larger = max(
                    top + math.log(size) if size > 0.0 else -np.inf,
                    top_output + math.log(size_output) if size_output > 0.0 else -np.inf,
                )
                part = math.exp(top - larger) if size > 0.0 else 0.0
                part_output = math.exp(top_output - larger) if size_output > 0.0 else 0.0
                whole = math.hypot(part * size, part_output * size_output)
                step, step_output = part / whole, part_output / whole
            else:
                step = 1.0 / size if size > 0.0 else 0.0
                step_output = 1.0 / size_output if size_output > 0.0 else 0.0
            fade = math.pow(t + 1.0, -steps.decay)
            step *= steps.lr[r] * fade
            step_output *= lr_output[r] * fade
            for a in range(K):
                for v in range(K):
                    A[a, v] -= step * C[a, v]
                    s[a, v] -= step * M[a, v]
                for v in range(U.shape[1]):
                    B[a, v] -= step_output * F[a, v]
                    U[a, v] -= step_output * MF[a, v]
        _record(A, records.looks[r], marks, mark, marks[-1])
        _record(B, outputs[r], marks, mark, marks[-1])
