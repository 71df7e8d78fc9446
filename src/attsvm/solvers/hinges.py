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

import numpy as np

from attsvm.datasets.attention_data import FloatArray, IntArray
from attsvm.solvers.deadline import cholesky_work, time_for
from attsvm.solvers.programme import Programme, explicit_rows
from attsvm.solvers.threads import all_threads

_WIDTHS = 0.3 * 5.0 ** -np.arange(12.0)  # of the corner, in units of a margin
_STEPS = 100  # of Newton's method at one width
_WIDE = 0.05  # share of the rows in a wide corner that may still change sides
_HALVINGS = 40
_MOST = 6000  # equations of a system
_WRITTEN = 1 << 26  # entries of rows that are written out, 512 MB


def smoothed(p: Programme, dual: FloatArray, deadline: float) -> Iterator[FloatArray]:
    """Multipliers at one width of the corner after the other, from those that are there."""
    W = p.adjoint(dual)
    for width in _WIDTHS.tolist():
        steep, before, length = p.cap / width, np.zeros(p.m), 0.0
        for _ in range(_STEPS):
            lam = np.clip(steep * (p.b - p.values(W)), 0.0, p.cap)
            side = np.sign(lam) + (lam >= p.cap)
            corner = np.flatnonzero(side == 1.0)
            wide = _WIDE * len(corner) if len(corner) > 2 * p.dof else 0.0
            if length == 1.0 and np.count_nonzero(side != before) <= wide:
                break  # on one piece Newton's step is exact
            gradient = W - p.adjoint(lam)
            step = _newton(p, corner, steep[corner], gradient, deadline)
            if step is None or time.monotonic() > deadline:
                return
            before, length = side, _length(p, W, step, steep)
            W = W + length * step
        yield np.clip(steep * (p.b - p.values(W)), 0.0, p.cap)


def _newton(
    p: Programme, rows: IntArray, steep: FloatArray, gradient: FloatArray, deadline: float
) -> FloatArray | None:
    r"""``-(I + A^T S A)^{-1} gradient`` with the rows ``A`` of the corner; ``None`` where that
    is too large, takes longer than there is time, or is not definite.
    """
    from scipy.linalg import LinAlgError, cho_factor, cho_solve

    if len(rows) == 0:
        return -gradient
    few = len(rows) < p.dof
    if min(len(rows), p.dof) > _MOST or not (few or len(rows) * p.dof <= _WRITTEN):
        return None
    work = cholesky_work(len(rows), sum(p.shape)) if few else cholesky_work(p.dof, len(rows))
    if not time_for(work, deadline):
        return None
    try:
        with all_threads(min(len(rows), p.dof)):
            if few:
                G = p.gram(rows)
                G[np.diag_indices(len(rows))] += 1.0 / steep
                along = p.values(gradient)[rows]
                part = np.zeros(p.m)
                part[rows] = cho_solve(cho_factor(G, lower=True), along)
                return p.adjoint(part) - gradient
            A = explicit_rows(p, rows) * np.sqrt(steep)[:, None]
            H = A.T @ A
            H[np.diag_indices(p.dof)] += 1.0
            found: FloatArray = -cho_solve(cho_factor(H), gradient.reshape(-1))
            return found.reshape(gradient.shape)
    except LinAlgError:
        return None


def _length(p: Programme, W: FloatArray, step: FloatArray, steep: FloatArray) -> float:
    """Where the slope along the step vanishes, which is a broken line that rises."""
    short, change = p.b - p.values(W), p.values(step)
    here, there = float(np.vdot(W, step)), float(np.vdot(step, step))

    def slope(t: float) -> float:
        lam = np.clip(steep * (short - t * change), 0.0, p.cap)
        return here + t * there - float(lam @ change)

    low, high = 0.0, 1.0
    if slope(high) <= 0.0:
        return high
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if slope(middle) <= 0.0 else (low, middle)
    return high if low == 0.0 else low
