r"""The training loops, compiled: one call is one run, and runs are shared out among threads that
need no interpreter.
"""

from __future__ import annotations

import math

import numpy as np

from attsvm.data import BoolArray, FloatArray, IntArray
from attsvm.dynamics.next_token.gradients import (
    Sentences,
    attended_gradient,
    excess,
    gradient,
    output_gradient,
    output_loss,
    room,
    sentences_of,
    spread,
    spread_output,
)
from attsvm.dynamics.next_token.sentence_kernels import CROSS_ENTROPY, log_probabilities
from attsvm.jit import kernel

NORMALIZED, PLAIN, POLYAK = 0, 1, 2
_FARTHEST = 1e300  # scores after a longer step would not be numbers


@kernel
def _length(
    rule: int,
    rate: float,
    factor: float,
    top: float,
    size: float,
    sign: float,
    log_gap: float,
    floor: float,
) -> float:
    """What the gradient's coefficients are multiplied by; ``size`` is their norm, ``exp(top)``
    their factor.
    """
    if rule == NORMALIZED:
        return rate / size
    if rule == PLAIN:
        return rate * math.exp(top)
    if floor != 0.0:
        gap = sign * math.exp(log_gap) - floor
        log_gap = math.log(gap) if gap > 0.0 else -np.inf
    elif sign < 0.0:
        return 0.0
    return rate * math.exp(log_gap - top - 2.0 * math.log(size)) / factor


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
def _one_attention(
    A: FloatArray,
    s: FloatArray,
    gram: FloatArray,
    orthonormal: bool,
    values: FloatArray,
    sentences: Sentences,
    loss: int,
    textbook: bool,
    rule: int,
    lr: float,
    decay: float,
    factor: float,
    floor: float,
    watch: bool,
    marks: IntArray,
    looks: FloatArray,
    end: IntArray,
) -> None:
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
        if watch or rule == POLYAK:
            sign, log_gap = excess(s, values, table, sentences, loss, work)
            if watch:
                before = _watch(end, t, before, log_gap if sign > 0.0 else -np.inf)
        top = gradient(s, values, sentences, loss, textbook, work, C)
        square = spread(gram, C, orthonormal, half, M) if top > -np.inf else 0.0
        if not square > 0.0:
            end[0] = t
            break
        size = math.sqrt(square)
        step = _length(
            rule,
            lr / math.pow(t + 1.0, decay) if decay > 0.0 else lr,
            factor,
            top,
            size,
            sign,
            log_gap,
            floor,
        )
        if not step * size < _FARTHEST:
            end[0] = t
            break
        for q in range(K):
            for v in range(K):
                A[q, v] -= step * C[q, v]
                s[q, v] -= step * M[q, v]
    _record(A, looks, marks, mark, marks[-1])


@kernel
def attention_run(
    r: int,
    A: FloatArray,
    s: FloatArray,
    gram: FloatArray,
    orthonormal: BoolArray,
    values: FloatArray,
    token: IntArray,
    log_count: FloatArray,
    start: IntArray,
    run_start: IntArray,
    query: IntArray,
    own: IntArray,
    y: IntArray,
    log_weight: FloatArray,
    loss: int,
    textbook: bool,
    rule: int,
    lr: FloatArray,
    decay: float,
    factor: float,
    floor: FloatArray,
    watch: bool,
    marks: IntArray,
    looks: FloatArray,
    ends: IntArray,
) -> None:
    """Run ``r`` of all.

    ``looks`` is ``(runs, marks, K, K)``. ``ends`` is ``(runs, 3)``: the step that could not be
    taken (-1 without one), see
    :class:`~attsvm.dynamics.next_token.course.Course`, the number of rises of the loss, counted
    from what stands there, and the step of the last one.
    """
    sentences = sentences_of(r, token, log_count, start, run_start, query, own, y, log_weight)
    _one_attention(
        A[r],
        s[r],
        gram[r],
        orthonormal[r],
        values[r],
        sentences,
        loss,
        textbook,
        rule,
        lr[r],
        decay,
        factor,
        floor[r],
        watch,
        marks,
        looks[r],
        ends[r],
    )


