"""Rows that ask one token to beat others: the one form that all constructors give their rows."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from attsvm.datasets.attention_data import BoolArray, FloatArray, IntArray
from attsvm.margins.operator import Margins


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
