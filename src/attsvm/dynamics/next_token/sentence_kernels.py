r"""One sentence of a next-token model, and gradients, gaps and steps of all of them, compiled.

A sentence is its distinct tokens with multiplicities. Logits are read relative to the heaviest
token, the leader, so that

    D_j = s_j + log m_j - (s_l + log m_l) <= 0        phi_j = exp(D_j) / Z        Z = sum_j exp(D_j)
    h_j = r . (u_j - u_l)                             r = dL / d o, u_j the row of the value table
    dL / ds_j = phi_j (h_j - sum_i phi_i h_i) = exp(top) (Q_j - exp(D_j) sum_i Q_i / Z) / Z,   Q_j =
    exp(D_j - top) h_j

with ``top`` the largest ``D_j`` of a rival with ``h_j != 0``: numbers of order one, and a factor
that may be any power of ten and is kept as a logarithm. The leader's derivative is minus the sum of
the others, since softmax does not see a common shift. The output's residual is treated alike:
``r = exp(R) r'`` with ``r'_y = -sum_{v != y} r'_v``, never ``p_y - 1``.

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
from attsvm.jit import kernel, summing_kernel

_LOG2E = 1.0 / math.log(2.0)
_LN2_HIGH = 6.93147180369123816490e-01  # its product with an exponent below 2^20 is exact
_LN2_LOW = 1.90821492927058770002e-10
_ROUND = 6755399441055744.0  # 1.5 * 2^52: adding it leaves the rounded integer in the low bits
_C = tuple(1.0 / math.factorial(k) for k in range(14))
_C2, _C3, _C4, _C5, _C6, _C7, _C8, _C9, _C10, _C11, _C12, _C13 = _C[2:]


@kernel
def exp_into(x: FloatArray, out: FloatArray, start: int, stop: int) -> None:
    """``out = exp(x)`` for ``x <= 0`` to about one unit in the last place, as vector code; below
    -708 the answer is 0.
    """
    for j in range(start, stop):
        y = x[j] if x[j] > -708.0 else -708.0
        shifted = y * _LOG2E + _ROUND
        k = shifted - _ROUND
        r = (y - k * _LN2_HIGH) - k * _LN2_LOW
        q = _C8 + r * (_C9 + r * (_C10 + r * (_C11 + r * (_C12 + r * _C13))))
        q = _C2 + r * (_C3 + r * (_C4 + r * (_C5 + r * (_C6 + r * (_C7 + r * q)))))
        power = np.int64((np.float64(shifted).view(np.int64) + 1023) << 52).view(np.float64)
        out[j] = power * (1.0 + (r + r * r * q)) if x[j] > -708.0 else 0.0


@summing_kernel
def dot(a: FloatArray, b: FloatArray) -> float:
    """Inner product."""
    total = 0.0
    for j in range(a.shape[0]):
        total += a[j] * b[j]
    return total


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


CROSS_ENTROPY, SQUARED, SQUARED_SOFTMAX, LOG_MASS = 0, 1, 2, 3
_SMALL = 1e-8  # below it three terms of a series are exact to the last digit


class Sentences(NamedTuple):
    """The sentences of one run end to end, see :class:`~attsvm.dynamics.next_token.Problem`;
    numbers count from its first token.
    """

    token: IntArray
    log_count: FloatArray
    start: IntArray
    query: IntArray
    own: IntArray
    label: IntArray
    log_weight: FloatArray


class Work(NamedTuple):
    """Room for the gradient of one run.

    Attributes:
        tokens: ``(6, tokens)``: logits, attention, scratch, coefficients; gaps and their signs per
            sentence.
        rate: ``(N,)``, logarithms of the sizes of the coefficients.
        slope: ``(N,)``, logarithms of the factors of ``rows``.
        rows: ``(N, classes)``, residuals of the outputs: what the gradient of the output matrix
            needs.
        line: ``(2, classes)``, scratch.
    """

    tokens: FloatArray
    rate: FloatArray
    slope: FloatArray
    rows: FloatArray
    line: FloatArray


@kernel
def residual(o: FloatArray, y: int, r: FloatArray, x: FloatArray) -> tuple[float, float]:
    r"""Writes :math:`r'` with :math:`p-\mathbf 1_y=e^\lambda r'`; returns :math:`\lambda` and
    :math:`-\log p_y`.
    """
    classes = o.shape[0]
    R = -np.inf
    for v in range(classes):
        if v != y and o[v] > R:
            R = o[v]
    R -= o[y]
    if np.isinf(R):  # a vocabulary of one token
        r[:] = 0.0
        return -np.inf, 0.0
    for v in range(classes):
        x[v] = o[v] - o[y] - R
    x[y] = -1e3
    exp_into(x, r, 0, classes)
    r[y] = 0.0
    total = 0.0
    for v in range(classes):
        total += r[v]
    r[y] = -total
    surprise = R + math.log(math.exp(-R) + total) if R > 0.0 else math.log1p(math.exp(R) * total)
    return R - surprise, surprise


@kernel
def attend(
    s: FloatArray, sentences: Sentences, lo: int, hi: int, D: FloatArray, S: FloatArray
) -> tuple[int, float]:
    """Writes ``D`` and ``S = exp(D)`` of the tokens ``lo:hi``; returns the leader and ``Z``."""
    token, log_count = sentences.token, sentences.log_count
    leader = lo
    for j in range(lo, hi):
        D[j] = s[token[j]] + log_count[j]
        if D[j] > D[leader]:
            leader = j
    top = D[leader]
    for j in range(lo, hi):
        D[j] -= top
    exp_into(D, S, lo, hi)
    Z = 0.0
    for j in range(lo, hi):
        Z += S[j]
    return leader, Z


@kernel
def mix(
    values: FloatArray, token: IntArray, lo: int, hi: int, S: FloatArray, Z: float, o: FloatArray
) -> None:
    """``o = sum_j phi_j u_j``."""
    o[:] = 0.0
    for j in range(lo, hi):
        weight, row = S[j] / Z, values[token[j]]
        for v in range(o.shape[0]):
            o[v] += weight * row[v]


@kernel
def _rivals(
    D: FloatArray,
    S: FloatArray,
    h: FloatArray,
    lo: int,
    hi: int,
    leader: int,
    Z: float,
    c: FloatArray,
) -> float:
    """Writes ``c`` with ``dL/ds = exp(top) c`` for the ``h`` of the module; returns ``top``, -inf
    where there is no gradient.
    """
    top = -np.inf
    for j in range(lo, hi):
        if j != leader and h[j] != 0.0 and D[j] > top:
            top = D[j]
    if top == -np.inf:
        c[lo:hi] = 0.0
        return top
    lift = math.exp(-top) if top > -600.0 else 0.0
    total = 0.0
    for j in range(lo, hi):
        if j == leader or h[j] == 0.0:
            c[j] = 0.0
        else:
            c[j] = (S[j] * lift if lift > 0.0 else math.exp(D[j] - top)) * h[j]
        total += c[j]
    total /= Z
    rest = 0.0
    for j in range(lo, hi):
        if j != leader:
            c[j] = (c[j] - S[j] * total) / Z
            rest += c[j]
    c[leader] = -rest
    return top


@kernel
def _mass_gradient(D: FloatArray, lo: int, hi: int, own: int, Z: float, c: FloatArray) -> float:
    """The gradient of ``-log phi_own``: every other token's derivative is its own mass."""
    top = -np.inf
    for j in range(lo, hi):
        if j != own and D[j] > top:
            top = D[j]
    rest = 0.0
    for j in range(lo, hi):
        c[j] = math.exp(D[j] - top) / Z if j != own else 0.0
        rest += c[j]
    c[own] = -rest
    return top


