r"""Scores of tokens under a linear head, and the optimal tokens.

Definitions of Tarzanagh et al., *Max-Margin Token Selection in Attention Mechanism* and
*Transformers as Support Vector Machines* (2023).
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from attsvm.base.errors import InputError
from attsvm.datasets.attention_data import (
    AttentionData,
    FloatArray,
    IntArray,
    real_array,
    require_data,
)


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
