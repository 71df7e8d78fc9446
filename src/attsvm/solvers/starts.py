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
    """Multipliers, and weights if known, that a solver starts from.

    Attributes:
        dual: ``(m,)`` multipliers of the new programme.
        W: ``(d_x, d_z)`` weights of the earlier one, or ``None``.
    """

    dual: FloatArray
    W: FloatArray | None = None


def start_from(margins: Margins, earlier: MarginSolution, slack: float | None) -> Start | None:
    """The start that an earlier solution gives for ``margins``; ``None`` when it has no weights to
    give.

    1. Match the rows, and give each the multiplier that it had.
    2. Make the multipliers of inequalities positive.
    3. Scale those of hard margins, which mean the same at any scale, as is best for the Frobenius
       norm.

    Raises:
        InputError: another number of sequences, or weights of another shape.
    """
    earlier_margins = earlier.margins
    if earlier_margins.n != margins.n or earlier_margins.shape != margins.shape:
        raise InputError(
            f"warm_start solves {earlier_margins.n} sequences with weights"
            f" {earlier_margins.shape}; the programme has {margins.n} sequences with weights"
            f" {margins.shape}; start from a solution of the same sequences"
        )
    if earlier.status == "infeasible" or not earlier.norm > 0.0:
        return None
    # 1. Rows.
    same_rows = (
        earlier_margins.m == margins.m
        and np.array_equal(earlier_margins.offsets, margins.offsets)
        and np.array_equal(earlier_margins.token, margins.token)
        and np.array_equal(earlier_margins.selected, margins.selected)
    )
    dual = earlier.dual if same_rows else _match_rows(margins, earlier_margins, earlier.dual)
    # 2. An equality of one programme may be an inequality of the other.
    dual = np.where(margins.equalities, dual, np.maximum(dual, 0.0))
    # 3. Scale.
    pull = margins.adjoint(dual)
    linear, square = float(margins.rhs @ dual), float(np.sum(pull * pull))
    if slack is None and linear > 0.0 and 0.0 < square < np.inf:
        dual = dual * (linear / square)
    return Start(dual, earlier.W) if dual.any() else None


def _match_rows(margins: Margins, old: Margins, dual: FloatArray) -> FloatArray:
    """Multipliers of the rows that both programmes have, zero for others."""
    keys, rows = np.unique(_row_keys(old), axis=0, return_index=True)
    new_keys = _row_keys(margins)
    all_keys, position = np.unique(np.concatenate([keys, new_keys]), axis=0, return_inverse=True)
    dual_of_key = np.zeros(len(all_keys))
    dual_of_key[position.reshape(-1)[: len(keys)]] = dual[rows]
    matched: FloatArray = dual_of_key[position.reshape(-1)[len(keys) :]]
    return matched


def _row_keys(margins: Margins) -> IntArray:
    """``(m, 3)``: sequence, selected token and rival token of each row."""
    sequence = margins.sequence
    return np.stack([sequence, margins.selected[sequence], margins.token], axis=1).astype(np.int64)
