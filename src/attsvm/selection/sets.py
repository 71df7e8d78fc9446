"""Several selected tokens per sequence: read off trained attention, or predicted before
training.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from attsvm.data import BoolArray, FloatArray
from attsvm.errors import InputError


class SelectedSets(NamedTuple):
    """Which tokens attention keeps.

    Attributes:
        sets: ``(..., n, T)``, probability at least ``selected``.
        clear: ``(...)``, whether no probability lies between the thresholds and some token is
            masked out.
    """

    sets: BoolArray
    clear: BoolArray


def selected_sets(
    probabilities: ArrayLike,
    mask: ArrayLike | None = None,
    selected: float = 1e-3,
    masked: float = 1e-6,
) -> SelectedSets:
    r"""The sets :math:`O_i=\{t: s_{it}\ge` ``selected`` :math:`\}` of trained attention, and
    whether they can be told from the rest.

    The thresholds are those of the multi-token experiments of Tarzanagh et al., *Transformers as
    Support Vector Machines* (2023): an instance counts when no probability lies in
    ``(masked, selected)`` and at least one is at most ``masked``.

    Args:
        probabilities: ``(..., n, T)``.
        mask: ``(..., n, T)``, tokens that exist; all when left out.
        selected: least probability of a selected token.
        masked: largest probability of a token that attention leaves out.

    Raises:
        InputError: thresholds out of order.
    """
    if not 0 <= masked < selected <= 1:
        raise InputError(
            f"the thresholds are masked={masked:g} and selected={selected:g}; give 0 <= masked <"
            " selected <= 1"
        )
    s = np.asarray(probabilities, dtype=np.float64)
    exists = np.broadcast_to(True if mask is None else np.asarray(mask, dtype=np.bool_), s.shape)
    between: BoolArray = exists & (s > masked) & (s < selected)
    clear: BoolArray = np.asarray(
        ~between.any(axis=(-2, -1)) & (exists & (s <= masked)).any(axis=(-2, -1))
    )
    return SelectedSets(exists & (s >= selected), clear)


def sparsemax(scores: ArrayLike) -> FloatArray:
    r"""Euclidean projection onto the probability simplex,
    :math:`\arg\min_{s\in\Delta}\|s-\gamma\|`, over the last axis.

    Scores of -inf get 0.

    Source: Martins and Astudillo, *From Softmax to Sparsemax* (2016).
    """
    gamma = np.asarray(scores, dtype=np.float64)
    shifted = gamma - gamma.max(
        axis=-1, keepdims=True
    )  # the projection does not see a common shift
    ordered = -np.sort(-shifted, axis=-1)
    sums = np.cumsum(np.where(np.isfinite(ordered), ordered, 0.0), axis=-1) - 1.0
    count = np.arange(1, gamma.shape[-1] + 1)
    inside = np.isfinite(ordered) & (count * ordered > sums)
    k = np.maximum(inside.sum(axis=-1, keepdims=True), 1)
    threshold = np.take_along_axis(sums, k - 1, axis=-1) / k
    return np.maximum(shifted - threshold, 0.0)


class Mixture(NamedTuple):
    """Selected sets ``(..., n, T)`` and the probabilities on them."""

    sets: BoolArray
    probabilities: FloatArray


def sparsemax_selection(scores: ArrayLike, strength: float) -> Mixture:
    r"""The attention that is best under the head :math:`v^\top o-\lambda\|o\|^2` on orthonormal
    tokens with label +1.

    :math:`s^\star_i=\mathrm{sparsemax}(\gamma_i/2\lambda)`: the strength sets the number of
    selected tokens, before any training.

    Args:
        scores: ``(..., n, T)``, :math:`\gamma_{it}=v^\top x_{it}`.
        strength: :math:`\lambda>0`.

    Raises:
        InputError: a strength that is not positive.
    """
    if not strength > 0:
        raise InputError(f"strength is {strength!r}; give a positive number")
    s = sparsemax(np.asarray(scores, dtype=np.float64) / (2.0 * strength))
    return Mixture(s > 0, s)