@kernel
def sentence_gradient(
    s: FloatArray,
    values: FloatArray,
    sentences: Sentences,
    n: int,
    loss: int,
    work: Work,
) -> tuple[float, float]:
    r"""Writes coefficients ``c`` and residual ``r`` of sentence ``n``, its query of scores ``s``,
    to ``work``; returns the logarithms of the factors that make them
    :math:`\partial L/\partial s` and :math:`\partial L/\partial o`. ``S`` holds the attention on
    return.
    """
    token, lo, hi, y = (
        sentences.token,
        sentences.start[n],
        sentences.start[n + 1],
        sentences.label[n],
    )
    D, S, h, c = work.tokens[0], work.tokens[1], work.tokens[2], work.tokens[3]
    o, r, x = work.line[0], work.rows[n], work.line[1]
    leader, Z = attend(s, sentences, lo, hi, D, S)
    if loss == LOG_MASS:
        log_scale = _mass_gradient(D, lo, hi, sentences.own[n], Z, c)
        log_slope = 0.0
    else:
        mix(values, token, lo, hi, S, Z, o)
        lead = values[token[leader]]
        if loss == SQUARED:
            for j in range(lo, hi):
                h[j] = lead[y] - values[token[j], y]
            r[:] = 0.0
            r[y] = -1.0
            log_scale = _rivals(D, S, h, lo, hi, leader, Z, c)
            log_slope, sign = _log_missing(D, h, lo, hi, leader, lead[y], Z, log_scale)
            r[y] *= sign
            for j in range(lo, hi):
                c[j] *= sign
        else:
            log_slope, surprise = residual(o, y, r, x)
            if loss == SQUARED_SOFTMAX:
                log_slope += math.log(2.0) + log_slope + math.log(-r[y]) - surprise
            base = dot(r, lead)
            for j in range(lo, hi):
                h[j] = dot(r, values[token[j]]) - base if j != leader else 0.0
            log_scale = _rivals(D, S, h, lo, hi, leader, Z, c)
        log_scale += log_slope
    for j in range(lo, hi):
        S[j] /= Z
    return log_scale, log_slope


