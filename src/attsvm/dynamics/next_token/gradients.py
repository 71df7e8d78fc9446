r"""Gradients, gaps and steps of all sentences of one run, compiled.

Weights are kept in coordinates of the vocabulary, because gradients have that form:
:math:`W=W_0+\sum_{qv}A_{qv}e_ve_q^\top` and
:math:`W_{ov}=W_0+\sum_{xv}B_{xv}\mathbf 1_ve_x^\top`. With the Gram matrix :math:`\Gamma=EE^\top`,
scores ``S[q, v]``
:math:`=e_v^\top We_q` move by :math:`\Gamma C\Gamma` when ``A`` moves by ``C``, logits ``U[x, v]``
by :math:`\Gamma F` when ``B`` moves by ``F``; squared norms of the steps are
:math:`\langle C,\Gamma C\Gamma\rangle` and :math:`\langle F,\Gamma F\rangle`. Orthonormal
embeddings need no product at all.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from attsvm.data import FloatArray, IntArray
from attsvm.dynamics.next_token.sentence_kernels import (
    Sentences,
    Work,
    log_probabilities,
    residual,
    sentence_gap,
    sentence_gradient,
    textbook_sentence,
)
from attsvm.jit import kernel


class Corpus(NamedTuple):
    """The sentences of all runs end to end, see :class:`~attsvm.dynamics.next_token.Problem`;
    ``start`` counts tokens, ``run_start`` sentences.
    """

    token: IntArray
    log_count: FloatArray
    start: IntArray
    run_start: IntArray
    query: IntArray
    own: IntArray
    label: IntArray
    log_weight: FloatArray


@kernel
def sentences_of(corpus: Corpus, r: int) -> Sentences:
    """The sentences of run ``r`` of all."""
    start = corpus.start
    a, b = corpus.run_start[r], corpus.run_start[r + 1]
    lo, hi = start[a], start[b]
    return Sentences(
        corpus.token[lo:hi],
        corpus.log_count[lo:hi],
        start[a : b + 1] - lo,
        corpus.query[a:b],
        corpus.own[a:b] - lo,
        corpus.label[a:b],
        corpus.log_weight[a:b],
    )


@kernel
def room(sentences: Sentences, classes: int) -> Work:
    """An empty :class:`Work`."""
    N = len(sentences.query)
    tokens = np.zeros((6, max(len(sentences.token), N)))
    return Work(tokens, np.zeros(N), np.zeros(N), np.zeros((N, classes)), np.zeros((2, classes)))


@kernel
def gradient(
    s: FloatArray,
    values: FloatArray,
    sentences: Sentences,
    loss: int,
    textbook: bool,
    work: Work,
    C: FloatArray,
) -> float:
    r"""Writes ``C`` with :math:`\nabla_{W}L=e^{top}\sum_{qv}C_{qv}e_ve_q^\top` for one run; returns
    ``top``, -inf for zero.
    """
    token, start, query, log_weight = (
        sentences.token,
        sentences.start,
        sentences.query,
        sentences.log_weight,
    )
    c, rate, slope = work.tokens[3], work.rate, work.slope
    top = -np.inf
    for n in range(query.shape[0]):
        if textbook:
            textbook_sentence(s[query[n]], values, sentences, n, work)
            rate[n], slope[n] = log_weight[n], 0.0
        else:
            rate[n], slope[n] = sentence_gradient(s[query[n]], values, sentences, n, loss, work)
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
def spread(
    gram: FloatArray, C: FloatArray, orthonormal: bool, half: FloatArray, M: FloatArray
) -> float:
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
    s: FloatArray,
    values: FloatArray,
    table: FloatArray,
    sentences: Sentences,
    loss: int,
    work: Work,
) -> tuple[float, float]:
    """``(sign, log|gap|)`` of the weighted loss over its floor."""
    query, log_weight = sentences.query, sentences.log_weight
    gaps, signs = work.tokens[4], work.tokens[5]
    top = -np.inf
    for n in range(query.shape[0]):
        signs[n], gaps[n] = sentence_gap(s[query[n]], values, table, sentences, n, loss, work)
        gaps[n] += log_weight[n]
        top = max(top, gaps[n])
    if top == -np.inf:
        return 1.0, top
    total = 0.0
    for n in range(query.shape[0]):
        total += signs[n] * math.exp(gaps[n] - top)
    return (1.0 if total >= 0.0 else -1.0), (
        top + math.log(abs(total)) if total != 0.0 else -np.inf
    )


@kernel
def output_gradient(
    U: FloatArray,
    x: IntArray,
    y: IntArray,
    log_weight: FloatArray,
    rate: FloatArray,
    rows: FloatArray,
    line: FloatArray,
    F: FloatArray,
) -> float:
    r"""Writes ``F`` with :math:`\nabla_{W_{ov}}L_0=e^{top}\sum_{xv}F_{xv}\mathbf 1_ve_x^\top`;
    returns ``top``.
    """
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
def attended_gradient(sentences: Sentences, work: Work, F: FloatArray) -> float:
    """:func:`output_gradient` of whole sentences, from what :func:`gradient` left in ``work``;
    weighs ``work.slope``.
    """
    token, start = sentences.token, sentences.start
    S, slope, rows = work.tokens[1], work.slope, work.rows
    top = -np.inf
    for n in range(slope.shape[0]):
        slope[n] += sentences.log_weight[n]
        top = max(top, slope[n])
    F[:] = 0.0
    for n in range(slope.shape[0]):
        if slope[n] > top - 745.0:
            share = math.exp(slope[n] - top)
            for j in range(start[n], start[n + 1]):
                weight, into = share * S[j], F[token[j]]
                for v in range(F.shape[1]):
                    into[v] += weight * rows[n, v]
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
def output_loss(
    U: FloatArray,
    x: IntArray,
    y: IntArray,
    log_weight: FloatArray,
    rows: FloatArray,
    line: FloatArray,
) -> float:
    """The weighted cross-entropy of single tokens; positive terms, so no cancellation."""
    total = 0.0
    for k in range(x.shape[0]):
        _, surprise = residual(U[x[k]], y[k], rows[k], line)
        total += math.exp(log_weight[k]) * surprise
    return total


@kernel
def look_at(
    s: FloatArray,
    values: FloatArray,
    corpus: Corpus,
    loss: int,
    textbook: bool,
    C: FloatArray,
    tops: FloatArray,
    gaps: FloatArray,
) -> None:
    """Gradients and gaps at scores ``(looks, runs, K, K)``; ``values`` is
    ``(1 or looks, runs, K, classes)``, ``gaps`` ``(2, ...)``.
    """
    for k in range(s.shape[0]):
        u = values[min(k, values.shape[0] - 1)]
        for r in range(s.shape[1]):
            sentences = sentences_of(corpus, r)
            work, table = room(sentences, u.shape[2]), np.zeros((2, u.shape[1], u.shape[2]))
            log_probabilities(u[r], table)
            gaps[0, k, r], gaps[1, k, r] = excess(s[k, r], u[r], table, sentences, loss, work)
            tops[k, r] = gradient(s[k, r], u[r], sentences, loss, textbook, work, C[k, r])
