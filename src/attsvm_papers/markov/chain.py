r"""The context-conditioned Markov chain, its likelihood, and trajectories that it writes.

Attention with weights :math:`W` over a prompt whose last token is :math:`i` and which has token
:math:`j` :math:`m_j` times gives that token, with tied output weights, the probability

.. math:: \pi_j = m_jP_{ij}\Big/\sum_l m_lP_{il}, \qquad P_{ij}\propto e^{e_j^\top We_i}.

The likelihood is a sum over last tokens :math:`i`, of a multinomial logit in the row
:math:`w_j=\log P_{ij}` each. Tokens in one prompt are joined by an edge of the graph of :math:`i`;
in every component of it the row is known up to a constant.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_softmax, softmax

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

COVERED, HALF, APART = "all tokens", "half of the tokens", "two halves apart"
"""Designs: tokens of a prompt are any; they and the last one are from a half that belongs to the
last one; they are from either of two halves, and the last one only asks.
"""
_ITERATIONS = 100
_RARE = 1e-14  # ends of runs: with any smaller chance the run is longer than every trajectory
_STILL = 1e-9  # a Newton step as small as this leaves its square, which is rounding


def generators(seeds: Sequence[int]) -> list[np.random.Generator]:
    """A generator for every seed."""
    return [np.random.default_rng([73, seed]) for seed in seeds]


def sample_prompts(
    design: str, K: int, T: int, D: int, rngs: Sequence[np.random.Generator]
) -> IntArray:
    """Counts ``(seeds, K, D, K)`` of each token in each of ``D`` prompts of ``T`` tokens, for each
    last token.
    """
    queries = np.eye(K, dtype=np.int64)[:, None]
    counts = []
    for rng in rngs:
        half = rng.permuted(np.tile(np.arange(K) < K // 2, (K, 1)), axis=1)[:, None]
        is_first_half = np.arange(D)[:, None] % 2 == 0
        any_token = np.ones_like(half)
        is_allowed = {COVERED: any_token, HALF: half, APART: np.where(is_first_half, half, ~half)}[
            design
        ]
        share = np.broadcast_to(is_allowed, (K, D, K)).astype(np.float64)
        share /= share.sum(axis=-1, keepdims=True)
        query_counts = 0 if design == APART else queries
        counts.append(rng.multinomial(T - (design != APART), share) + query_counts)
    return np.stack(counts)


def same_component(m: IntArray) -> BoolArray:
    """True ``(..., K, K)`` where two tokens are in one component of the graph of the prompts
    ``(..., D, K)``.
    """
    is_present = (m > 0).astype(np.float64)
    is_joined = np.swapaxes(is_present, -1, -2) @ is_present + np.eye(m.shape[-1]) > 0
    for _ in range(m.shape[-1].bit_length()):
        is_joined = is_joined.astype(np.float64) @ is_joined > 0
    return is_joined


def next_token_probabilities(w: FloatArray, m: IntArray) -> FloatArray:
    """Probabilities of the next token ``(..., D, K)``, by rows ``(..., K)`` and prompts of that
    shape.
    """
    with np.errstate(divide="ignore"):
        return softmax(w[..., None, :] + np.log(m), axis=-1)


def risk(w: FloatArray, m: IntArray, counts: FloatArray) -> FloatArray:
    """Minus the log-likelihood ``(...)`` of next tokens ``(..., D, K)``."""
    with np.errstate(divide="ignore"):
        logs = log_softmax(w[..., None, :] + np.log(m), axis=-1)
    return -np.sum(counts * np.where(counts > 0, logs, 0.0), axis=(-2, -1))


class Fit(NamedTuple):
    r"""Rows ``w (..., K)`` of largest likelihood, and what is known of them.

    Attributes:
        w: the rows; in every component they keep the mean of the start.
        gap: ``(2, ...)`` of the start and of the rows, the duality gap
            :math:`\sum_d c_d\,\mathrm{KL}(q'_d\|q_d)` with the probabilities :math:`q` and with
            :math:`q'` whose moments are those of the data; infinite where Newton's step leads to
            none.
        hessian: ``(..., K, K)`` there.
    """

    w: FloatArray
    gap: FloatArray
    hessian: FloatArray


def maximise_likelihood(m: IntArray, counts: FloatArray, start: FloatArray) -> Fit:
    """Newton's method with damped steps, all rows together."""
    is_same = same_component(m).astype(np.float64)
    flat = is_same / is_same.sum(axis=-1, keepdims=True)  # onto what the likelihood does not see
    total = counts.sum(axis=-1)
    w, gaps = start, []
    for _ in range(_ITERATIONS):
        q = next_token_probabilities(w, m)
        mass = total[..., None] * q
        expected = mass.sum(axis=-2)
        hessian = expected[..., None] * np.eye(w.shape[-1]) - np.swapaxes(mass, -1, -2) @ q
        slope = counts.sum(axis=-2) - expected
        scale = np.maximum(total.sum(axis=-1), 1e-300)[..., None]
        step = np.linalg.solve(hessian / scale[..., None] + flat, (slope / scale)[..., None])
        step = step[..., 0]
        ratio = step[..., None, :] - q @ step[..., None]
        gaps.append(_gap(mass, ratio))
        reach = np.ptp(step, axis=-1, keepdims=True)
        if reach.max() <= _STILL:
            break
        w = w + step * np.log1p(reach) / np.maximum(reach, 1e-300)
    return Fit(w, np.stack([gaps[0], gaps[-1]]), hessian)


