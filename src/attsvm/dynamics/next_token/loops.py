r"""The training loops, compiled: one call is one run, and runs are shared out among threads that need no interpreter.

Weights are kept in coordinates of the vocabulary, because gradients have that form: :math:`W=W_0+\sum_{qv}A_{qv}e_ve_q^\top` and
:math:`W_{ov}=W_0+\sum_{xv}B_{xv}\mathbf 1_ve_x^\top`. With the Gram matrix :math:`\Gamma=EE^\top`, scores ``S[q, v]``
:math:`=e_v^\top We_q` move by :math:`\Gamma C\Gamma` when ``A`` moves by ``C``, logits ``U[x, v]`` by :math:`\Gamma F` when ``B`` moves
by ``F``; squared norms of the steps are :math:`\langle C,\Gamma C\Gamma\rangle` and :math:`\langle F,\Gamma F\rangle`. Orthonormal
embeddings need no product at all.
"""

from __future__ import annotations

import math

import numpy as np

from attsvm.data import BoolArray, FloatArray, IntArray
from attsvm.dynamics.next_token.kernels import residual, sentence_gap, sentence_gradient, textbook_sentence
from attsvm.jit import kernel

NORMALIZED, PLAIN, POLYAK = 0, 1, 2


@kernel
def gradient(
    s: FloatArray, values: FloatArray, token: IntArray, log_count: FloatArray, start: IntArray, query: IntArray, own: IntArray,
    y: IntArray, log_weight: FloatArray, loss: int, textbook: bool,
    work: FloatArray, rate: FloatArray, slope: FloatArray, rows: FloatArray, line: FloatArray, C: FloatArray,
) -> float:  # fmt: skip
    r"""Writes ``C`` with :math:`\nabla_{W}L=e^{top}\sum_{qv}C_{qv}e_ve_q^\top` for one run; returns ``top``, -inf for zero.

    ``work`` is ``(4, tokens)``: logits, attention, scratch, coefficients. ``rows`` holds the residuals, ``slope`` the logarithms of
    their factors; both are what the gradient of the output matrix needs.
    """
    D, S, h, c = work[0], work[1], work[2], work[3]
    top = -np.inf
    for n in range(query.shape[0]):
        lo, hi = start[n], start[n + 1]
        if textbook:
            textbook_sentence(s[query[n]], values, token, log_count, lo, hi, y[n], D, S, h, c, line[0], rows[n])
            rate[n], slope[n] = log_weight[n], 0.0
        else:
            rate[n], slope[n] = sentence_gradient(
                s[query[n]], values, token, log_count, lo, hi, own[n], y[n], loss, D, S, h, c, line[0], rows[n], line[1]
            )
            rate[n] += log_weight[n]
        top = max(top, rate[n])
    C[:] = 0.0
    if top == -np.inf:
        return top
    for n in range(query.shape[0]):
        if rate[n] > top - 745.0:
            share, into = math.exp(rate[n] - top), C[query[n]]
            for j in range(start[n], start[n + 1]):
                into[token[j]] += share * c[j]
    return top


@kernel
def spread(gram: FloatArray, C: FloatArray, orthonormal: bool, half: FloatArray, M: FloatArray) -> float:
    r"""Writes :math:`M=\Gamma C\Gamma` and returns :math:`\langle C,M\rangle`."""
    total = 0.0
    if orthonormal:
        for q in range(C.shape[0]):
            for v in range(C.shape[1]):
                M[q, v] = C[q, v]
                total += C[q, v] * C[q, v]
        return total
    np.dot(C, gram, half)
    np.dot(gram, half, M)
    for q in range(C.shape[0]):
        for v in range(C.shape[1]):
            total += C[q, v] * M[q, v]
    return total


@kernel
def excess(
    s: FloatArray, values: FloatArray, token: IntArray, log_count: FloatArray, start: IntArray, query: IntArray, own: IntArray,
    y: IntArray, log_weight: FloatArray, loss: int, work: FloatArray, line: FloatArray,
) -> tuple[float, float]:  # fmt: skip
    """``(sign, log|gap|)`` of the weighted loss over its floor."""
    top = -np.inf
    gaps, signs = work[4], work[5]
    for n in range(query.shape[0]):
        signs[n], gaps[n], _ = sentence_gap(
            s[query[n]], values, token, log_count, start[n], start[n + 1], own[n], y[n], loss, work[0], work[1], line[0]
        )
        gaps[n] += log_weight[n]
        top = max(top, gaps[n])
    if top == -np.inf:
        return 1.0, top
    total = 0.0
    for n in range(query.shape[0]):
        total += signs[n] * math.exp(gaps[n] - top)
    return (1.0 if total >= 0.0 else -1.0), (top + math.log(abs(total)) if total != 0.0 else -np.inf)


