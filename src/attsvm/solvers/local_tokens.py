r"""Locally optimal tokens: those that beat the rivals that stand right at the margin.

Definitions of Tarzanagh et al., *Max-Margin Token Selection in Attention Mechanism* and
*Transformers as Support Vector Machines* (2023).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from attsvm.base.errors import InputError
from attsvm.datasets.attention_data import BoolArray, IntArray, real_array
from attsvm.solvers.solution import MarginSolution


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
        >>> solution = attsvm.max_margin(attsvm.selection_margins(data, [0]))
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
        scores: ``(n, T)``, see :func:`~attsvm.margins.token_scores`.

    Raises:
        InputError: scores of another shape, or a solution that :func:`neighbours` refuses.

    Example:
        >>> import attsvm
        >>> for name in ("single_local", "single_global"):
        ...     toy = attsvm.datasets.toy(name)
        ...     solution = attsvm.max_margin(attsvm.selection_margins(toy.data, [1]))
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
