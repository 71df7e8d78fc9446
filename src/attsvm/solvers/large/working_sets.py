r"""Programmes of many rows and few unknowns, solved on the rows that matter.

The programme is solved on a working set of rows; all rows are priced with the weights found, the
most violated ones join, and so on until no row is violated:

.. math:: S_{k+1}=S_k\cup\{\text{worst rows of } W_k\},\qquad
   W_k=\arg\min\{\|W\|:\langle A_c,W\rangle\ge b_c,\ c\in S_k\}.

Multipliers of a working set, with zeros elsewhere, are multipliers of the whole programme, so the
bound of the last working set is a bound for all rows, and its Farkas certificate is one for all
rows. The solution is certified on all rows, see :mod:`attsvm.solvers.proofs`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from attsvm.data import BoolArray, FloatArray, IntArray
from attsvm.geometry import Norm
from attsvm.margins import Margins, PairMargins
from attsvm.solvers.answers.outcomes import Request, solved
from attsvm.solvers.answers.solution import MarginSolution
from attsvm.solvers.proofs import certify_hard, certify_soft

_WRITTEN = 1 << 21  # entries up to which rows are written out and solved together
_MANY = 4  # rows per unknown from which most rows cannot matter
_VAST = 50_000  # rows from which the ordinary solvers stall where there are few unknowns
_ROUNDS = 200
_ROUGH = 1e-3  # tolerance of the working sets while many rows are still missing
_FEW = 10  # missing rows from which a working set is solved to the full tolerance

Inner = Callable[[Margins, float, FloatArray | None, float | None], MarginSolution]


def worth(margins: Margins) -> bool:
    """Whether working sets pay: more rows than can matter, or than should be written out. Where all
    rows are written out already, only far more rows than that.
    """
    unknowns = margins.shape[0] * margins.shape[1]
    if not isinstance(margins, PairMargins):
        return margins.m > max(_VAST, _MANY * unknowns)
    return margins.m > max(2000, _MANY * unknowns) or margins.m * margins.shape[0] > _WRITTEN


def solve(margins: Margins, norm: Norm, request: Request, inner: Inner) -> MarginSolution:
    """The solution of ``margins`` in ``norm``, by ``inner`` on working sets."""
    started = time.monotonic()
    estimate = getattr(margins, "estimate", margins)
    exact = estimate is margins
    dual = np.zeros(margins.m)
    rows = _first(margins, estimate)
    iterations, rough = 0, _ROUGH
    for _ in range(_ROUNDS):
        left = None
        if request.max_seconds is not None:
            left = max(request.max_seconds - (time.monotonic() - started), 1e-3)
        start = dual[rows] if iterations else None
        part = inner(margins.restricted(rows), max(rough, 0.25 * request.tol), start, left)
        iterations += max(part.iterations, 1)
        dual = np.zeros(margins.m)
        dual[rows] = part.dual
        if part.status == "infeasible" or not part.has_weights:
            return replace(
                part,
                margins=margins,
                dual=dual,
                support=rows[part.support],
                slacks=np.zeros(margins.m),
                iterations=iterations,
            )
        short = margins.rhs - (margins if exact else estimate)(part.W)
        short[rows] = -np.inf
        late = request.max_seconds is not None and (
            time.monotonic() - started > request.max_seconds
        )
        wrong = short > 0.25 * max(rough, request.tol)
        if rough and not late and np.count_nonzero(wrong) < _FEW:
            rough = 0.0
            wrong = short > 0.25 * request.tol
        elif late or not wrong.any():
            found = _whole(margins, norm, part, dual, request, iterations)
            if late or exact or found.status == "optimal":
                return found
            exact = True
            continue
        rows = _joined(margins, rows, part, short, wrong)
    return _whole(margins, norm, part, dual, request, iterations)


def _first(margins: Margins, estimate: Callable[[FloatArray], FloatArray]) -> IntArray:
    """Of every sequence the row that the sum of all rows violates most."""
    W = margins.adjoint(np.full(margins.m, 1.0 / max(margins.m, 1)))
    return _worst(margins, margins.rhs - estimate(W), np.ones(margins.m, dtype=np.bool_))


def _worst(margins: Margins, short: FloatArray, among: BoolArray) -> IntArray:
    """Of every sequence that has one, the row among these that falls short most."""
    filled = np.flatnonzero(np.diff(margins.offsets))
    masked = np.where(among, short, -np.inf)
    starts = margins.offsets[filled]
    worst = np.maximum.reduceat(masked, starts)
    at = np.flatnonzero((masked == np.repeat(worst, np.diff(margins.offsets)[filled])) & among)
    first = np.unique(margins.sequence[at], return_index=True)[1]
    found: IntArray = at[first].astype(np.int64)
    return found


def _joined(
    margins: Margins, rows: IntArray, part: MarginSolution, short: FloatArray, wrong: BoolArray
) -> IntArray:
    """The next working set: the worst row of every sequence, the worst rows of all, and those of
    the present set that matter.
    """
    unknowns = margins.shape[0] * margins.shape[1]
    new = _worst(margins, short, wrong)
    most = max(2 * unknowns, 200)
    if len(new) > most:
        new = new[np.argpartition(-short[new], most)[:most]]
    margin = part.margins(part.W) - part.margins.rhs
    rows = rows[(part.dual != 0) | (margin < 0.1)]
    return np.union1d(rows, new).astype(np.int64)


def _whole(
    margins: Margins,
    norm: Norm,
    part: MarginSolution,
    dual: FloatArray,
    request: Request,
    iterations: int,
) -> MarginSolution:
    found = (
        certify_hard(margins, norm, part.W, dual)
        if request.slack is None
        else certify_soft(margins, norm, part.W, dual, request.slack)
    )
    solution = solved(margins, found, request, f"working sets, {part.solver}", iterations)
    return replace(
        solution,
        rank=part.rank,
        rank_bound=part.rank_bound,
        unique=True if part.unique else None,
        geometry=norm,
        step=part.step,
    )
