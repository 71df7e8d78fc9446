r"""Mixtures of tokens: sets that trained attention keeps, and those that a concave head selects.

Tarzanagh et al., *Transformers as Support Vector Machines* (2023).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from attsvm.base.errors import InputError
from attsvm.datasets.attention_data import BoolArray, FloatArray


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
