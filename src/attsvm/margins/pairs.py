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
        winner: ``(n,)``, the place in :attr:`keys` of the key that each query selects.
        rival: ``(m,)``, the place in :attr:`keys` of the key that each row asks to be beaten.

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
        """``(m, d_x)``: all rows written out anew, ``m d_x`` numbers."""
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
        r"""The margins from whole logits, :math:`k_\alpha^\top Wq-k_t^\top Wq`: much faster than a
        call, with the rounding of the logits. For choosing rows, not for certificates.
        """
        out = np.empty(self.m)
        moved = self.queries @ W.T
        lows, highs = self._windows
        for first, last, rows in self._runs():
            low, high = int(lows[first:last].min()), int(highs[first:last].max())
            logits = moved[first:last] @ self.keys[low:high].T
            own = logits[np.arange(last - first), self.winner[first:last] - low]
            sequence = self.sequence[rows] - first
            out[rows] = own[sequence] - logits[sequence, self.rival[rows] - low]
        return out

    @cached_property
    def _windows(self) -> tuple[IntArray, IntArray]:
        """The places in :attr:`keys` between which the keys of each query lie."""
        low, high = self.winner.copy(), self.winner + 1
        filled = np.flatnonzero(np.diff(self.offsets))
        if len(filled):
            starts = self.offsets[filled]
            low[filled] = np.minimum(low[filled], np.minimum.reduceat(self.rival, starts))
            high[filled] = np.maximum(high[filled], np.maximum.reduceat(self.rival, starts) + 1)
        return low, high

    def _rows(self, part: Any) -> FloatArray:
        D: FloatArray = self.keys[self.winner[self.sequence[part]]]
        D -= self.keys[self.rival[part]]
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
    K = _texts("keys", keys)
    Q = _texts("queries", queries)
    if len(K) != len(Q):
        raise InputError(f"keys has {len(K)} texts and queries {len(Q)}; give one of each per text")
    chosen = _per_text("selected", selected, len(K))
    places = _per_text("positions", positions, len(K))
    groups = _per_text("classes", classes, len(K))
    views = _per_text("visible", visible, len(K), 2)
    parts = [
        _one_text(f" of text {i}" if len(K) > 1 else "", k, q, alpha, place, group, view, causal)
        for i, (k, q, alpha, place, group, view) in enumerate(
            zip(K, Q, chosen, places, groups, views, strict=True)
        )
    ]
    bases = np.concatenate([[0], np.cumsum([len(each) for each in K])]).astype(np.int64)
    return PairMargins(
        np.concatenate(K),
        np.concatenate(Q),
        np.concatenate([[0], np.cumsum(np.concatenate([part[0] for part in parts]))]),
        np.concatenate([part[2] + base for part, base in zip(parts, bases, strict=False)]),
        np.concatenate([part[1] + base for part, base in zip(parts, bases, strict=False)]),
        np.concatenate([part[1] for part in parts]),
        np.concatenate([part[2] for part in parts]),
        np.concatenate(
            [np.stack([np.full(len(p[3]), i), p[3]], axis=1) for i, p in enumerate(parts)]
        ),
    )


def _one_text(
    where: str,
    keys: FloatArray,
    queries: FloatArray,
    selected: ArrayLike | None,
    positions: ArrayLike | None,
    classes: ArrayLike | None,
    visible: ArrayLike | None,
    causal: bool,
) -> tuple[IntArray, IntArray, IntArray, IntArray]:
    """Rivals per query, their positions, the selected positions, the positions of the queries."""
    T, q = len(keys), len(queries)
    place = np.arange(q) if positions is None else _positions("positions", positions, q, T, where)
    if positions is None and q > T:
        raise InputError(f"{q} queries{where} have {T} keys; give the positions of the queries")
    seen: BoolArray = np.arange(T) <= place[:, None] if causal else np.ones((q, T), dtype=np.bool_)
    if visible is not None:
        seen = np.asarray(visible)
        if seen.shape != (q, T) or seen.dtype != np.bool_:
            raise InputError(
                f"visible has shape {seen.shape} and dtype {seen.dtype}{where}; it must be"
                f" booleans ({q}, {T})"
            )
    if selected is None:
        if keys.shape[1] != queries.shape[1]:
            raise InputError(
                f"keys have width {keys.shape[1]} and queries {queries.shape[1]}; give selected"
            )
        chosen = np.argmax(np.where(seen, queries @ keys.T, -np.inf), axis=1).astype(np.int64)
    else:
        chosen = _positions("selected", selected, q, T, where)
        late = ~seen[np.arange(q), chosen]
        if late.any():
            j = int(np.flatnonzero(late)[0])
            raise InputError(
                f"selected[{j}]{where} is {chosen[j]}, which the query at position {place[j]} does"
                " not see; select a position that it sees"
            )
    group = _equal_rows(keys)
    rivals = seen & (group[chosen][:, None] != group)
    if classes is not None:
        label = integers("classes", classes)
        if label.shape != (T,):
            raise InputError(f"classes has shape {label.shape}{where}; it must be ({T},)")
        rivals &= label[chosen][:, None] != label
    counts = rivals.sum(axis=1)
    return counts, np.nonzero(rivals)[1].astype(np.int64), chosen, place


def _equal_rows(keys: FloatArray) -> IntArray:
    """``(T,)``: the same number for rows that are equal."""
    number: dict[bytes, int] = {}
    rows = keys + 0.0  # no negative zero
    return np.array([number.setdefault(row.tobytes(), len(number)) for row in rows])


def _texts(name: str, value: Any) -> list[FloatArray]:
    whole = not isinstance(value, list | tuple) and np.ndim(value) == 2
    arrays = [value] if whole else list(value)
    if not arrays:
        raise InputError(f"{name} is empty; give one array (tokens, features) per text")
    texts = [
        reals(name if whole else f"{name}[{i}]", each, (None, None), "(tokens, features)")
        for i, each in enumerate(arrays)
    ]
    if len({each.shape[1] for each in texts}) > 1:
        widths = sorted({each.shape[1] for each in texts})
        raise InputError(f"{name} have widths {widths}; all texts must have the same")
    return texts


def _per_text(name: str, value: Any, texts: int, axes: int = 1) -> list[Any]:
    if value is None:
        return [None] * texts
    if texts == 1 and (not isinstance(value, list | tuple) or np.ndim(value[0]) < axes):
        return [value]
    parts = list(value)
    if len(parts) != texts:
        raise InputError(f"{name} has {len(parts)} entries for {texts} texts; give one per text")
    return parts


def _positions(name: str, value: ArrayLike, q: int, T: int, where: str) -> IntArray:
    array = integers(name, value)
    if array.shape != (q,):
        raise InputError(f"{name} has shape {array.shape}{where}; it must be ({q},)")
    outside = (array < 0) | (array >= T)
    if outside.any():
        j = int(np.flatnonzero(outside)[0])
        raise InputError(f"{name}[{j}]{where} is {array[j]}; the text has positions 0 to {T - 1}")
    return array