@kernel
def _one_output(
    B: FloatArray,
    U: FloatArray,
    gram: FloatArray,
    orthonormal: bool,
    x: IntArray,
    y: IntArray,
    log_weight: FloatArray,
    rule: int,
    lr: float,
    decay: float,
    watch: bool,
    marks: IntArray,
    looks: FloatArray,
    end: IntArray,
) -> None:
    rate, rows, line = np.zeros(len(x)), np.zeros((len(x), U.shape[1])), np.zeros(U.shape[1])
    F, M = np.zeros(U.shape), np.zeros(U.shape)
    before, mark = np.inf, 0
    for t in range(marks[-1] + 1):
        mark = _record(B, looks, marks, mark, t)
        if mark == marks.shape[0]:
            break
        if watch:
            before = _watch(end, t, before, output_loss(U, x, y, log_weight, rows, line))
        top = output_gradient(U, x, y, log_weight, rate, rows, line, F)
        square = spread_output(gram, F, orthonormal, M) if top > -np.inf else 0.0
        if not square > 0.0:
            end[0] = t
            break
        step = _length(
            rule,
            lr / math.pow(t + 1.0, decay) if decay > 0.0 else lr,
            1.0,
            top,
            math.sqrt(square),
            1.0,
            0.0,
            0.0,
        )
        for a in range(U.shape[0]):
            for v in range(U.shape[1]):
                B[a, v] -= step * F[a, v]
                U[a, v] -= step * M[a, v]
    _record(B, looks, marks, mark, marks[-1])


@kernel
def output_run(
    r: int,
    B: FloatArray,
    U: FloatArray,
    gram: FloatArray,
    orthonormal: BoolArray,
    x: IntArray,
    y: IntArray,
    run_start: IntArray,
    log_weight: FloatArray,
    rule: int,
    lr: FloatArray,
    decay: float,
    watch: bool,
    marks: IntArray,
    looks: FloatArray,
    ends: IntArray,
) -> None:
    """The output matrix of run ``r``, trained on single tokens ``x`` followed by ``y``; see
    :func:`attention_run`.
    """
    a, b = run_start[r], run_start[r + 1]
    _one_output(
        B[r],
        U[r],
        gram[r],
        orthonormal[r],
        x[a:b],
        y[a:b],
        log_weight[a:b],
        rule,
        lr[r],
        decay,
        watch,
        marks,
        looks[r],
        ends[r],
    )


@kernel
def _one_joint(
    A: FloatArray,
    s: FloatArray,
    B: FloatArray,
    U: FloatArray,
    gram: FloatArray,
    orthonormal: bool,
    sentences: Sentences,
    together: bool,
    lr: float,
    lr_output: float,
    decay: float,
    marks: IntArray,
    looks: FloatArray,
    outputs: FloatArray,
    end: IntArray,
) -> None:
    K, work = s.shape[0], room(sentences, U.shape[1])
    C, half, M = np.zeros((K, K)), np.zeros((K, K)), np.zeros((K, K))
    F, MF = np.zeros(U.shape), np.zeros(U.shape)
    mark = 0
    for t in range(marks[-1] + 1):
        _record(B, outputs, marks, mark, t)
        mark = _record(A, looks, marks, mark, t)
        if mark == marks.shape[0]:
            break
        top = gradient(s, U, sentences, CROSS_ENTROPY, False, work, C)
        square = spread(gram, C, orthonormal, half, M) if top > -np.inf else 0.0
        top_output = attended_gradient(sentences, work, F)
        square_output = spread_output(gram, F, orthonormal, MF) if top_output > -np.inf else 0.0
        size, size_output = math.sqrt(square), math.sqrt(square_output)
        if size == 0.0 and size_output == 0.0:
            end[0] = t
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
        fade = math.pow(t + 1.0, -decay)
        step *= lr * fade
        step_output *= lr_output * fade
        for a in range(K):
            for v in range(K):
                A[a, v] -= step * C[a, v]
                s[a, v] -= step * M[a, v]
            for v in range(U.shape[1]):
                B[a, v] -= step_output * F[a, v]
                U[a, v] -= step_output * MF[a, v]
    _record(A, looks, marks, mark, marks[-1])
    _record(B, outputs, marks, mark, marks[-1])


@kernel
def joint_run(
    r: int,
    A: FloatArray,
    s: FloatArray,
    B: FloatArray,
    U: FloatArray,
    gram: FloatArray,
    orthonormal: BoolArray,
    token: IntArray,
    log_count: FloatArray,
    start: IntArray,
    run_start: IntArray,
    query: IntArray,
    own: IntArray,
    y: IntArray,
    log_weight: FloatArray,
    together: bool,
    lr: FloatArray,
    lr_output: FloatArray,
    decay: float,
    marks: IntArray,
    looks: FloatArray,
    outputs: FloatArray,
    ends: IntArray,
) -> None:
    """Both matrices of run ``r`` at once, each with its own norm or ``together`` with one; see
    :func:`attention_run`.
    """
    sentences = sentences_of(r, token, log_count, start, run_start, query, own, y, log_weight)
    _one_joint(
        A[r],
        s[r],
        B[r],
        U[r],
        gram[r],
        orthonormal[r],
        sentences,
        together,
        lr[r],
        lr_output[r],
        decay,
        marks,
        looks[r],
        outputs[r],
        ends[r],
    )
