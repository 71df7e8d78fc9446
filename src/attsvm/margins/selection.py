"""One selected token per sequence: scores and the optimal tokens; margins for a matrix, for a
prompt vector, and relaxed for joint training.

Scores and optimal tokens are those of Tarzanagh et al., *Max-Margin Token Selection in Attention
Mechanism* and *Transformers as Support Vector Machines* (2023).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

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
from attsvm.margins.checks import chosen_sequences, reals, selected_tokens
from attsvm.margins.operator import Margins


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


def against_rivals(
    tokens: FloatArray,
    queries: ArrayLike,
    selected: IntArray,
    rivals: BoolArray,
    of: IntArray | None = None,
    **fields: Any,
) -> Margins:
    """The selected token of every query minus each other token among its rivals.

    Args:
        tokens: ``(k, T, d_x)``.
        queries: ``(n, d_z)``.
        selected: ``(n,)``, positions.
        rivals: ``(n, T)``, with or without the selected tokens.
        of: ``(n,)``, whose tokens each query is about; those of its own number when left out.
        fields: of :class:`~attsvm.margins.Margins`.
    """
    others = rivals.copy()
    others[np.arange(len(others)), selected] = False
    sequence, token = np.nonzero(others)
    about = sequence if of is None else of[sequence]
    return Margins(
        tokens[about, selected[sequence]] - tokens[about, token],
        np.array(queries),
        np.concatenate([[0], np.cumsum(others.sum(axis=1))]),
        np.ones(len(token)),
        token,
        selected,
        **fields,
    )


def one_hot(n: int, V: int) -> FloatArray:
    """``(n, V, V)``: the unit vectors of ``V`` classes as the tokens of ``n`` sequences, all of
    which share one copy.
    """
    return np.broadcast_to(np.eye(V), (n, V, V))


def selection_margins(data: AttentionData, tokens: ArrayLike) -> Margins:
    r"""The margins of a selection: :math:`(x_{i\alpha_i} - x_{it})^\top W z_i \ge 1` for all
    visible :math:`t\ne\alpha_i`.

    The programme Att-SVM of *Transformers as Support Vector Machines*; with one-dimensional queries
    equal to one it is the prompt programme of *Max-Margin Token Selection in Attention Mechanism*.

    Args:
        data: one instance (no leading axes).
        tokens: ``(n,)`` integers, the selected token :math:`\alpha_i` of each sequence.

    Raises:
        InputError: leading axes, wrong shape, a position that is out of range or masked.

    Example:
        >>> import attsvm
        >>> data = attsvm.AttentionData([[[2, 0], [0, 0], [0, 2]]], [1], queries=[[1]])
        >>> margins = attsvm.selection_margins(data, tokens=[0])
        >>> margins.differences.tolist(), margins.token.tolist()
        ([[2.0, 0.0], [2.0, -2.0]], [1, 2])
        >>> attsvm.max_margin(margins).W.round(6).tolist()
        [[0.5], [0.0]]
    """
    selected = selected_tokens(data, tokens)
    return against_rivals(data.tokens, data.queries, selected, data.mask)


def prompt_margins(
    data: AttentionData, tokens: ArrayLike, keys: ArrayLike | None = None
) -> Margins:
    r"""The margins of a prompt vector: :math:`(k_{i\alpha_i} - k_{it})^\top p \ge 1` for all
    visible :math:`t\ne\alpha_i`.

    The keys are :math:`k_{it} = K x_{it}`. The weights are ``(d_k, 1)``: the vector is
    ``solution.W[:, 0]``. The queries of ``data`` play no part. Programme ATT-SVM of Tarzanagh et
    al., *Max-Margin Token Selection in Attention Mechanism* (2023).

    Args:
        data: one instance (no leading axes).
        tokens: ``(n,)`` integers, the selected token :math:`\alpha_i` of each sequence.
        keys: the map :math:`K`, ``(d_k, d_x)``; the identity when left out.

    Raises:
        InputError: what :func:`selection_margins` refuses, or ``keys`` of another shape or with
            values that are not finite.

    Example:
        >>> import attsvm
        >>> toy = attsvm.datasets.toy("joint")
        >>> prompt = attsvm.max_margin(attsvm.prompt_margins(toy.data, tokens=[1, 1, 1]))
        >>> prompt.W[:, 0].round(3).tolist()
        [1.333, 0.333]
    """
    margins = selection_margins(data, tokens)
    differences = margins.differences
    if keys is not None:
        K = reals("keys", keys, (None, data.d_x), f"(d_k, {data.d_x}), a map of tokens to keys")
        differences = differences @ K.T  # mapped after subtracting: near-equal tokens lose nothing
    return replace(margins, differences=differences, queries=np.ones((data.n, 1)))


def relax(margins: Margins, support: ArrayLike) -> Margins:
    r"""Margins with right-hand side 0 for every sequence outside ``support``.

    Args:
        margins: inequalities only.
        support: ``(n,)`` booleans, or positions of sequences (``solution.support`` of
            :func:`~attsvm.margins.decoder_margins`).

    Raises:
        InputError: a support of another shape or out of range, or margins that hold equalities.

    Example:
        >>> from attsvm.datasets import toy
        >>> from attsvm.margins import prompt_margins, relax
        >>> margins = prompt_margins(toy("joint_nonsupport").data, tokens=[1, 1, 1])
        >>> relax(margins, support=[0, 1]).rhs.tolist()
        [1.0, 1.0, 0.0]
    """
    if margins.equalities.any():
        raise InputError("relax takes inequalities only, and these margins hold equalities")
    is_support = chosen_sequences("support", support, margins.n)
    return replace(margins, rhs=np.where(is_support[margins.sequence], margins.rhs, 0.0))


def relaxed_margins(
    data: AttentionData, tokens: ArrayLike, support: ArrayLike, keys: ArrayLike | None = None
) -> Margins:
    r"""The margins of a prompt trained together with its decoder.

    .. math:: (k_{i\alpha_i} - k_{it})^\top p \ge 1 \quad (i\in\mathcal S), \qquad
              (k_{i\alpha_i} - k_{it})^\top p \ge 0 \quad (i\notin\mathcal S),

    where :math:`\mathcal S` holds the sequences that support the decoder: the others need not
    attend to their token alone. Relaxed ATT-SVM of Tarzanagh et al., *Max-Margin Token Selection in
    Attention Mechanism* (2023). For a matrix of weights, apply :func:`relax` to
    :func:`selection_margins`.

    Args:
        data: one instance (no leading axes).
        tokens: ``(n,)`` integers, the selected token :math:`\alpha_i` of each sequence.
        support: :math:`\mathcal S` as ``(n,)`` booleans or as positions, for instance
            ``max_margin(decoder_margins(data, tokens)).support``.
        keys: see :func:`prompt_margins`.

    Raises:
        InputError: what :func:`prompt_margins` and :func:`relax` refuse.

    Example:
        >>> import attsvm
        >>> data, tokens = attsvm.datasets.toy("joint_nonsupport").data, [1, 1, 1]
        >>> decoder = attsvm.max_margin(attsvm.decoder_margins(data, tokens))
        >>> margins = attsvm.relaxed_margins(data, tokens, support=decoder.support)
        >>> attsvm.max_margin(margins).W[:, 0].round(3).tolist()
        [1.0, 0.0]
        >>> attsvm.max_margin(attsvm.prompt_margins(data, tokens)).W[:, 0].round(3).tolist()
        [1.25, 0.25]
    """
    return relax(prompt_margins(data, tokens, keys), support)


def decoder_margins(data: AttentionData, tokens: ArrayLike) -> Margins:
    r"""The label margins of selected tokens: :math:`Y_i\, v^\top x_{i\alpha_i} \ge 1` for every
    sequence.

    A support vector machine without intercept whose inputs are the selected tokens. One constraint
    per sequence, so constraint ``c`` belongs to sequence ``c``; it has no rival token, and
    :attr:`Margins.token` repeats the selected one. The weights are ``(d_x, 1)``: the vector is
    ``solution.W[:, 0]``. Programme v-SVM of Tarzanagh et al., *Max-Margin Token Selection in
    Attention Mechanism* (2023).

    Args:
        data: one instance (no leading axes); its labels are used, its queries are not.
        tokens: ``(n,)`` integers, the selected token :math:`\alpha_i` of each sequence.

    Raises:
        InputError: leading axes, wrong shape, a position that is out of range or masked.

    Example:
        >>> import attsvm
        >>> data = attsvm.datasets.toy("joint_nonsupport").data
        >>> decoder = attsvm.max_margin(attsvm.decoder_margins(data, tokens=[1, 1, 1]))
        >>> decoder.W[:, 0].round(3).tolist(), decoder.support.tolist()
        ([0.0, 1.0], [0, 1])
    """
    selected = selected_tokens(data, tokens)
    signed = data.labels[:, None] * data.tokens[np.arange(data.n), selected]
    return Margins(
        signed,
        np.ones((data.n, 1)),
        np.arange(data.n + 1),
        np.ones(data.n),
        selected.copy(),
        selected,
        kind="label",
    )