@kernel
def _length(rule: int, rate: float, factor: float, top: float, size: float, log_gap: float, floor: float) -> float:
    """What the gradient's coefficients are multiplied by; ``size`` is their norm, ``exp(top)`` their factor."""
    if rule == NORMALIZED:
        return rate / size
    if rule == PLAIN:
        return rate * math.exp(top)
    if floor != 0.0:
        log_gap = math.log(math.exp(log_gap) - floor) if math.exp(log_gap) > floor else -np.inf
    return rate * math.exp(log_gap - top - 2.0 * math.log(size)) / factor


@kernel
def _one_attention(
    A: FloatArray, s: FloatArray, gram: FloatArray, orthonormal: bool, values: FloatArray, token: IntArray, log_count: FloatArray,
    start: IntArray, query: IntArray, own: IntArray, y: IntArray, log_weight: FloatArray, loss: int, textbook: bool,
    rule: int, lr: float, decay: float, factor: float, floor: float, watch: bool, marks: IntArray, looks: FloatArray,
) -> tuple[int, int, int]:  # fmt: skip
    """One run; returns the step whose gradient was exactly zero, the number of rises of the loss, and the step of the last one."""
    K, N = s.shape[0], query.shape[0]
    work = np.zeros((6, max(token.shape[0], N)))
    rate, slope, rows, line = np.zeros(N), np.zeros(N), np.zeros((N, values.shape[1])), np.zeros((2, values.shape[1]))
    C, half, M = np.zeros((K, K)), np.zeros((K, K)), np.zeros((K, K))
    stopped, rises, last_rise, before = -1, 0, -1, np.inf
    mark = 0
    for t in range(marks[-1] + 1):
        while mark < marks.shape[0] and marks[mark] == t:
            looks[mark] = A
            mark += 1
        if mark == marks.shape[0]:
            break
        log_gap = -np.inf
        if watch or rule == POLYAK:
            sign, log_gap = excess(s, values, token, log_count, start, query, own, y, log_weight, loss, work, line)
            if watch:
                now = log_gap if sign > 0.0 else -np.inf
                if now > before:
                    rises += 1
                    last_rise = t
                before = now
        top = gradient(
            s, values, token, log_count, start, query, own, y, log_weight, loss, textbook, work, rate, slope, rows, line, C
        )  # fmt: skip
        square = spread(gram, C, orthonormal, half, M) if top > -np.inf else 0.0
        if not square > 0.0:
            stopped = t
            break
        step = _length(rule, lr / math.pow(t + 1.0, decay) if decay > 0.0 else lr, factor, top, math.sqrt(square), log_gap, floor)
        for q in range(K):
            for v in range(K):
                A[q, v] -= step * C[q, v]
                s[q, v] -= step * M[q, v]
    while mark < marks.shape[0]:
        looks[mark] = A
        mark += 1
    return stopped, rises, last_rise


@kernel
def attention_run(
    r: int, A: FloatArray, s: FloatArray, gram: FloatArray, orthonormal: BoolArray, values: FloatArray, token: IntArray,
    log_count: FloatArray, start: IntArray, run_start: IntArray, query: IntArray, own: IntArray, y: IntArray, log_weight: FloatArray,
    loss: int, textbook: bool, rule: int, lr: FloatArray, decay: float, factor: float, floor: FloatArray, watch: bool, marks: IntArray,
    looks: FloatArray, ends: IntArray,
) -> None:  # fmt: skip
    """Run ``r`` of all; ``looks`` is ``(runs, marks, K, K)``, ``ends`` ``(runs, 3)`` what :func:`_one_attention` returns."""
    a, b = run_start[r], run_start[r + 1]
    lo, hi = start[a], start[b]
    ends[r, 0], ends[r, 1], ends[r, 2] = _one_attention(
        A[r], s[r], gram[r], orthonormal[r], values[r], token[lo:hi], log_count[lo:hi], start[a : b + 1] - lo, query[a:b],
        own[a:b] - lo, y[a:b], log_weight[a:b], loss, textbook, rule, lr[r], decay, factor, floor[r], watch, marks, looks[r],
    )  # fmt: skip


