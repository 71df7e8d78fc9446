r"""Several selected tokens per sequence: equal scores, or prescribed ratios, inside the set and
margins against the rest.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike

from attsvm.base.errors import InputError
from attsvm.datasets.attention_data import AttentionData, BoolArray, FloatArray, IntArray
from attsvm.margins.checks import reals, token_sets
from attsvm.margins.operator import Kind, Margins
from attsvm.margins.selection import against_rivals


def multi_token_margins(data: AttentionData, sets: ArrayLike) -> Margins:
    r"""The margins of selected sets :math:`\mathcal O_i`: equal scores inside, at least one above
    the rest.

    .. math:: (x_{ia_i}-x_{it})^\top W z_i = 0 \quad (t\in\mathcal O_i\setminus a_i), \qquad
              (x_{ia_i}-x_{i\tau})^\top W z_i \ge 1 \quad (\tau\notin\mathcal O_i \text{ visible}),

    where the anchor :math:`a_i` is the first token of the set; any other anchor gives the same
    programme. With sets of one token it is :func:`~attsvm.margins.selection_margins`. Programme
    Gen-SVM of Tarzanagh et al., *Transformers as Support Vector Machines* (2023): the direction in
    which weights diverge when a head needs several tokens.

    Args:
        data: one instance (no leading axes).
        sets: ``(n, T)`` booleans, True on the selected tokens; at least one visible token per
            sequence.

    Raises:
        InputError: leading axes, wrong shape or dtype, an empty set, a set with a masked token.

    Example:
        >>> import attsvm
        >>> data = attsvm.AttentionData([[[2, 0], [0, 2], [0, 0]]], [1], queries=[[1]])
        >>> margins = attsvm.multi_token_margins(data, sets=[[True, True, False]])
        >>> margins.rhs.tolist(), margins.equality.tolist()
        ([0.0, 1.0], [True, False])
        >>> attsvm.max_margin(margins).W.round(6).tolist()
        [[0.5], [0.5]]
    """
    chosen = token_sets(data, sets)
    margins = against_rivals(data.tokens, data.queries, _anchor(chosen), data.mask)
    return with_ties(margins, chosen, "set", "selection")


def ratio_margins(data: AttentionData, sets: ArrayLike, probabilities: ArrayLike) -> Margins:
    r"""The equalities that make attention split a selected set as prescribed.

    .. math:: (x_{ia_i}-x_{it})^\top W z_i = \log(s_{ia_i}/s_{it}) \quad (t\in\mathcal O_i\setminus
        a_i),

    with the anchor of :func:`multi_token_margins`. Their solution of least norm is the finite
    component; see
    :func:`~attsvm.margins.finite_component`.

    Args:
        data: one instance (no leading axes).
        sets: ``(n, T)`` booleans, True on the selected tokens; at least one visible token per
            sequence.
        probabilities: ``(n, T)``, :math:`s_{it}`, finite, positive on the sets; they need not sum
            to one.

    Raises:
        InputError: leading axes, wrong shape or dtype, an empty set, a set with a masked token, a
            probability that is not finite or, on a set, not positive.

    Example:
        >>> import attsvm
        >>> data = attsvm.AttentionData([[[2, 0], [0, 2], [0, 0]]], [1], queries=[[1]])
        >>> margins = attsvm.ratio_margins(data, [[True, True, False]], [[0.8, 0.2, 0.0]])
        >>> margins.rhs.round(3).tolist()  # log(0.8 / 0.2)
        [1.386]
    """
    chosen = token_sets(data, sets)
    s = reals(
        "probabilities", probabilities, chosen.shape, f"{chosen.shape}, one probability per token"
    )
    wrong = chosen & (s <= 0)
    if wrong.any():
        i, t = (int(k) for k in np.argwhere(wrong)[0])
        raise InputError(
            f"probabilities[{i}, {t}] is {s[i, t]:g}; on the selected tokens they must be positive"
        )
    return with_odds(against_rivals(data.tokens, data.queries, _anchor(chosen), chosen), s)


def _anchor(chosen: BoolArray) -> IntArray:
    """The first token of each set, ``(n,)``."""
    return np.argmax(chosen, axis=1).astype(np.int64)


def with_ties(margins: Margins, chosen: BoolArray, tied: Kind, free: Kind) -> Margins:
    """The rows, with an equality for every token among the ``(n, T)`` chosen; of the kind ``free``
    where there is none.
    """
    inside = chosen[margins.sequence, margins.token]
    if not inside.any():
        return replace(margins, kind=free)
    return replace(margins, rhs=np.where(inside, 0.0, 1.0), equality=inside, kind=tied)


def with_odds(margins: Margins, probabilities: FloatArray) -> Margins:
    """The rows as equalities: the log-odds of the selected token and the other, ``(n, T)``."""
    i = margins.sequence
    odds = np.log(probabilities[i, margins.selected[i]]) - np.log(probabilities[i, margins.token])
    return replace(margins, rhs=odds, equality=np.ones(margins.m, dtype=np.bool_), kind="ratio")
