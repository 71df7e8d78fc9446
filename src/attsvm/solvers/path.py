r"""Sequences of related programmes, each solved from the solution of the one before.

What goes from one solution to the next is the weights, the multipliers and the step of the splitting. Rows are matched by sequence,
selected token and rival token, so the selection may change in some sequences: their multipliers start at zero. Every solution is
certified from its own margins, as if it had been solved alone; a start only saves time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from attsvm.data import FloatArray, IntArray
from attsvm.errors import InputError
from attsvm.geometry import Norm
from attsvm.margins import Margins
from attsvm.solvers.solution import MarginSolution


class Start(NamedTuple):
    """Where a solver starts: multipliers, and what else is known.

    Attributes:
        dual: ``(m,)`` multipliers of the new programme.
        W: ``(d_x, d_z)`` weights of the earlier one, or ``None``.
        step: of its splitting, or ``None``.
    """

    dual: FloatArray
    W: FloatArray | None = None
    step: float | None = None


def margin_path(
    margins: Margins | Sequence[Margins],
    norm: Norm | Sequence[Norm],
    *,
    slack: float | None = None,
    tol: float | None = None,
    max_seconds: float | None = None,
) -> list[MarginSolution]:
    r"""Solutions of a sequence of related programmes: over norms, over drifting data, over selections of a training run.

    .. math:: W_k=\arg\min_W \|W\|_{(k)}\ \text{ subject to }\ \langle A^{(k)}_c,W\rangle\ge b^{(k)}_c,\qquad k=1,2,\dots

    Args:
        margins: one programme for all norms, or one for each step, of the same number of sequences and the same shape of weights.
        norm: one norm for all programmes, or one for each step.
        slack: penalty of the soft margin, see :func:`attsvm.solvers.max_margin`; ``None`` for hard margins.
        tol: as for :func:`attsvm.solvers.max_margin`.
        max_seconds: wall-clock limit for each programme.

    Returns:
        One solution per step, each with its own certificate and status. A step after one without a solution starts from the last
        that had one.

    Raises:
        InputError: sequences of different lengths, or nothing to vary; and what :func:`attsvm.solvers.max_margin` raises.
    """
    from attsvm.solvers.front import max_margin

    programmes = None if isinstance(margins, Margins) else list(margins)
    norms = None if isinstance(norm, Norm) else list(norm)
    if programmes is None and norms is None:
        raise InputError("margin_path was given one programme and one norm; give a list of one of them, or call max_margin")
    if programmes is not None and norms is not None and len(programmes) != len(norms):
        raise InputError(f"margin_path was given {len(programmes)} programmes and {len(norms)} norms; give as many of one as of the other")
    steps = len(programmes if programmes is not None else norms or [])
    found: list[MarginSolution] = []
    last: MarginSolution | None = None
    for k in range(steps):
        here = margins if isinstance(margins, Margins) else margins[k]
        by = norm if isinstance(norm, Norm) else norm[k]
        solution = max_margin(here, by, slack=slack, tol=tol, warm_start=last, max_seconds=max_seconds)
        found.append(solution)
        if solution.status != "infeasible" and solution.gap < 1.0:
            last = solution
    return found


def carried(margins: Margins, earlier: MarginSolution, slack: float | None) -> Start | None:
    """The start that an earlier solution gives for ``margins``; ``None`` when it has no weights to give.

    The multipliers of hard margins, which mean the same at any scale, get the scale that is best for the Frobenius norm.

    Raises:
        InputError: another number of sequences, or weights of another shape.
    """
    old = earlier.margins
    if old.n != margins.n or old.shape != margins.shape:
        raise InputError(
            f"warm_start solves {old.n} sequences with weights {old.shape}; the programme has {margins.n} sequences with weights "
            f"{margins.shape}; start from a solution of the same sequences"
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
    return Start(dual, earlier.W, earlier.step) if dual.any() else None


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
