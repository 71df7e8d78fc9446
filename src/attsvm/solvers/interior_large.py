r"""Interior points without factorisations: Frobenius programmes on whose way more multipliers are
positive than a linear system takes.

The conditions of optimality with products :math:`\lambda_c s_c=\mu` instead of zero,

.. math:: W=A^\top\lambda,\qquad AW-b=s,\qquad \lambda,s>0,

are followed to :math:`\mu\to0` by predictor and corrector (Mehrotra, *On the implementation of a
primal-dual interior point method*, 1992). A step solves

.. math:: (I+A^\top\Theta A)\,\Delta W=g,\qquad \Theta=\operatorname{diag}(\lambda_c/s_c),

or, where few rows are left that matter, :math:`(\Theta^{-1}+AA^\top)\,\Delta\lambda=h`, by
conjugate gradients: a row is an outer product of two vectors, so a product takes two small matrix
products and no matrix of rows is made. The preconditioner of the first is the Kronecker product of
the weighted second moments of the differences and of the queries (Martens and Grosse, *Optimizing
neural networks with Kronecker-factored approximate curvature*, 2015), of the second the diagonal.
What a step leaves of the first condition is part of the next one; the certificate never relies on
it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np

from attsvm.data import FloatArray, IntArray
from attsvm.solvers import kernels
from attsvm.solvers.programme import Programme

_MOST = 100  # steps
_PRODUCTS = 300  # of a linear system
_NEAR = 0.1  # what a step may leave of the first condition, over the relative gap
_ROUGH = 10.0  # how much more a predictor may leave
_SHARE = 1e-2  # of its right-hand side that a system for the multipliers may leave
_CROWDED = 3.0  # rows of weight per unknown from which a system for the weights is the easier one
_FAR = 0.99  # of the way to the boundary
_SILENT = 1e-3  # rows of so little weight beside one do not matter to a step
_CHUNK = 1 << 14  # rows


def path(
    p: Programme, dual: FloatArray, deadline: float
) -> Iterator[tuple[FloatArray, FloatArray]]:
    """Weights and multipliers along the central path, from near these multipliers; those of rows
    that the path leaves behind are zero.
    """
    W = p.adjoint(dual)
    over = p.values(W) - p.b
    mu = max(float(over.min()) ** 2, float(dual @ np.abs(over)) / p.m)
    with np.errstate(divide="ignore"):
        s: FloatArray = np.maximum(over, np.minimum(mu / dual, np.sqrt(mu)))
    lam: FloatArray = np.maximum(dual, mu / s)
    for _ in range(_MOST):
        if time.monotonic() > deadline:
            return
        pulled = p.adjoint(lam)
        missing, left = p.values(W) - p.b - s, pulled - W
        mu, size = float(lam @ s) / p.m, float(np.linalg.norm(pulled))
        if size == 0.0:
            return
        near = _NEAR * size * min(1.0, mu * p.m / size**2)
        system = _System(p, lam, s, missing, left, near)
        step, ds, dual_step = system.step(-lam * s, _ROUGH)
        t = min(1.0, _reach(lam, dual_step), _reach(s, ds))
        ahead = float((lam + t * dual_step) @ (s + t * ds)) / p.m
        wanted = min(max((ahead / mu) ** 3, 1e-3), 0.8) * mu - dual_step * ds
        step, ds, dual_step = system.step(wanted - lam * s, 1.0)
        t = min(1.0, _FAR * _reach(lam, dual_step), _FAR * _reach(s, ds))
        lam, s, W = lam + t * dual_step, s + t * ds, W + t * step
        yield W, np.where(lam * p.diagonal > s, lam, 0.0)


def _reach(x: FloatArray, step: FloatArray) -> float:
    """How many steps lead to the boundary."""
    down = step < 0.0
    return float((x[down] / -step[down]).min(initial=np.inf))


class _System:
    """The equations of a step for the rows of weight, solved from where the last call came to."""

    def __init__(
        self,
        p: Programme,
        lam: FloatArray,
        s: FloatArray,
        missing: FloatArray,
        left: FloatArray,
        near: float,
    ) -> None:
        self._p, self._lam, self._s, self._missing, self._left = p, lam, s, missing, left
        self._near, self._theta = near, lam / s
        weight = self._theta * p.diagonal
        self._few = float((weight / (1.0 + weight)).sum()) < _CROWDED * p.dof
        self._rows = np.flatnonzero(weight > _SILENT)
        active, counts = np.unique(p.sequence[self._rows], return_counts=True)
        self._D, self._Z = p.D[self._rows], p.Z[active]
        self._offsets = np.concatenate([[0], np.cumsum(counts)])
        self._weights = self._theta[self._rows]
        self._found = np.zeros(len(self._rows) if self._few else left.shape)
        if not self._few:
            self._factor(np.repeat(np.arange(len(active)), counts))

    def _factor(self, sequence: IntArray) -> None:
        """The preconditioner: eigenvectors of both moments."""
        d = self._D.shape[1]
        x = np.zeros((d, d))
        for start in range(0, len(self._D), _CHUNK):
            part = self._D[start : start + _CHUNK]
            x += (part * self._weights[start : start + _CHUNK, None]).T @ part
        of_each = np.bincount(sequence, self._weights, len(self._Z))
        z = (self._Z * of_each[:, None]).T @ self._Z / of_each.sum()
        (x_size, self._x), (z_size, self._z) = np.linalg.eigh(x), np.linalg.eigh(z)
        self._scale = 1.0 / (1.0 + np.outer(x_size.clip(0.0), z_size.clip(0.0)))

    def step(self, wanted: FloatArray, rough: float) -> tuple[FloatArray, FloatArray, FloatArray]:
        """The changes of weights, slacks and multipliers by which the products change by
        ``wanted``.
        """
        p, theta = self._p, self._theta
        if self._few:
            right = wanted / self._lam - self._missing - p.values(self._left)
            dual_step = theta * right  # of rows of no weight
            self._found = self._solved(right[self._rows], rough)
            dual_step[self._rows] = self._found
            step = p.adjoint(dual_step) + self._left
            return step, (wanted - self._s * dual_step) / self._lam, dual_step
        right = self._left + p.adjoint(wanted / self._s - theta * self._missing)
        step = self._found = self._solved(right, rough)
        ds = p.values(step) + self._missing
        return step, ds, wanted / self._s - theta * ds

    def _along(self, V: FloatArray) -> FloatArray:
        return kernels.values(self._D, self._offsets, np.ascontiguousarray(self._Z @ V.T))

    def _pulled(self, y: FloatArray) -> FloatArray:
        pulled: FloatArray = kernels.pulled(self._D, self._offsets, y).T @ self._Z
        return pulled

    def _product(self, x: FloatArray) -> FloatArray:
        if self._few:
            return self._along(self._pulled(x)) + x / self._weights
        return x + self._pulled(self._weights * self._along(x))

    def _preconditioned(self, x: FloatArray) -> FloatArray:
        found: FloatArray
        if self._few:
            found = x / (1.0 / self._weights + self._p.diagonal[self._rows])
        else:
            found = self._x @ (self._scale * (self._x.T @ x @ self._z)) @ self._z.T
        return found

    def _solved(self, right: FloatArray, rough: float) -> FloatArray:
        """By conjugate gradients from what was found before, to a residual that is near enough."""
        found = self._found
        residual = right - self._product(found) if found.any() else right
        way = self._preconditioned(residual)
        size = float(np.sum(residual * way))
        most = float(np.sum(right * self._preconditioned(right)))
        for _ in range(_PRODUCTS):
            if self._few:
                enough = size <= (_SHARE * rough) ** 2 * most
            else:
                enough = float(np.linalg.norm(residual)) <= rough * self._near
            if enough or size == 0.0:
                break
            product = self._product(way)
            length = size / float(np.sum(way * product))
            found, residual = found + length * way, residual - length * product
            near = self._preconditioned(residual)
            size, before = float(np.sum(residual * near)), size
            way = near + (size / before) * way
        return found
