r"""The exact nuclear solution near a computed one, by the theorem of Newton and Kantorovich.

A solution :math:`W=LR^\top` of rank :math:`k` whose multipliers are positive on the rows :math:`P`
is a stationary point of

.. math:: \mathcal L(L,R,\lambda)=\tfrac12\|L\|_F^2+\tfrac12\|R\|_F^2-\langle
    A_P^\top\lambda,LR^\top\rangle+b_P^\top\lambda ,

that is :math:`MR=L`, :math:`M^\top L=R` and :math:`A_PW=b_P` with :math:`M=A_P^\top\lambda`;
conversely such a point with
:math:`\lambda\ge0`, :math:`\|M\|\le1` and the other margins met is optimal, because
:math:`\langle M,W\rangle=\|L\|^2=\|W\|_\star`.
:math:`F=\nabla\mathcal L` is quadratic with second-order part at most :math:`\alpha\|h\|^2`,
:math:`\alpha=\|A_P\|`, and orthogonal to the rotations :math:`(LQ,RQ)`. Let :math:`B` be its
derivative across these, :math:`\beta=\|B^{-1}\|` and
:math:`\eta=\|B^{-1}F\|`. Where :math:`4\alpha\beta\eta<1` there is exactly one zero of :math:`F`
within :math:`2\eta` (Kantorovich and Akilov, *Functional Analysis*, chapter 18), and an invertible
:math:`B` leaves no other solution on the face that
:math:`M` exposes. The square root of the gap, which bounds distances otherwise, is gone: what
remains is :math:`\beta` times rounding, and
:math:`F` is evaluated in extended precision. :math:`\beta` itself is a floating-point eigenvalue.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from attsvm.data import FloatArray, IntArray
from attsvm.solvers.programme.programme import Programme
from attsvm.solvers.proofs.spectra import singular_values, svd

_LARGEST = 300  # unknowns
_POSITIVE = 1e-7  # multipliers above this share of the largest are taken to be positive
_PRESENT = 1e-8  # singular values above this share of the largest are taken not to vanish
_STEPS = 8
_SINGULAR = 1e-12  # eigenvalues below this share of the largest are rounding
_Long = np.longdouble


class Isolated(NamedTuple):
    """Weights, multipliers, and the distance (in the Frobenius norm) within which the only solution
    lies from these weights.
    """

    W: FloatArray
    dual: FloatArray
    radius: float


def isolated_solution(p: Programme, W: FloatArray, dual: FloatArray) -> Isolated | None:
    r"""The only solution, near ``W``, where that can be proved.

    Args:
        p: the programme.
        W: ``(d_x, d_z)`` weights, optimal but for rounding.
        dual: ``(m,)`` their multipliers.

    Returns:
        The refined point in the units of ``p`` (its radius bounds the distance of singular values
        too); ``None`` when nothing is proved: the programme is large, the solution is not the only
        one, multipliers or slacks vanish together, or rounding is too large.
    """
    left, s, right = svd(W)
    k = int((s > _PRESENT * s[0]).sum())
    rows: IntArray = np.flatnonzero(dual > _POSITIVE * dual.max(initial=0.0))
    split = (W.shape[0] * k, (W.shape[0] + W.shape[1]) * k)
    if len(rows) == 0 or split[1] + len(rows) > _LARGEST:
        return None
    # a power of two, so that right-hand sides stay exact
    unit = float(np.exp2(np.round(np.log2(s[0]))))
    pull = float(np.linalg.norm(p.adjoint(np.where(dual > _POSITIVE * dual.max(), dual, 0.0)), 2))
    root = np.sqrt(s[:k] / unit)
    # Rows times this have multipliers as small as the factors are, which makes beta smaller by its
    # square.
    size = float(np.exp2(np.round(np.log2(np.linalg.norm(dual[rows]) / pull))))
    x = np.concatenate(
        [(left[:, :k] * root).ravel(), (right[:k].T * root).ravel(), dual[rows] / (pull * size)]
    ).astype(_Long)
    D, Z, b = (
        each.astype(_Long)
        for each in (p.D[rows] * size, p.Z[p.sequence[rows]], p.b[rows] / unit * size)
    )

    def parts(x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return x[: split[0]].reshape(-1, k), x[split[0] : split[1]].reshape(-1, k), x[split[1] :]

    def gradient(x: np.ndarray) -> np.ndarray:
        L, R, lam = parts(x)
        M = (D * lam[:, None]).T @ Z
        return np.concatenate(
            [(L - M @ R).ravel(), (R - M.T @ L).ravel(), b - ((D @ L) * (Z @ R)).sum(axis=1)]
        )

    alpha = size * float(np.linalg.norm(np.sqrt(p.diagonal[rows])))
    for _ in range(_STEPS):
        weights, vectors = np.linalg.eigh(
            _derivative(*(part.astype(np.float64) for part in (*parts(x), D, Z)))
        )
        # rotations of the factors are the null space
        across = np.argsort(np.abs(weights))[k * (k - 1) // 2 :]
        least = float(np.abs(weights[across]).min())
        if not least > _SINGULAR * float(np.abs(weights).max()):
            return None
        basis = vectors[:, across]
        step = basis @ ((basis.T @ gradient(x).astype(np.float64)) / weights[across])
        eta = float(np.linalg.norm(step))
        if not np.isfinite(eta) or eta > float(np.linalg.norm(x)):
            return None
        x = x - step
        if eta <= 1e-3 * float(np.finfo(np.float64).eps):
            break
    beta = 1.0 / least
    # F is a sum of products of two unknowns
    noise = 64.0 * float(np.finfo(_Long).eps) * float(x @ x) * (1.0 + alpha)
    radius = 2.0 * beta * (float(np.linalg.norm(gradient(x))) + noise)
    if not 2.0 * alpha * beta * radius < 0.5:
        return None
    L, R, lam = (part.astype(np.float64) for part in parts(x))
    distance = radius * (float(np.linalg.norm(L, 2)) + float(np.linalg.norm(R, 2)) + radius) + 1e-15
    full = np.zeros(p.m)
    full[rows] = lam * size
    mu = singular_values(p.adjoint(full))
    others = np.setdiff1d(np.arange(p.m), rows)
    room = (p.values(L @ R.T) - p.b / unit)[others] - distance
    optimal = (
        float(lam.min()) > radius
        and float(singular_values(R)[-1]) > radius
        and (k == len(mu) or float(mu[k]) + alpha * radius + 1e-14 < 1.0)
        and float(room.min(initial=1.0)) >= 0.0
    )
    return Isolated(L @ R.T * unit, full, distance * unit) if optimal else None


def _derivative(
    L: FloatArray, R: FloatArray, lam: FloatArray, D: FloatArray, Z: FloatArray
) -> FloatArray:
    """The Hessian of the Lagrangian, ``(N, N)``, unknowns in the order ``L, R, lam``."""
    (d_x, k), d_z, a = L.shape, R.shape[0], len(lam)
    at, end = d_x * k, (d_x + d_z) * k
    H = np.zeros((end + a, end + a))
    H[:end, :end] = np.eye(end)
    H[:at, at:end] = -np.kron((D * lam[:, None]).T @ Z, np.eye(k))
    H[:at, end:] = -(D[:, :, None] * (Z @ R)[:, None, :]).reshape(a, at).T
    H[at:end, end:] = -(Z[:, :, None] * (D @ L)[:, None, :]).reshape(a, end - at).T
    lower = np.tril_indices(end + a, -1)
    H[lower] = H.T[lower]
    return H