@kernel
def output_gradient(
    U: FloatArray, x: IntArray, y: IntArray, log_weight: FloatArray, rate: FloatArray, rows: FloatArray, line: FloatArray, F: FloatArray
) -> float:
    r"""Writes ``F`` with :math:`\nabla_{W_{ov}}L_0=e^{top}\sum_{xv}F_{xv}\mathbf 1_ve_x^\top`; returns ``top``."""
    top = -np.inf
    for k in range(x.shape[0]):
        log_slope, _ = residual(U[x[k]], y[k], rows[k], line)
        rate[k] = log_slope + log_weight[k]
        top = max(top, rate[k])
    F[:] = 0.0
    for k in range(x.shape[0]):
        if rate[k] > top - 745.0:
            share, into = math.exp(rate[k] - top), F[x[k]]
            for v in range(F.shape[1]):
                into[v] += share * rows[k, v]
    return top


@kernel
def spread_output(gram: FloatArray, F: FloatArray, orthonormal: bool, M: FloatArray) -> float:
    r"""Writes :math:`M=\Gamma F` and returns :math:`\langle F,M\rangle`."""
    if orthonormal:
        M[:] = F
    else:
        np.dot(gram, F, M)
    total = 0.0
    for a in range(F.shape[0]):
        for v in range(F.shape[1]):
            total += F[a, v] * M[a, v]
    return total


@kernel
def output_loss(U: FloatArray, x: IntArray, y: IntArray, log_weight: FloatArray, rows: FloatArray, line: FloatArray) -> float:
    """The weighted cross-entropy of single tokens; positive terms, so no cancellation."""
    total = 0.0
    for k in range(x.shape[0]):
        _, surprise = residual(U[x[k]], y[k], rows[k], line)
        total += math.exp(log_weight[k]) * surprise
    return total


@kernel
def _one_output(
    B: FloatArray, U: FloatArray, gram: FloatArray, orthonormal: bool, x: IntArray, y: IntArray, log_weight: FloatArray,
    rule: int, lr: float, decay: float, watch: bool, marks: IntArray, looks: FloatArray,
) -> tuple[int, int, int]:  # fmt: skip
    rate, rows, line = np.zeros(len(x)), np.zeros((len(x), U.shape[1])), np.zeros(U.shape[1])
    F, M = np.zeros(U.shape), np.zeros(U.shape)
    stopped, rises, last_rise, before = -1, 0, -1, np.inf
    mark = 0
    for t in range(marks[-1] + 1):
        while mark < marks.shape[0] and marks[mark] == t:
            looks[mark] = B
            mark += 1
        if mark == marks.shape[0]:
            break
        if watch:
            now = output_loss(U, x, y, log_weight, rows, line)
            if now > before:
                rises += 1
                last_rise = t
            before = now
        top = output_gradient(U, x, y, log_weight, rate, rows, line, F)
        square = spread_output(gram, F, orthonormal, M) if top > -np.inf else 0.0
        if not square > 0.0:
            stopped = t
            break
        step = _length(rule, lr / math.pow(t + 1.0, decay) if decay > 0.0 else lr, 1.0, top, math.sqrt(square), 0.0, 0.0)
        for a in range(U.shape[0]):
            for v in range(U.shape[1]):
                B[a, v] -= step * F[a, v]
                U[a, v] -= step * M[a, v]
    while mark < marks.shape[0]:
        looks[mark] = B
        mark += 1
    return stopped, rises, last_rise


@kernel
def output_run(
    r: int, B: FloatArray, U: FloatArray, gram: FloatArray, orthonormal: BoolArray, x: IntArray, y: IntArray, run_start: IntArray,
    log_weight: FloatArray, rule: int, lr: FloatArray, decay: float, watch: bool, marks: IntArray, looks: FloatArray, ends: IntArray,
) -> None:  # fmt: skip
    """The output matrix of run ``r``, trained on single tokens ``x`` followed by ``y``."""
    a, b = run_start[r], run_start[r + 1]
    ends[r, 0], ends[r, 1], ends[r, 2] = _one_output(
        B[r], U[r], gram[r], orthonormal[r], x[a:b], y[a:b], log_weight[a:b], rule, lr[r], decay, watch, marks, looks[r]
    )


