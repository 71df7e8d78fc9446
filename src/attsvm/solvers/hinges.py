r"""Frobenius soft margins of many rows: Newton's method on smoothed hinges.

Where most rows are missed, which of them are missed is found by Newton's method on

.. math:: \min_W \tfrac12\|W\|_F^2 + \sum_c h_c(b_c-\langle A_c,W\rangle),\qquad
   h_c'(s)=\lambda_c=\min\bigl(\max(C_c\,s/\delta,\,0),\,C_c\bigr),

whose minimum is the soft margin as :math:`\delta\to0` (Huber's hinge). A step solves a system of
the rows in the corner, :math:`0<s<\delta`, or of the entries of the weights, whichever are fewer.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from attsvm.datasets.attention_data import FloatArray, IntArray
from attsvm.solvers.deadline import cholesky_work, time_for
from attsvm.solvers.programme import Programme, explicit_rows
from attsvm.solvers.threads import all_threads


class HingeOptions(NamedTuple):
    """Numbers of the method; chosen on random programmes that nothing separates.

    Attributes:
        first_width: width of the corner to begin with, in units of a margin, and
        narrowing: by which it is divided from one to the next.
        widths: widths.
        steps: Newton steps at one width, at most; untuned.
        changing: share of the rows in a corner of many rows that may still change pieces.
        halvings: of an interval of steps.
        equations: of a system, at most: a Cholesky factor of 6000 takes 288 MB.
        entries: of the rows written out, at most: 512 MB.
    """

    first_width: float = 0.3
    narrowing: float = 5.0
    widths: int = 12
    steps: int = 100
    changing: float = 0.05
    halvings: int = 40
    equations: int = 6000
    entries: int = 1 << 26


HINGES = HingeOptions()


def smoothed(
    p: Programme, dual: FloatArray, deadline: float, options: HingeOptions = HINGES
) -> Iterator[FloatArray]:
    """Multipliers ``(m,)`` at one width of the corner after the other, from those that are there.

    1. Multipliers of the weights, and on which piece of its hinge each row is.
    2. On one piece Newton's step is exact: where no row has changed pieces, the width is done.
    3. A Newton step, as long as the slope falls.
    """
    W = p.adjoint(dual)
    widths = options.first_width * options.narrowing ** -np.arange(float(options.widths))
    for width in widths.tolist():
        # A narrower corner is steeper: multipliers reach their caps at its end.
        steepness, pieces_before, length = p.cap / width, np.zeros(p.m), 0.0
        for _ in range(options.steps):
            # 1. Pieces: 0 below the corner, 1 in it, 2 above.
            lam = np.clip(steepness * (p.b - p.values(W)), 0.0, p.cap)
            pieces = np.sign(lam) + (lam >= p.cap)
            corner = np.flatnonzero(pieces == 1.0)
            # 2. No change of pieces, or few in a wide corner.
            # In a wide corner no single row matters, and the next width finds them anew.
            may_change = options.changing * len(corner) if len(corner) > 2 * p.dof else 0.0
            if length == 1.0 and np.count_nonzero(pieces != pieces_before) <= may_change:
                break
            # 3. The step.
            gradient = W - p.adjoint(lam)
            step = _newton_step(p, corner, steepness[corner], gradient, deadline, options)
            if step is None or time.monotonic() > deadline:
                return
            pieces_before, length = pieces, _step_length(p, W, step, steepness, options)
            W = W + length * step
        yield np.clip(steepness * (p.b - p.values(W)), 0.0, p.cap)


def _newton_step(
    p: Programme,
    rows: IntArray,
    steepness: FloatArray,
    gradient: FloatArray,
    deadline: float,
    options: HingeOptions,
) -> FloatArray | None:
    r"""``-(I + A^T S A)^{-1} gradient`` with the rows ``A`` of the corner; ``None`` where that
    is too large, takes longer than there is time, or is not definite.
    """
    from scipy.linalg import LinAlgError, cho_factor, cho_solve

    if len(rows) == 0:
        return -gradient
    # The smaller of both systems.
    by_rows = len(rows) < p.dof
    if min(len(rows), p.dof) > options.equations:
        return None
    if not by_rows and len(rows) * p.dof > options.entries:
        return None
    work = cholesky_work(len(rows), sum(p.shape)) if by_rows else cholesky_work(p.dof, len(rows))
    if not time_for(work, deadline):
        return None
    try:
        with all_threads(min(len(rows), p.dof)):
            if by_rows:  # by the formula of Woodbury
                G = p.gram(rows)
                G[np.diag_indices(len(rows))] += 1.0 / steepness
                along = p.values(gradient)[rows]
                multipliers = np.zeros(p.m)
                multipliers[rows] = cho_solve(cho_factor(G, lower=True), along)
                return p.adjoint(multipliers) - gradient
            # Else the Hessian in the entries of the weights.
            A = explicit_rows(p, rows) * np.sqrt(steepness)[:, None]
            H = A.T @ A
            H[np.diag_indices(p.dof)] += 1.0
            step: FloatArray = -cho_solve(cho_factor(H), gradient.reshape(-1))
            return step.reshape(gradient.shape)
    except LinAlgError:
        return None


def _step_length(
    p: Programme, W: FloatArray, step: FloatArray, steepness: FloatArray, options: HingeOptions
) -> float:
    """The multiple, at most one, at which the slope along the step vanishes, which is a broken line
    that rises; by halving.
    """
    short, change = p.b - p.values(W), p.values(step)
    first_slope, curvature = float(np.vdot(W, step)), float(np.vdot(step, step))

    def slope(t: float) -> float:
        lam = np.clip(steepness * (short - t * change), 0.0, p.cap)
        return first_slope + t * curvature - float(lam @ change)

    low, high = 0.0, 1.0
    if slope(high) <= 0.0:
        return high
    for _ in range(options.halvings):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if slope(middle) <= 0.0 else (low, middle)
    # A step of zero would be none; and below the root the objective still falls.
    return high if low == 0.0 else low
