r"""Proximal multiplier method with semismooth Newton steps: what remains when pivoting does not
settle.

Around a multiplier estimate :math:`\lambda` it minimises

.. math:: \varphi(W)=\tfrac12\|W\|_F^2+\sum_c h_c(\langle A_c,W\rangle),\qquad
          -h_c'(t)=\operatorname{clip}(\lambda_c+\sigma(b_c-t),\,0,\,C_c),

and takes the clipped values as the next :math:`\lambda` (Rockafellar, *Augmented Lagrangians and
applications of the proximal point algorithm*, 1976). :math:`\varphi` is piecewise quadratic, so
Newton steps with an exact line search end after finitely many. The Hessian
:math:`I+\sigma A_P^\top A_P` is factored in whichever space is smaller: that of the rows :math:`P`
strictly inside the clip, or that of the entries of :math:`W`, where it is assembled from
:math:`\sum_i (D_i^\top D_i)\otimes(z_i z_i^\top)` as one product of symmetric halves. On an
infeasible hard-margin programme the multipliers grow along a Farkas certificate.
"""

from __future__ import annotations

import time
from typing import Literal

import numpy as np

from attsvm.data import FloatArray, IntArray
from attsvm.solvers.programme import kernels
from attsvm.solvers.programme.programme import Programme
from attsvm.solvers.programme.threads import all_threads

Outcome = Literal["moved", "stalled", "stopped"]

LARGEST_SYSTEM = 6000
_CHUNK = 4096  # sequences whose moments are held at a time


class ProximalMultipliers:
    """Multiplier estimate with its weights; :meth:`advance` makes one outer step in place.

    Attributes:
        dual: multiplier estimate, inside its box.
        W: minimiser of the last inner problem.
        sigma: weight of the margins.
        moved: change of the multipliers in the last outer step.
        newton_steps: linear systems solved so far.
    """

    def __init__(self, programme: Programme, dual: FloatArray, sigma: float) -> None:
        self.programme = programme
        self.dual = dual
        self.W = programme.adjoint(dual)
        self.values = programme.values(self.W)
        self.sigma = sigma
        self.moved = np.zeros_like(dual)
        self.newton_steps = 0

    def advance(self, tolerance: float, steps: int, deadline: float) -> Outcome:
        """Minimise the inner problem to a gradient of ``tolerance * max(1, ||W||)`` and update the
        multipliers.

        Returns:
            ``moved``; ``stalled`` when ``steps`` were not enough (nothing is updated, ``sigma``
            should shrink); or ``stopped`` when the linear system is too large, cannot be factored,
            or the clock passed ``deadline``.
        """
        p = self.programme
        W, values = self.W, self.values
        before, seen = np.inf, np.zeros(0, dtype=np.int64)
        for _ in range(steps):
            target = self.dual + self.sigma * (p.b - values)
            gradient = W - p.adjoint(np.clip(target, 0.0, p.cap))
            rows = np.flatnonzero((target > 0.0) & (target < p.cap))
            size = float(np.linalg.norm(gradient))
            if size <= tolerance * max(1.0, float(np.linalg.norm(W))) or (
                size >= 0.5 * before and np.array_equal(rows, seen)
            ):
                break
            before, seen = size, rows
            step = self._newton_step(gradient, rows)
            self.newton_steps += 1
            if step is None or time.monotonic() > deadline:
                return "stopped"
            along = p.values(step)
            t = self._line_search(W, values, step, along)
            W, values = W + t * step, values + t * along
        else:
            return "stalled"
        new = np.clip(self.dual + self.sigma * (p.b - values), 0.0, p.cap)
        self.moved, self.dual = new - self.dual, new
        self.W = p.adjoint(new)
        self.values = p.values(self.W)
        return "moved"

    def _newton_step(self, gradient: FloatArray, rows: IntArray) -> FloatArray | None:
        from scipy.linalg.lapack import dpotrf, dpotrs

        p = self.programme
        if len(rows) == 0:
            return -gradient
        if min(len(rows), p.dof) > LARGEST_SYSTEM:
            return None
        if len(rows) <= p.dof:
            K = p.gram(rows)
            K[np.diag_indices(len(rows))] += 1.0 / self.sigma
            with all_threads(len(K)):
                factor, failed = dpotrf(K, lower=1, overwrite_a=1, clean=0)
            if failed:
                return None
            spread = np.zeros(p.m)
            spread[rows] = dpotrs(factor, p.values(gradient)[rows], lower=1)[0]
            return p.adjoint(spread) - gradient
        K = weighted_moment(p, rows)
        K *= self.sigma
        K[np.diag_indices(p.dof)] += 1.0
        with all_threads(len(K)):
            factor, failed = dpotrf(K, lower=1, overwrite_a=1, clean=0)
        if failed:
            return None
        solved: FloatArray = dpotrs(factor, -gradient.reshape(-1), lower=1)[0]
        return solved.reshape(gradient.shape)

    def _line_search(
        self, W: FloatArray, values: FloatArray, step: FloatArray, along: FloatArray
    ) -> float:
        """The minimiser of ``phi(W + t step)`` over ``t``: the root of a monotone piecewise linear
        function, by safeguarded Newton.
        """
        p = self.programme
        constant, square = float(np.sum(W * step)), float(np.sum(step * step))
        offset = self.dual + self.sigma * (p.b - values)
        rate = self.sigma * along

        def slope(t: float) -> tuple[float, float]:
            target = offset - t * rate
            inside = (target > 0.0) & (target < p.cap)
            value = constant + t * square - float(np.clip(target, 0.0, p.cap) @ along)
            return value, square + float(rate[inside] @ along[inside])

        low, high, t = 0.0, np.inf, 1.0
        start = abs(slope(0.0)[0])
        for _ in range(60):
            value, curvature = slope(t)
            if abs(value) <= 1e-3 * start:
                break
            low, high = (t, high) if value < 0 else (low, t)
            t = t - value / curvature
            if not low < t < high:
                t = 2.0 * low if np.isinf(high) else 0.5 * (low + high)
        return t