def _gap(mass: FloatArray, ratio: FloatArray) -> FloatArray:
    in_prompt = np.where(mass > 0, ratio, 0.0)
    feasible = in_prompt.min(axis=(-2, -1)) > -1
    in_prompt = np.maximum(in_prompt, -1 + 1e-16)
    terms = mass * ((1 + in_prompt) * np.log1p(in_prompt) - in_prompt)
    return np.where(feasible, terms.sum(axis=(-2, -1)), np.inf)


class TokenCounts(NamedTuple):
    """Tokens ``(B, marks, K)`` of trajectories at some lengths, and how many of them follow
    themselves.
    """

    counts: FloatArray
    repeats: FloatArray


def write_trajectories(
    P: FloatArray, last: IntArray, marks: IntArray, rng: np.random.Generator
) -> TokenCounts:
    r"""Trajectories of chains ``P (B, K, K)`` from prompts with every token once, whose last one is
    ``last (B,)``; a run of one token at a time.

    With the others as they are, a token goes on with probability :math:`m/(m+c)`, where :math:`m`
    is how often it is there and :math:`c` the weight of the others relative to its own. The run is
    geometric with a probability that is :math:`\mathrm{Beta}(c,m)`.

    1. The length of the run of the last token is drawn, for all active trajectories.
    2. Marks that the run passes are recorded, with the share of the run up to them.
    3. The run is added, and the token that ends it is drawn among the others.
    4. Trajectories that have passed all marks are left out.
    """
    B, K = P.shape[:2]
    counts = TokenCounts(np.zeros((B, len(marks), K)), np.zeros((B, len(marks), K)))
    active, m, repeats = np.arange(B), np.ones((B, K)), np.zeros((B, K))
    time, passed = np.full(B, float(K)), np.zeros(B, dtype=np.int64)
    ends = np.append(marks, np.iinfo(np.int64).max)
    while active.size:
        # 1. a Beta mixture of geometric lengths, one draw in place of as many as the run has
        row = np.arange(active.size)
        rows = P[active, last]
        weights = m * rows
        weights[row, last] = 0.0
        others = np.cumsum(weights, axis=1)
        chance = rng.beta(others[:, -1] / rows[row, last], m[row, last])
        length = rng.geometric(np.maximum(chance, _RARE)) - 1.0
        # 2. a long run may pass several marks
        while (due := np.flatnonzero(time + length >= ends[passed])).size:
            reached, missing = (active[due], passed[due]), ends[passed[due]] - time[due]
            for column, values in zip(counts, (m, repeats), strict=True):
                column[reached] = values[due]
                column[(*reached, last[due])] += missing
            passed[due] += 1
        # 3. the run, then another token
        m[row, last] += length
        repeats[row, last] += length
        threshold = rng.random(active.size) * others[:, -1]
        last = np.minimum((others <= threshold[:, None]).sum(axis=1), K - 1)
        m[row, last] += 1
        time = time + length + 1
        # 4. only trajectories that are not done go on
        is_active = passed < len(marks)
        if not is_active.all():
            active, last, time, passed = (
                active[is_active],
                last[is_active],
                time[is_active],
                passed[is_active],
            )
            m, repeats = m[is_active], repeats[is_active]
    return counts


def growth_rates(P: FloatArray, share: FloatArray) -> FloatArray:
    r"""The rate ``(..., K)`` of each token where the context has these shares ``(..., K)``, over
    its own share: :math:`\sum_i\mu_iP_{ij}/(Px)_i` with the stationary distribution
    :math:`\mu` of the chain :math:`x_jP_{ij}/(Px)_i`. A token of rate :math:`g` grows like
    :math:`t^g`.
    """
    rates = P / (P @ share[..., None])
    chain = rates * share[..., None, :]
    lifted = np.swapaxes(np.eye(P.shape[-1]) - chain, -1, -2) + 1.0
    mu = np.linalg.solve(lifted, np.ones((*share.shape, 1)))
    return (np.swapaxes(rates, -1, -2) @ mu)[..., 0]