@kernel
def _log_missing(
    D: FloatArray, h: FloatArray, lo: int, hi: int, leader: int, lead: float, Z: float, top: float
) -> tuple[float, float]:
    r""":math:`\log|2(1-o_y)|` and the sign of :math:`1-o_y=\sum_j\varphi_j(1-u_{jy})`, without
    cancellation where the leader has 1.
    """
    near = 0.0
    if top > -np.inf:
        for j in range(lo, hi):
            if j != leader and h[j] != 0.0:
                near += math.exp(D[j] - top) * h[j]
        near /= Z
    base = 1.0 - lead  # 1 - o_y = base + sum_j phi_j h_j
    if base == 0.0:
        return (top + math.log(2.0 * abs(near)) if near != 0.0 else -np.inf), (
            1.0 if near >= 0.0 else -1.0
        )
    missing = base + (math.exp(top) * near if top > -np.inf else 0.0)
    return (math.log(2.0 * abs(missing)) if missing != 0.0 else -np.inf), (
        1.0 if missing >= 0.0 else -1.0
    )


@kernel
def textbook_sentence(
    s: FloatArray,
    values: FloatArray,
    sentences: Sentences,
    n: int,
    work: Work,
) -> None:
    """The cross-entropy gradient as a textbook writes it: ``p - 1_y`` and
    ``phi_j (g_j - sum_i phi_i g_i)``, every difference rounded.
    """
    token, lo, hi = sentences.token, sentences.start[n], sentences.start[n + 1]
    D, S, h, c = work.tokens[0], work.tokens[1], work.tokens[2], work.tokens[3]
    o, r = work.line[0], work.rows[n]
    _, Z = attend(s, sentences, lo, hi, D, S)
    mix(values, token, lo, hi, S, Z, o)
    largest = o.max()
    total = 0.0
    for v in range(o.shape[0]):
        r[v] = math.exp(o[v] - largest)
        total += r[v]
    for v in range(o.shape[0]):
        r[v] /= total
    r[sentences.label[n]] -= 1.0
    mean = 0.0
    for j in range(lo, hi):
        S[j] /= Z
        h[j] = dot(r, values[token[j]])
        mean += S[j] * h[j]
    for j in range(lo, hi):
        c[j] = S[j] * (h[j] - mean)


@kernel
def log_probabilities(values: FloatArray, table: FloatArray) -> None:
    """Fills ``table`` ``(2, K, classes)``: logarithms of the softmax of every row of values, and
    the softmax.
    """
    for a in range(values.shape[0]):
        largest = values[a].max()
        total = 0.0
        for v in range(values.shape[1]):
            total += math.exp(values[a, v] - largest)
        for v in range(values.shape[1]):
            table[0, a, v] = values[a, v] - largest - math.log(total)
            table[1, a, v] = math.exp(table[0, a, v])