def weighted_moment(p: Programme, rows: IntArray, weights: FloatArray | None = None) -> FloatArray:
    r""":math:`\sum_{c\in P} w_c\, a_c a_c^\top` with
    :math:`a_c=\operatorname{vec}(\delta_c z^\top)`, ``(dof, dof)``, Fortran order.
    """
    d_x, d_z = p.D.shape[1], p.Z.shape[1]
    D = p.D if weights is None else None
    active, first, counts = np.unique(p.sequence[rows], return_index=True, return_counts=True)
    last = first + counts
    z_row, z_col = np.triu_indices(d_z)
    total = np.zeros((d_x * (d_x + 1) // 2, len(z_row)))
    if weights is not None:
        D = np.zeros_like(p.D)
        D[rows] = p.D[rows] * np.sqrt(weights)[:, None]
    assert D is not None
    for start in range(0, len(active), _CHUNK):
        part = slice(start, start + _CHUNK)
        moments = kernels.token_moments(D, first[part], last[part], rows)
        Z = p.Z[active[part]]
        total += moments.T @ (Z[:, z_row] * Z[:, z_col])
    x_pair, z_pair = np.zeros((d_x, d_x), dtype=np.int64), np.zeros((d_z, d_z), dtype=np.int64)
    x_pair[np.triu_indices(d_x)] = np.arange(total.shape[0])
    z_pair[z_row, z_col] = np.arange(total.shape[1])
    x_pair, z_pair = np.maximum(x_pair, x_pair.T), np.maximum(z_pair, z_pair.T)
    K = total[x_pair.reshape(-1)][:, z_pair.reshape(-1)].reshape(d_x, d_x, d_z, d_z)
    return np.ascontiguousarray(K.transpose(0, 2, 1, 3)).reshape(d_x * d_z, d_x * d_z).T
