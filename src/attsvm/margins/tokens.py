r"""Which tokens are worth selecting: scores, optimal tokens, and tokens that are optimal among
their neighbours.

Definitions of Tarzanagh et al., *Max-Margin Token Selection in Attention Mechanism* and
*Transformers as Support Vector Machines* (2023).
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from attsvm.base.errors import InputError
from attsvm.datasets.attention_data import (
    AttentionData,
    BoolArray,
    FloatArray,
    IntArray,
    real_array,
    require_data,
)
from attsvm.solvers.solution import MarginSolution


def token_scores(data: AttentionData, head: ArrayLike) -> FloatArray:
    r"""Scores :math:`\gamma_{it} = Y_i\, v^\top x_{it}` of a linear head, ``(..., n, T)``; masked
    tokens score ``-inf``.

    Args:
        data: sequences, with any leading axes.
        head: :math:`v`, ``(d_x,)`` for all instances or ``(..., d_x)`` with the leading axes of
            ``data``.

    Raises:
        InputError: a head of another size, or one with values that are not finite.

    Example:
        >>> import attsvm
        >>> data = attsvm.AttentionData([[[2, 0], [0, 1]], [[1, 0], [3, 1]]], labels=[1, -1])
        >>> attsvm.token_scores(data, head=[1.0, -1.0]).tolist()
        [[2.0, -1.0], [-1.0, -2.0]]
    """
    require_data(data)
    v = real_array("head", head).astype(np.float64)
    if v.shape not in ((data.d_x,), (*data.batch_shape, data.d_x)):
        raise InputError(
            f"head has shape {v.shape}; it must be ({data.d_x},), one weight per token feature"
        )
    if not np.isfinite(v).all():
        where = np.argwhere(~np.isfinite(v))[0].tolist()
        raise InputError(f"head holds {v[tuple(where)]} at {where}; every weight must be finite")
    # einsum sums every row in the same order, so equal tokens get equal scores to the last bit.
    raw = np.einsum("...ntd,...d->...nt", data.tokens, v)
    return np.where(data.mask, data.labels[..., None] * raw, -np.inf)


def optimal_tokens(
    data: AttentionData, head: ArrayLike, ties: Literal["error", "first"] = "error"
) -> IntArray:
    r"""The token of highest score in every sequence, :math:`\mathrm{opt}_i=\arg\max_t\gamma_{it}`,
    ``(..., n)``.

    Args:
        data: sequences, with any leading axes.
        head: see :func:`token_scores`.
        ties: what to do when two tokens share the highest score: the theory assumes that it is
            unique, so the default is an error; ``"first"`` takes the one that comes first.

    Raises:
        InputError: a tie, a head that :func:`token_scores` refuses, or an unknown value of
            ``ties``.

    Example:
        >>> import attsvm
        >>> data = attsvm.AttentionData([[[2, 0], [0, 1]], [[1, 0], [3, 1]]], labels=[1, -1])
        >>> attsvm.optimal_tokens(data, head=[1.0, -1.0]).tolist()
        [0, 0]
    """
    if ties not in ("error", "first"):
        raise InputError(f"ties is {ties!r}; use 'error' or 'first'")
    scores = token_scores(data, head)
    best: IntArray = np.argmax(scores, axis=-1).astype(np.int64)
    if ties == "error":
        tied = scores == np.max(scores, axis=-1, keepdims=True)
        several = tied.sum(axis=-1) > 1
        if several.any():
            where = tuple(int(k) for k in np.argwhere(several)[0])
            first, second = np.flatnonzero(tied[where])[:2]
            instance = f" of instance {list(where[:-1])}" if len(where) > 1 else ""
            raise InputError(
                f"tokens {first} and {second} of sequence {where[-1]}{instance} share the highest"
                f" score {scores[where][first]:g}; mask one (data.without_duplicates() does so for"
                " equal tokens) or pass ties='first'"
            )
    return best


def neighbours(solution: MarginSolution) -> list[IntArray]:
    r"""For each sequence the tokens
    :math:`\mathcal T_i=\{t\ne\alpha_i:\langle A_{it},W\rangle=1\}`, rivals that stand right at the
    margin.

    Rivals with a zero multiplier count too; tokens that an equality ties to the selected one do
    not. The tolerance is that of
    :attr:`MarginSolution.support`.

    Raises:
        InputError: the solution is infeasible or of the soft margin, for which neighbours are not
            defined.

    Example:
        >>> import attsvm
        >>> data = attsvm.AttentionData([[[2, 0], [0, 0], [-2, 1]]], labels=[1], queries=[[1]])
        >>> solution = attsvm.max_margin(data, [0])
        >>> solution.margins(solution.W).round(3).tolist()
        [1.0, 2.0]
        >>> [tokens.tolist() for tokens in attsvm.solvers.neighbours(solution)]
        [[1]]
    """
    if not solution.has_weights or solution.slack is not None:
        kind = "soft-margin" if solution.has_weights else solution.status
        raise InputError(
            f"neighbours need a hard-margin solution, this one is {kind}; check its status and"
            " slack first"
        )
    margins = solution.margins
    support = solution.support[~margins.equalities[solution.support]]
    ends = np.searchsorted(support, margins.offsets)
    return [margins.token[support[ends[i] : ends[i + 1]]] for i in range(margins.n)]


def locally_optimal(solution: MarginSolution, scores: ArrayLike) -> BoolArray:
    r"""Per sequence, whether its selected token beats its neighbours.

    Returns ``(n,)`` booleans, :math:`\gamma_{i\alpha_i}>\gamma_{it}` for all
    :math:`t\in\mathcal T_i`; the selection is locally optimal when all are True. Only then is the
    direction of the max-margin weights one that gradient descent can converge to. The tokens of
    highest score are always locally optimal. A sequence without neighbours is, too.

    Args:
        solution: hard-margin solution for the selection.
        scores: ``(n, T)``, see :func:`token_scores`.

    Raises:
        InputError: scores of another shape, or a solution that :func:`neighbours` refuses.

    Example:
        >>> import attsvm
        >>> for name in ("single_local", "single_global"):
        ...     toy = attsvm.datasets.toy(name)
        ...     solution = attsvm.max_margin(toy.data, [1])
        ...     print(toy.scores[0], attsvm.locally_optimal(solution, toy.scores))
        [1.  0.9 0. ] [ True]
        [1.  0.9 0.9] [False]
    """
    margins = solution.margins
    gamma = real_array("scores", scores).astype(np.float64)
    longest = int(max(margins.token.max(initial=0), margins.selected.max(initial=0))) + 1
    if gamma.ndim != 2 or gamma.shape[0] != margins.n or gamma.shape[1] < longest:
        raise InputError(
            f"scores has shape {gamma.shape}; it must be ({margins.n}, T) with T at least {longest}"
        )
    return np.array(
        [
            bool((gamma[i, margins.selected[i]] > gamma[i, rivals]).all())
            for i, rivals in enumerate(neighbours(solution))
        ],
        dtype=np.bool_,
    )


class SelectedSets(NamedTuple):
    """Which tokens attention keeps.

    Attributes:
        sets: ``(..., n, T)``, probability at least ``selected``.
        clear: ``(...)``, whether no probability lies between the thresholds and some token is
            masked out.

    Example:
        >>> from attsvm.theory import selected_sets
        >>> found = selected_sets([[[0.7, 0.3, 1e-8]], [[0.7, 0.29999, 1e-5]]])
        >>> found.sets.tolist(), found.clear.tolist()
        ([[[True, True, False]], [[True, True, False]]], [True, False])
    """

    sets: BoolArray
    clear: BoolArray


def selected_sets(
    probabilities: ArrayLike, selected: float = 1e-3, masked: float = 1e-6
) -> SelectedSets:
    r"""The sets :math:`O_i=\{t: s_{it}\ge` ``selected`` :math:`\}` of trained attention, and
    whether they can be told from the rest.

    The thresholds are those of the multi-token experiments of Tarzanagh et al., *Transformers as
    Support Vector Machines* (2023): an instance counts when no probability lies in
    ``(masked, selected)`` and at least one is at most ``masked``.

    Args:
        probabilities: ``(..., n, T)``.
        selected: least probability of a selected token.
        masked: largest probability of a token that attention leaves out.

    Raises:
        InputError: thresholds out of order.

    Example:
        >>> from attsvm.theory import selected_sets
        >>> selected_sets([[0.7, 0.3, 1e-8]]).sets.tolist()
        [[True, True, False]]
        >>> bool(selected_sets([[0.7, 0.29999, 1e-5]]).clear)  # 1e-5 is neither kept nor left out
        False
    """
    if not 0 <= masked < selected <= 1:
        raise InputError(
            f"the thresholds are masked={masked:g} and selected={selected:g}; give 0 <= masked <"
            " selected <= 1"
        )
    s = np.asarray(probabilities, dtype=np.float64)
    between, out = (s > masked) & (s < selected), s <= masked
    clear = ~between.any(axis=(-2, -1)) & out.any(axis=(-2, -1))
    return SelectedSets(s >= selected, np.asarray(clear))


def sparsemax(scores: ArrayLike) -> FloatArray:
    r"""Euclidean projection onto the probability simplex,
    :math:`\arg\min_{s\in\Delta}\|s-\gamma\|`, over the last axis.

    Scores of -inf get 0.

    Source: Martins and Astudillo, *From Softmax to Sparsemax* (2016).

    Example:
        >>> from attsvm.theory import sparsemax
        >>> sparsemax([1.0, 0.6, -1.0]).round(3).tolist()
        [0.7, 0.3, 0.0]
        >>> sparsemax([3.0, 0.6, -1.0]).round(3).tolist()
        [1.0, 0.0, 0.0]
    """
    gamma = np.asarray(scores, dtype=np.float64)
    # the projection does not see a common shift
    shifted = gamma - gamma.max(axis=-1, keepdims=True)
    ordered = -np.sort(-shifted, axis=-1)
    sums = np.cumsum(np.where(np.isfinite(ordered), ordered, 0.0), axis=-1) - 1.0
    count = np.arange(1, gamma.shape[-1] + 1)
    inside = np.isfinite(ordered) & (count * ordered > sums)
    k = np.maximum(inside.sum(axis=-1, keepdims=True), 1)
    threshold = np.take_along_axis(sums, k - 1, axis=-1) / k
    return np.maximum(shifted - threshold, 0.0)


class Mixture(NamedTuple):
    """Selected sets ``(..., n, T)`` and the probabilities on them.

    Example:
        >>> from attsvm.theory import sparsemax_selection
        >>> mixture = sparsemax_selection([[2.0, 1.0, 0.0]], strength=1.0)
        >>> mixture.sets.tolist(), mixture.probabilities.round(3).tolist()
        ([[True, True, False]], [[0.75, 0.25, 0.0]])
    """

    sets: BoolArray
    probabilities: FloatArray


def sparsemax_selection(scores: ArrayLike, strength: float) -> Mixture:
    r"""The attention that is best under the head :math:`v^\top o-\lambda\|o\|^2` on orthonormal
    tokens with label +1.

    :math:`s^\star_i=\mathrm{sparsemax}(\gamma_i/2\lambda)`, the maximiser of
    :math:`\gamma_i^\top s-\lambda\|s\|^2` over the simplex: the strength sets the number of
    selected tokens, before any training. The head is that of Tarzanagh et al., *Transformers as
    Support Vector Machines* (2023).

    Args:
        scores: ``(..., n, T)``, :math:`\gamma_{it}=v^\top x_{it}`.
        strength: :math:`\lambda>0`.

    Raises:
        InputError: a strength that is not positive.

    Example:
        >>> from attsvm.theory import sparsemax_selection
        >>> [int(sparsemax_selection([2.0, 1.0, 0.0], s).sets.sum()) for s in (0.4, 1.0, 4.0)]
        [1, 2, 3]
    """
    if not strength > 0:
        raise InputError(f"strength is {strength!r}; give a positive number")
    s = sparsemax(np.asarray(scores, dtype=np.float64) / (2.0 * strength))
    return Mixture(s > 0, s)