@kernel
def _one_joint(
    A: FloatArray, s: FloatArray, B: FloatArray, U: FloatArray, gram: FloatArray, orthonormal: bool, token: IntArray,
    log_count: FloatArray, start: IntArray, query: IntArray, own: IntArray, y: IntArray, log_weight: FloatArray, together: bool,
    lr: float, lr_output: float, decay: float, marks: IntArray, looks: FloatArray, outputs: FloatArray,
) -> int:  # fmt: skip
    K, N = s.shape[0], query.shape[0]
    work = np.zeros((6, max(token.shape[0], N)))
    rate, slope, rows, line = np.zeros(N), np.zeros(N), np.zeros((N, U.shape[1])), np.zeros((2, U.shape[1]))
    C, half, M = np.zeros((K, K)), np.zeros((K, K)), np.zeros((K, K))
    F, MF = np.zeros(U.shape), np.zeros(U.shape)
    mark, stopped = 0, -1
    for t in range(marks[-1] + 1):
        while mark < marks.shape[0] and marks[mark] == t:
            looks[mark] = A
            outputs[mark] = B
            mark += 1
        if mark == marks.shape[0]:
            break
        top = gradient(s, U, token, log_count, start, query, own, y, log_weight, 0, False, work, rate, slope, rows, line, C)
        square = spread(gram, C, orthonormal, half, M) if top > -np.inf else 0.0
        top_output = -np.inf
        for n in range(N):
            slope[n] += log_weight[n]
            top_output = max(top_output, slope[n])
        F[:] = 0.0
        for n in range(N):
            if slope[n] > top_output - 745.0:
                share = math.exp(slope[n] - top_output)
                for j in range(start[n], start[n + 1]):
                    weight, into = share * work[1, j], F[token[j]]
                    for v in range(U.shape[1]):
                        into[v] += weight * rows[n, v]
        square_output = spread_output(gram, F, orthonormal, MF) if top_output > -np.inf else 0.0
        size, size_output = math.sqrt(square), math.sqrt(square_output)
        if size == 0.0 and size_output == 0.0:
            stopped = t
            break
        if together:  # one norm for both: each is divided by it at its own scale
            larger = max(
                top + math.log(size) if size > 0.0 else -np.inf, top_output + math.log(size_output) if size_output > 0.0 else -np.inf
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
    while mark < marks.shape[0]:
        looks[mark] = A
        outputs[mark] = B
        mark += 1
    return stopped


@kernel
def joint_run(
    r: int, A: FloatArray, s: FloatArray, B: FloatArray, U: FloatArray, gram: FloatArray, orthonormal: BoolArray, token: IntArray,
    log_count: FloatArray, start: IntArray, run_start: IntArray, query: IntArray, own: IntArray, y: IntArray, log_weight: FloatArray,
    together: bool, lr: FloatArray, lr_output: FloatArray, decay: float, marks: IntArray, looks: FloatArray, outputs: FloatArray,
    ends: IntArray,
) -> None:  # fmt: skip
    """Both matrices of run ``r`` at once, each with its own norm or ``together`` with one."""
    a, b = run_start[r], run_start[r + 1]
    lo, hi = start[a], start[b]
    ends[r, 0] = _one_joint(
        A[r], s[r], B[r], U[r], gram[r], orthonormal[r], token[lo:hi], log_count[lo:hi], start[a : b + 1] - lo, query[a:b],
        own[a:b] - lo, y[a:b], log_weight[a:b], together, lr[r], lr_output[r], decay, marks, looks[r], outputs[r],
    )  # fmt: skip


@kernel
def look_at(
    s: FloatArray, values: FloatArray, token: IntArray, log_count: FloatArray, start: IntArray, run_start: IntArray, query: IntArray,
    own: IntArray, y: IntArray, log_weight: FloatArray, loss: int, textbook: bool, C: FloatArray, tops: FloatArray, gaps: FloatArray,
) -> None:  # fmt: skip
    """Gradients and gaps at scores ``(looks, runs, K, K)``; ``values`` is ``(1 or looks, runs, K, classes)``, ``gaps`` ``(2, ...)``."""
    for k in range(s.shape[0]):
        u = values[min(k, values.shape[0] - 1)]
        for r in range(s.shape[1]):
            a, b = run_start[r], run_start[r + 1]
            lo, hi = start[a], start[b]
            work = np.zeros((6, max(hi - lo, b - a)))
            rate, rows, line = np.zeros((2, b - a)), np.zeros((b - a, u.shape[2])), np.zeros((2, u.shape[2]))
            gaps[0, k, r], gaps[1, k, r] = excess(
                s[k, r], u[r], token[lo:hi], log_count[lo:hi], start[a : b + 1] - lo, query[a:b], own[a:b] - lo, y[a:b],
                log_weight[a:b], loss, work, line,
            )  # fmt: skip
            tops[k, r] = gradient(
                s[k, r], u[r], token[lo:hi], log_count[lo:hi], start[a : b + 1] - lo, query[a:b], own[a:b] - lo, y[a:b],
                log_weight[a:b], loss, textbook, work, rate[0], rate[1], rows, line, C[k, r],
            )  # fmt: skip
