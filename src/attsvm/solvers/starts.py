r"""Warm starts: what an earlier solution gives to the solver of a related programme.

That is the weights and the multipliers. Rows are matched by sequence, selected token and rival
token, so the selection may change in some sequences: their multipliers start at zero.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from attsvm.base.errors import InputError
from attsvm.datasets.attention_data import FloatArray, IntArray
from attsvm.margins import Margins
from attsvm.solvers.solution import MarginSolution


class Start(NamedTuple):
    """Where a solver starts: multipliers, and what else is known.

    Attributes:
        dual: ``(m,)`` multipliers of the new programme.
        W: ``(d_x, d_z)`` weights of the earlier one, or ``None``.
    """

    dual: FloatArray
    W: FloatArray | None = None


def start_from(margins: Margins, earlier: MarginSolution, slack: float | None) -> Start | None:
    """The start that an earlier solution gives for ``margins``; ``None`` when it has no weights to
    give.

    The multipliers of hard margins, which mean the same at any scale, get the scale that is best
    for the Frobenius norm.

    Raises:
        InputError: another number of sequences, or weights of another shape.
    """
    old = earlier.margins
    if old.n != margins.n or old.shape != margins.shape:
        raise InputError(
            f"warm_start solves {old.n} sequences with weights {old.shape}; the programme has"
            f" {margins.n} sequences with weights {margins.shape}; start from a solution of the"
            " same sequences"
        )
    if earlier.status == "infeasible" or not earlier.norm > 0.0:
        return None
    same = (
        old.m == margins.m
        and np.array_equal(old.offsets, margins.offsets)
        and np.array_equal(old.token, margins.token)
        and np.array_equal(old.selected, margins.selected)
    )
    dual = earlier.dual if same else _matched(margins, old, earlier.dual)
    # An equality of one programme may be an inequality of the other.
    dual = np.where(margins.equalities, dual, np.maximum(dual, 0.0))
    pull = margins.adjoint(dual)
    top, bottom = float(margins.rhs @ dual), float(np.sum(pull * pull))
    if slack is None and top > 0.0 and 0.0 < bottom < np.inf:
        dual = dual * (top / bottom)
    return Start(dual, earlier.W) if dual.any() else None


def _matched(margins: Margins, old: Margins, dual: FloatArray) -> FloatArray:
    """Multipliers of the rows that both programmes have, zero for others."""
    keys, rows = np.unique(_keys(old), axis=0, return_index=True)
    wanted = _keys(margins)
    both, position = np.unique(np.concatenate([keys, wanted]), axis=0, return_inverse=True)
    of_key = np.zeros(len(both))
    of_key[position.reshape(-1)[: len(keys)]] = dual[rows]
    matched: FloatArray = of_key[position.reshape(-1)[len(keys) :]]
    return matched


def _keys(margins: Margins) -> IntArray:
    sequence = margins.sequence
    return np.stack([sequence, margins.selected[sequence], margins.token], axis=1).astype(np.int64)