@kernel
def sentence_gap(
    s: FloatArray,
    values: FloatArray,
    table: FloatArray,
    sentences: Sentences,
    n: int,
    loss: int,
    work: Work,
) -> tuple[float, float]:
    r"""``(sign, log|gap|)``: the loss is ``sign exp(log|gap|)`` above what it is with all attention
    on ``own``.

    With :math:`\delta_v=\sum_j\varphi_j[(u_{jv}-u_{jy})-(u_{\star v}-u_{\star y})]` and :math:`q`
    the output's probabilities at the floor (:func:`log_probabilities`), the cross-entropy's gap is
    :math:`\log1p(\sum_{v\ne y}q_v\,\mathrm{expm1}(\delta_v))`; where
    :math:`\delta` is small its factor :math:`e^{top}` stays a logarithm.
    """
    token, log_count = sentences.token, sentences.log_count
    lo, hi, own, y = (
        sentences.start[n],
        sentences.start[n + 1],
        sentences.own[n],
        sentences.label[n],
    )
    D, S, delta = work.tokens[0], work.tokens[1], work.line[0]
    top = -np.inf
    for j in range(lo, hi):
        D[j] = s[token[j]] + log_count[j] - s[token[own]] - log_count[own]
        if j != own and D[j] > top:
            top = D[j]
    if top == -np.inf:
        return 1.0, -np.inf
    for j in range(lo, hi):
        S[j] = min(D[j] - top, 0.0)  # of the winner it is not read
    exp_into(S, S, lo, hi)
    total = 0.0
    for j in range(lo, hi):
        if j != own:
            total += S[j]
    if loss == LOG_MASS:
        return 1.0, _log_of_log1p(top, total)
    # phi_j = S_j exp(top) / (1 + total exp(top))
    log_factor = top - (
        math.log1p(total * math.exp(top)) if top < 0.0 else top + math.log(math.exp(-top) + total)
    )
    factor = math.exp(log_factor)
    star = values[token[own]]
    classes = star.shape[0]
    delta[:] = 0.0  # of order one: the true one is factor times it
    if loss == SQUARED:  # (1 - o)^2 - (1 - u)^2 = (u - o) (2 - o - u)
        for j in range(lo, hi):
            if j != own:
                delta[y] += S[j] * (values[token[j], y] - star[y])
        if star[y] == 1.0:
            return 1.0, (
                2.0 * (log_factor + math.log(abs(delta[y]))) if delta[y] != 0.0 else -np.inf
            )
        fall = -delta[y] * (2.0 * (1.0 - star[y]) - factor * delta[y])
        return (1.0 if fall >= 0.0 else -1.0), (
            log_factor + math.log(abs(fall)) if fall != 0.0 else -np.inf
        )
    for j in range(lo, hi):
        if j != own:
            weight, row = S[j], values[token[j]]
            level = row[y] - star[y]
            for v in range(classes):
                delta[v] += weight * (row[v] - star[v] - level)
    delta[y] = 0.0
    extreme = 0.0
    for v in range(classes):
        extreme = max(extreme, abs(delta[v]))
    q = table[1, token[own]]
    total = 0.0
    if factor * extreme < _SMALL:  # x + x^2/2 + x^3/6 of expm1, over the factor
        for v in range(classes):
            step = factor * delta[v]
            total += q[v] * delta[v] * (1.0 + 0.5 * step + step * step / 6.0)
        gap, scale = total * (1.0 - 0.5 * factor * total + (factor * total) ** 2 / 3.0), log_factor
    else:
        for v in range(classes):
            total += _grown(table[0, token[own], v], q[v], factor * delta[v])
        gap, scale = math.log1p(total), 0.0
    # p falls to p exp(-gap): (1 - p e^-g)^2 - (1 - p)^2 = p (1 - e^-g) (2 (1 - p) + p (1 - e^-g))
    if loss == SQUARED_SOFTMAX:
        rest = 0.0
        for v in range(classes):
            if v != y:
                rest += q[v]
        whole = gap * math.exp(scale)
        shrink = -math.expm1(-whole) if abs(whole) > _SMALL else whole - 0.5 * whole * whole
        gap *= (shrink / whole if whole != 0.0 else 1.0) * q[y] * (2.0 * rest + q[y] * shrink)
    return (1.0 if gap >= 0.0 else -1.0), (scale + math.log(abs(gap)) if gap != 0.0 else -np.inf)


@kernel
def _grown(log_q: float, q: float, step: float) -> float:
    """``q expm1(step)`` without overflow before underflow."""
    return q * math.expm1(step) if step < 30.0 else math.exp(log_q + step) - q


@kernel
def _log_of_log1p(top: float, total: float) -> float:
    """``log(log1p(exp(top) total))``."""
    if top == -np.inf:
        return top
    size = top + math.log(total)
    if size < -40.0:
        return size
    return math.log(math.log1p(math.exp(size))) if size < 40.0 else math.log(size)
