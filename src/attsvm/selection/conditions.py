r"""Conditions under which descent reaches the optimal tokens, and the identity that proves them
sufficient.

Tarzanagh et al., *Transformers as Support Vector Machines* (2023): Assumption B (all tokens
support, or the other scores are equal), the alignment of the first gradient, and the inequality
behind both. The formulas are derived in the words of this library: with scores
:math:`\gamma_{it}`, :math:`q_{it}=\langle A_{it},W^{mm}\rangle\ge1` and
:math:`\bar\gamma_i=\sum_ts_{it}\gamma_{it}`

.. math:: \langle-\nabla
    L(W),W^{mm}\rangle=\tfrac1n\sum_i|\ell'_i|
    \sum_{t\ne\mathrm{opt}_i}s_{it}(\bar\gamma_i-\gamma_{it})q_{it}.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import expit, softmax

from attsvm.data import AttentionData, BoolArray, FloatArray, IntArray
from attsvm.errors import InputError
from attsvm.margins import Margins, selection_margins
from attsvm.selection.tokens import optimal_tokens, token_scores
from attsvm.solvers import max_margin
from attsvm.solvers.solution import MarginSolution

LossName = Literal["logistic", "exponential", "linear"]

_UNIT = 1e-5  # distance of a margin to 1 at which it counts as 1
_SINGULAR = 1e12  # condition number beyond which a Gram matrix decides nothing


class Dominance(NamedTuple):
    r"""Both sides of the identity of this module, and the lower bound that Assumption B makes
    positive.

    Attributes:
        descent: :math:`\langle-\nabla L(W),W^{mm}\rangle` from the gradient.
        terms: the right-hand side of the identity.
        bound: :math:`\tfrac1n\sum_i|\ell'_i|(s_{io}(\gamma_{io}-\bar\gamma_i)-(q_{\max}-1)r_i)`
            with ``o`` the optimal token and the better of the other tokens in
            :math:`r_i=\sum_{t\ne o:\gamma_{it}>\bar\gamma_i}s_{it}(\gamma_{it}-\bar\gamma_i)`;
            equal to ``descent`` when all tokens support.

    Example:
        >>> import attsvm
        >>> from attsvm.selection import dominance
        >>> toy = attsvm.datasets.toy("plane")
        >>> solution = attsvm.max_margin(toy.data, attsvm.optimal_tokens(toy.data, toy.head))
        >>> sides = dominance(toy.data, toy.head, 0.0 * solution.W, solution)
        >>> abs(sides.descent - sides.terms) < 1e-12, sides.bound <= sides.descent
        (True, True)
    """

    descent: float
    terms: float
    bound: float


def all_support(data: AttentionData, tokens: ArrayLike) -> BoolArray:
    r"""Condition B1: every token that is not selected is a support vector,
    :math:`\langle A_{it},W^{mm}\rangle=1`; ``(...)``.

    Where the Gram matrix G of the constraints is regular this holds exactly when
    :math:`G^{-1}\mathbf 1\ge0`, one linear system; the others are solved. An infeasible selection
    has no support vectors.

    Args:
        data: sequences, with any leading axes.
        tokens: ``(..., n)``, the selected tokens.

    Raises:
        InputError: tokens of another shape, or positions that are no visible tokens.

    Source: Assumption B of Tarzanagh et al., *Transformers as Support Vector Machines* (2023).

    Example:
        >>> import attsvm
        >>> data = attsvm.AttentionData([[[2, 0], [0, 0], [-2, 1]]], labels=[1], queries=[[1]])
        >>> [bool(attsvm.all_support(data, [token])) for token in (0, 1)]
        [False, True]
    """
    selected = _per_instance(data, tokens)
    out = np.zeros(data.batch_shape, dtype=np.bool_)
    for index in np.ndindex(data.batch_shape):
        out[index] = _all_support(selection_margins(data.instance(*index), selected[index]))
    return out


def _all_support(margins: Margins) -> bool:
    size = (
        np.linalg.norm(margins.differences, axis=1)
        * np.linalg.norm(margins.queries, axis=1)[margins.sequence]
    )
    if margins.m <= margins.shape[0] * margins.shape[1] and (size > 0).all():
        # rows of length one: the condition number is that of the directions
        gram = margins.gram() / np.outer(size, size)
        if margins.m == 0 or np.linalg.cond(gram) < _SINGULAR:
            scaled = np.linalg.solve(gram, 1.0 / size)
            return bool((scaled >= -1e-12 * np.abs(scaled).max(initial=0.0)).all())
    solution = max_margin(margins)
    return solution.has_weights and bool((np.abs(margins(solution.W) - 1.0) <= _UNIT).all())


def gradient_alignment(
    data: AttentionData, head: ArrayLike, loss: LossName = "logistic"
) -> FloatArray:
    r""":math:`\iota=\min_{i,t\ne\mathrm{opt}_i}\langle A_{it},-\nabla L(0)\rangle`, ``(...)``.

    Positive when the first step of descent from zero ranks every optimal token first: from far
    enough along that step descent converges to the max-margin weights of the optimal tokens.

    Args:
        data: sequences, with any leading axes.
        head: see :func:`~attsvm.selection.token_scores`.
        loss: whose slope weighs the sequences.

    Raises:
        InputError: a tie of optimal tokens, or an unknown loss.

    Source: Tarzanagh et al., *Transformers as Support Vector Machines* (2023).

    Example:
        >>> import attsvm
        >>> data = attsvm.AttentionData([[[2, 0], [0, 0], [-2, 1]]], labels=[1], queries=[[1]])
        >>> round(float(attsvm.gradient_alignment(data, head=[1.0, 0.0])), 3)
        2.667
    """
    ascent = _ascent(data, head, np.zeros((*data.batch_shape, data.d_x, data.d_z)), loss)
    best = optimal_tokens(data, head)
    moved = data.queries @ np.swapaxes(ascent, -1, -2)
    gains = (data.tokens @ moved[..., None])[..., 0]
    lead = np.take_along_axis(gains, best[..., None], axis=-1) - gains
    rivals = data.mask & (np.arange(data.T) != best[..., None])
    return np.min(np.where(rivals, lead, np.inf), axis=(-2, -1))


def dominance(
    data: AttentionData,
    head: ArrayLike,
    W: ArrayLike,
    solution: MarginSolution,
    loss: LossName = "logistic",
) -> Dominance:
    r"""How much descent at ``W`` moves along the max-margin weights of the optimal tokens,
    :math:`\langle-\nabla L(W),W^{mm}\rangle`: two computations of one number, and a bound.

    With all tokens at the margin, or equal scores of those that are not optimal, it is positive at
    every ``W``, so there is no stationary point. The identity is stated and derived in
    :mod:`attsvm.selection.conditions`.

    Args:
        data: one instance.
        head: ``(d_x,)``.
        W: ``(d_x, d_z)``, any weights.
        solution: hard-margin solution for the optimal tokens.
        loss: whose slope weighs the sequences.

    Raises:
        InputError: a solution for other tokens than the optimal ones, or none.

    Example:
        >>> import attsvm
        >>> from attsvm.selection import dominance
        >>> toy = attsvm.datasets.toy("plane")
        >>> solution = attsvm.max_margin(toy.data, attsvm.optimal_tokens(toy.data, toy.head))
        >>> bool(dominance(toy.data, toy.head, solution.W, solution).descent > 0.0)
        True
    """
    best = optimal_tokens(data, head)
    if not solution.has_weights or not np.array_equal(solution.margins.selected, best):
        raise InputError(
            "the dominance identity needs a solution for the optimal tokens of the data; solve"
            " their selection_margins first"
        )
    weights = np.asarray(W, dtype=np.float64)
    descent = float(np.sum(_ascent(data, head, weights, loss) * solution.W))
    gamma, s, mean, slope = _state(data, head, weights, loss)
    margins = solution.margins
    q = np.zeros(gamma.shape)
    q[margins.sequence, margins.token] = margins(solution.W)
    lag = np.where(data.mask, mean[:, None] - gamma, 0.0)
    terms = float(np.mean(slope * np.sum(s * lag * q, axis=1)))
    rows = np.arange(data.n)
    ahead = np.where(np.arange(data.T) == best[:, None], 0.0, np.maximum(-lag, 0.0))
    bound = s[rows, best] * (gamma[rows, best] - mean) - (q.max() - 1.0) * np.sum(s * ahead, axis=1)
    return Dominance(descent, terms, float(np.mean(slope * bound)))


def feasible(data: AttentionData, tokens: ArrayLike) -> BoolArray:
    r"""Whether some weights select these tokens, ``(...)``: certified, by a solution or by a Farkas
    certificate.

    Almost every data set with :math:`d\ge\max(T-1,n)` is feasible for every selection
    (*Transformers as Support Vector Machines*, Theorem 1); the mean of this over random instances
    estimates the probability elsewhere.

    Args:
        data: sequences, with any leading axes.
        tokens: ``(..., n)``, the selected tokens.

    Raises:
        InputError: tokens of another shape, or positions that are no visible tokens.

    Example:
        >>> import attsvm
        >>> data = attsvm.AttentionData([[[2], [1], [3]]], labels=[1], queries=[[1]])
        >>> [bool(attsvm.selection.feasible(data, [token])) for token in range(3)]  # 2 is between
        [False, True, True]
    """
    selected = _per_instance(data, tokens)
    indices = list(np.ndindex(data.batch_shape))
    solutions = max_margin(
        [selection_margins(data.instance(*index), selected[index]) for index in indices]
    )
    return np.array(
        [solution.status not in ("infeasible", "almost infeasible") for solution in solutions],
        dtype=np.bool_,
    ).reshape(data.batch_shape)


def _per_instance(data: AttentionData, tokens: ArrayLike) -> IntArray:
    selected = np.asarray(tokens)
    shape = (*data.batch_shape, data.n)
    if selected.shape not in (shape, (data.n,)):
        raise InputError(
            f"tokens has shape {selected.shape}; it must be {shape}, one selected token per"
            " sequence"
        )
    return np.broadcast_to(selected, shape)


def _state(
    data: AttentionData, head: ArrayLike, W: FloatArray, loss: LossName
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """Scores (hidden ones zero), probabilities, mean scores and slopes at ``W``."""
    if loss not in ("logistic", "exponential", "linear"):
        raise InputError(f"loss is {loss!r}; use 'logistic', 'exponential' or 'linear'")
    gamma = np.where(data.mask, token_scores(data, head), 0.0)
    moved = data.queries @ np.swapaxes(W, -1, -2)
    s = softmax(np.where(data.mask, (data.tokens @ moved[..., None])[..., 0], -np.inf), axis=-1)
    mean = np.sum(s * gamma, axis=-1)
    slope = (
        expit(-mean)
        if loss == "logistic"
        else np.exp(-mean)
        if loss == "exponential"
        else np.ones_like(mean)
    )
    return gamma, s, mean, slope


def _ascent(data: AttentionData, head: ArrayLike, W: FloatArray, loss: LossName) -> FloatArray:
    r""":math:`-\nabla L(W)`, ``(..., d_x, d_z)``."""
    gamma, s, mean, slope = _state(data, head, W, loss)
    pull = (slope[..., None] * s * (gamma - mean[..., None]))[..., None, :] @ data.tokens
    return np.swapaxes(pull[..., 0, :], -1, -2) @ data.queries / data.n
