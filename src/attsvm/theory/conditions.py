"""Conditions under which descent reaches the optimal tokens.

Tarzanagh et al., *Transformers as Support Vector Machines* (2023): Assumption B1 (all tokens
support), the alignment of the first gradient, and feasibility.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import expit

from attsvm.base.errors import InputError
from attsvm.datasets.attention_data import AttentionData, BoolArray, FloatArray, IntArray
from attsvm.margins import Margins, selection_margins
from attsvm.margins.selection import optimal_tokens, token_scores
from attsvm.solvers import max_margin, max_margin_batch

LossName = Literal["logistic", "exponential", "linear"]

_UNIT = 1e-5  # distance of a margin to 1 at which it counts as 1
_SINGULAR = 1e12  # condition number beyond which a Gram matrix decides nothing
_SLOPES: dict[str, Callable[[FloatArray], FloatArray]] = {  # of a loss at a mean score, falling
    "logistic": lambda mean: expit(-mean),
    "exponential": lambda mean: np.exp(-mean),
    "linear": np.ones_like,
}


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
    size = margins.lengths
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
        head: see :func:`~attsvm.margins.token_scores`.
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
    if loss not in _SLOPES:
        raise InputError(f"loss is {loss!r}; use 'logistic', 'exponential' or 'linear'")
    best = optimal_tokens(data, head)
    gamma = np.where(data.mask, token_scores(data, head), 0.0)
    count = data.lengths[..., None]
    mean = gamma.sum(axis=-1, keepdims=True) / count  # attention at zero is even
    weights = np.where(data.mask, _SLOPES[loss](mean) * (gamma - mean) / count, 0.0)
    pull = (weights[..., None, :] @ data.tokens)[..., 0, :]
    ascent = np.swapaxes(pull, -1, -2) @ data.queries / data.n
    moved = data.queries @ np.swapaxes(ascent, -1, -2)
    gains = (data.tokens @ moved[..., None])[..., 0]
    lead = np.take_along_axis(gains, best[..., None], axis=-1) - gains
    rivals = data.mask & (np.arange(data.T) != best[..., None])
    return np.min(np.where(rivals, lead, np.inf), axis=(-2, -1))


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
        >>> [bool(attsvm.theory.feasible(data, [token])) for token in range(3)]  # 2 is between
        [False, True, True]
    """
    selected = _per_instance(data, tokens)
    indices = list(np.ndindex(data.batch_shape))
    solutions = max_margin_batch(
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
