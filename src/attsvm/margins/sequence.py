"""Self-attention with an output at every position: each position is a query and selects its own
token.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from attsvm.base.errors import InputError
from attsvm.datasets.attention_data import AttentionData, BoolArray, IntArray
from attsvm.margins.checks import integers, one_instance
from attsvm.margins.operator import Margins
from attsvm.margins.selection import against_rivals


def sequence_margins(data: AttentionData, tokens: ArrayLike, causal: bool = False) -> Margins:
    r"""The margins of a selection per position:
    :math:`(x_{i\alpha_{ij}} - x_{it})^\top W x_{ij} \ge 1`.

    For every visible position :math:`j` of every sequence :math:`i` and every
    :math:`t\ne\alpha_{ij}` that :math:`j` sees: all visible tokens, or those with :math:`t\le j`
    when ``causal``. These are the margins of :func:`~attsvm.margins.selection_margins` on the pairs
    :math:`(X_i, x_{ij})`, so a "sequence" of the result is one pair; :attr:`Margins.origin` names
    the pairs. The weights are ``(d_x, d_x)``, and the queries of ``data`` play no part. Programme
    SAtt-SVM of Tarzanagh et al., *Transformers as Support Vector Machines* (2023), appendix.

    Args:
        data: one instance (no leading axes).
        tokens: ``(n, T)`` integers, :math:`\alpha_{ij}`; entries at masked positions are not read.
        causal: whether position :math:`j` sees only the positions up to :math:`j`.

    Raises:
        InputError: leading axes, wrong shape, a selected position that is out of range, masked or,
            when causal, in the future.

    Example:
        >>> import attsvm
        >>> data = attsvm.AttentionData([[[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]], labels=[1.0])
        >>> margins = attsvm.sequence_margins(data, tokens=[[0, 0, 2]], causal=True)
        >>> margins.origin.tolist(), margins.offsets.tolist()
        ([[0, 0], [0, 1], [0, 2]], [0, 0, 1, 3])
        >>> attsvm.max_margin(margins).W.round(3).tolist()
        [[0.0, 1.0], [1.0, 0.0]]
    """
    one_instance(data)
    selected = integers("tokens", tokens)
    if selected.shape != (data.n, data.T):
        raise InputError(
            f"tokens has shape {selected.shape}; it must be ({data.n}, {data.T}), one selected"
            " token per position"
        )
    pairs = np.argwhere(data.mask).astype(np.int64)
    i, j = pairs[:, 0], pairs[:, 1]
    alpha = selected[i, j]
    _refuse_selected(
        pairs, (alpha < 0) | (alpha >= data.T), alpha, f"outside the positions 0 to {data.T - 1}"
    )
    _refuse_selected(
        pairs, ~data.mask[i, alpha], alpha, "which the mask hides; select a visible token"
    )
    rivals = data.mask[i]
    if causal:
        _refuse_selected(
            pairs,
            alpha > j,
            alpha,
            "which a causal query does not see; select a position up to its own",
        )
        rivals = rivals & (np.arange(data.T) <= j[:, None])
    return against_rivals(
        data.tokens, data.tokens[i, j], alpha, rivals, of=i, kind="position", origin=pairs
    )


def _refuse_selected(pairs: IntArray, wrong: BoolArray, alpha: IntArray, why: str) -> None:
    """Raise for the first pair whose selected position is wrong."""
    if wrong.any():
        k = int(np.flatnonzero(wrong)[0])
        i, j = pairs[k].tolist()
        raise InputError(f"tokens[{i}, {j}] is {alpha[k]}, {why}")
