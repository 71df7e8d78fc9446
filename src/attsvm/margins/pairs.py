r"""Selections of one text's queries among keys that all of them share, never written out.

Query :math:`j` of a text selects key :math:`\alpha_j`, and every other key :math:`k_t` that it sees
asks for a margin, :math:`(k_{\alpha_j}-k_t)^\top W q_j\ge1`. A text of :math:`T` tokens has about
:math:`T^2/2` such rows but only :math:`T` keys, so :class:`PairMargins` keeps the keys and forms
differences a block at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from attsvm.base.errors import InputError
from attsvm.datasets.attention_data import BoolArray, FloatArray, IntArray
from attsvm.margins.checks import integers, reals
from attsvm.margins.operator import Margins


class PairMargins(Margins):
    r"""Margins of many queries over shared keys; rows are differences of two of the ``keys``.

    Everything that a :class:`~attsvm.margins.Margins` can do, with the same bits, and memory for
    one number a row instead of ``d_x``. Reading :attr:`differences` writes all rows out.

    Attributes:
        keys: ``(K, d_x)``, the keys of all texts, end to end.
        winner: ``(n,)``, the row of :attr:`keys` that each query selects.
        rival: ``(m,)``, the row of :attr:`keys` that each constraint asks to be beaten.

    Example:
        >>> import numpy as np
        >>> import attsvm
        >>> keys = np.random.default_rng(0).normal(size=(6, 8))
        >>> margins = attsvm.pair_margins(keys, queries=keys)
        >>> margins.m, margins.keys.shape, margins.differences.shape
        (15, (6, 8), (15, 8))
    """

    keys: FloatArray
    winner: IntArray
    rival: IntArray

    def __init__(
        self,
        keys: FloatArray,
        queries: FloatArray,
        offsets: IntArray,
        winner: IntArray,
        rival: IntArray,
        token: IntArray,
        selected: IntArray,
        origin: IntArray,
    ) -> None:
        fields = {
            "keys": keys,
            "winner": winner,
            "rival": rival,
            "queries": queries,
            "offsets": offsets,
            "token": token,
            "selected": selected,
            "origin": origin,
            "rhs": np.ones(len(rival)),
            "equality": None,
            "kind": "position",
        }
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    @property
    def differences(self) -> FloatArray:
        """All rows ``(m, d_x)``, written out anew."""
        return self._rows(slice(None))

    @property
    def m(self) -> int:
        """Number of constraints."""
        return len(self.rival)

    @property
    def shape(self) -> tuple[int, int]:
        """Shape ``(d_x, d_z)`` of the weights."""
        return int(self.keys.shape[1]), int(self.queries.shape[1])

    _threaded = False  # each thread would form rows of its own

    def estimate(self, W: FloatArray) -> FloatArray:
        r"""Margins ``(m,)`` from whole logits, :math:`k_\alpha^\top Wq-k_t^\top Wq`: much faster
        than a call, with the rounding of the logits. For choosing rows, not for certificates.
        """
        out = np.empty(self.m)
        moved = self.queries @ W.T
        lows, highs = self._windows
        for first, last, rows in self._runs(self.shape[0]):
            # keys of one text lie together: only those between the first and the last are read
            low, high = int(lows[first:last].min()), int(highs[first:last].max())
            logits = moved[first:last] @ self.keys[low:high].T
            of_winner = logits[np.arange(last - first), self.winner[first:last] - low]
            sequence = self.sequence[rows] - first
            out[rows] = of_winner[sequence] - logits[sequence, self.rival[rows] - low]
        return out

    @cached_property
    def _windows(self) -> tuple[IntArray, IntArray]:
        """The rows of :attr:`keys` between which the keys of each query lie, ``(n,)`` each: the
        first, and one past the last.
        """
        low, high = self.winner.copy(), self.winner + 1
        filled = np.flatnonzero(np.diff(self.offsets))
        if len(filled):
            starts = self.offsets[filled]
            low[filled] = np.minimum(low[filled], np.minimum.reduceat(self.rival, starts))
            high[filled] = np.maximum(high[filled], np.maximum.reduceat(self.rival, starts) + 1)
        return low, high

    def _rows(self, index: Any) -> FloatArray:
        D: FloatArray = self.keys[self.winner[self.sequence[index]]]
        D -= self.keys[self.rival[index]]
        return D


def pair_margins(
    keys: ArrayLike | Sequence[ArrayLike],
    queries: ArrayLike | Sequence[ArrayLike],
    selected: ArrayLike | Sequence[ArrayLike] | None = None,
    *,
    causal: bool = True,
    positions: ArrayLike | Sequence[ArrayLike] | None = None,
    classes: ArrayLike | Sequence[ArrayLike] | None = None,
    visible: ArrayLike | Sequence[ArrayLike] | None = None,
) -> PairMargins:
    r"""The margins of what queries select among shared keys:
    :math:`(k_{\alpha_j}-k_t)^\top Wq_j\ge1`.

    For every query :math:`j` and every visible :math:`t` that is not equivalent to
    :math:`\alpha_j`. Keys that are equal to the selected one are equivalent to it, and so are
    tokens of the same class: no weights tell the first apart, and the second need not be.

    Args:
        keys: ``(T, d_x)``, or one such array per text.
        queries: ``(q, d_z)``, or one such array per text.
        selected: ``(q,)``, the position that each query selects; the largest :math:`k_t^\top q_j`
            when left out (then keys and queries have the same width).
        causal: a query sees the keys up to its own position.
        positions: ``(q,)``, the position of each query in its text; 0 to q - 1 when left out.
        classes: ``(T,)`` integers, equal for equivalent tokens.
        visible: ``(q, T)`` booleans, the keys that each query sees, instead of ``causal``.

    Returns:
        The programme; its "sequences" are the queries, and ``origin`` holds text and position of
        each.

    Raises:
        InputError: shapes that do not fit, values that are not finite, positions outside the text,
            a selected key that a causal query does not see.

    Source:
        Programme SAtt-SVM of Tarzanagh et al., *Transformers as Support Vector Machines* (2023),
        appendix, without the copies of the keys.

    Example:
        >>> import numpy as np
        >>> import attsvm
        >>> margins = attsvm.pair_margins(np.eye(3), queries=np.eye(3), selected=[0, 0, 1])
        >>> margins.origin.tolist(), np.diff(margins.offsets).tolist()
        ([[0, 0], [0, 1], [0, 2]], [0, 1, 2])
        >>> attsvm.max_margin(margins).W.round(3).tolist()
        [[0.0, 0.5, -0.333], [0.0, -0.5, 0.667], [0.0, 0.0, -0.333]]
    """
    K = _arrays_by_text("keys", keys)
    Q = _arrays_by_text("queries", queries)
    if len(K) != len(Q):
        raise InputError(f"keys has {len(K)} texts and queries {len(Q)}; give one of each per text")
    arguments = zip(
        K,
        Q,
        _per_text("selected", selected, len(K)),
        _per_text("positions", positions, len(K)),
        _per_text("classes", classes, len(K)),
        _per_text("visible", visible, len(K), 2),
        strict=True,
    )
    texts = [
        _compare_in_text(f" of text {i}" if len(K) > 1 else "", causal, *of_text)
        for i, of_text in enumerate(arguments)
    ]
    # the keys of all texts lie end to end, so positions in a text are shifted by its first key
    first_keys = np.cumsum([0, *(len(keys_of_text) for keys_of_text in K[:-1])])
    counts, rivals, winners, positions_of_queries = zip(*texts, strict=True)
    token, selected_positions = np.concatenate(rivals), np.concatenate(winners)
    text = np.repeat(np.arange(len(Q)), [len(queries_of_text) for queries_of_text in Q])
    shifts = first_keys[text]
    query_counts = np.concatenate(counts)
    return PairMargins(
        np.concatenate(K),
        np.concatenate(Q),
        np.concatenate([[0], np.cumsum(query_counts)]),
        selected_positions + shifts,
        token + np.repeat(shifts, query_counts),
        token,
        selected_positions,
        np.stack([text, np.concatenate(positions_of_queries)], axis=1),
    )


def _compare_in_text(
    where: str,
    causal: bool,
    keys: FloatArray,
    queries: FloatArray,
    selected: ArrayLike | None,
    positions: ArrayLike | None,
    classes: ArrayLike | None,
    visible: ArrayLike | None,
) -> tuple[IntArray, IntArray, IntArray, IntArray]:
    """The comparisons that one text asks for.

    1. The keys that each query sees, by position or as ``visible`` says.
    2. The key that it selects.
    3. Its rivals: visible keys that are neither equal to the selected one nor of its class.

    Returns:
        Number of rivals per query ``(q,)``, their positions ``(rows,)``, the selected positions
        ``(q,)``, the positions of the queries ``(q,)``.
    """
    T, q = len(keys), len(queries)
    # 1. visible keys
    at = np.arange(q) if positions is None else _positions("positions", positions, q, T, where)
    if positions is None and q > T:
        raise InputError(f"{q} queries{where} have {T} keys; give the positions of the queries")
    is_visible: BoolArray = (
        np.arange(T) <= at[:, None] if causal else np.ones((q, T), dtype=np.bool_)
    )
    if visible is not None:
        is_visible = np.asarray(visible)
        if is_visible.shape != (q, T) or is_visible.dtype != np.bool_:
            raise InputError(
                f"visible has shape {is_visible.shape} and dtype {is_visible.dtype}{where}; it must"
                f" be booleans ({q}, {T})"
            )
    # 2. the selected key
    if selected is None:
        if keys.shape[1] != queries.shape[1]:
            raise InputError(
                f"keys have width {keys.shape[1]} and queries {queries.shape[1]}; give selected"
            )
        chosen = np.argmax(np.where(is_visible, queries @ keys.T, -np.inf), axis=1).astype(np.int64)
    else:
        chosen = _positions("selected", selected, q, T, where)
        is_hidden = ~is_visible[np.arange(q), chosen]
        if is_hidden.any():
            j = int(np.flatnonzero(is_hidden)[0])
            raise InputError(
                f"selected[{j}]{where} is {chosen[j]}, which the query at position {at[j]} does"
                " not see; select a position that it sees"
            )
    # 3. rivals
    group = _group_equal_rows(keys)
    rivals = is_visible & (group[chosen][:, None] != group)
    if classes is not None:
        label = integers("classes", classes)
        if label.shape != (T,):
            raise InputError(f"classes has shape {label.shape}{where}; it must be ({T},)")
        rivals &= label[chosen][:, None] != label
    counts = rivals.sum(axis=1)
    return counts, np.nonzero(rivals)[1].astype(np.int64), chosen, at


def _group_equal_rows(keys: FloatArray) -> IntArray:
    """Numbers ``(T,)`` that are equal for equal rows."""
    number: dict[bytes, int] = {}
    rows = keys + 0.0  # no negative zero
    return np.array([number.setdefault(row.tobytes(), len(number)) for row in rows])


def _arrays_by_text(name: str, value: Any) -> list[FloatArray]:
    """One array ``(tokens, features)`` per text, all of one width."""
    is_one_text = not isinstance(value, list | tuple) and np.ndim(value) == 2
    arrays = [value] if is_one_text else list(value)
    if not arrays:
        raise InputError(f"{name} is empty; give one array (tokens, features) per text")
    texts = [
        reals(name if is_one_text else f"{name}[{i}]", array, (None, None), "(tokens, features)")
        for i, array in enumerate(arrays)
    ]
    widths = sorted({text.shape[1] for text in texts})
    if len(widths) > 1:
        raise InputError(f"{name} have widths {widths}; all texts must have the same")
    return texts


def _per_text(name: str, value: Any, texts: int, axes: int = 1) -> list[Any]:
    """One entry per text of an argument whose arrays have so many axes; None where it is left
    out.
    """
    if value is None:
        return [None] * texts
    if texts == 1 and (not isinstance(value, list | tuple) or np.ndim(value[0]) < axes):
        return [value]
    entries = list(value)
    if len(entries) != texts:
        raise InputError(f"{name} has {len(entries)} entries for {texts} texts; give one per text")
    return entries


def _positions(name: str, value: ArrayLike, q: int, T: int, where: str) -> IntArray:
    """``q`` positions in a text of ``T`` tokens, checked."""
    array = integers(name, value)
    if array.shape != (q,):
        raise InputError(f"{name} has shape {array.shape}{where}; it must be ({q},)")
    outside = (array < 0) | (array >= T)
    if outside.any():
        j = int(np.flatnonzero(outside)[0])
        raise InputError(f"{name}[{j}]{where} is {array[j]}; the text has positions 0 to {T - 1}")
    return array
