r"""Farkas certificates: multipliers :math:`\lambda\ge0` with :math:`\sum_c\lambda_c A_c=0` and
:math:`b^\top\lambda>0`.

By Farkas' lemma exactly one of the two exists: weights that meet every margin, or such a
:math:`\lambda`. Three steps make one:

* :func:`least_distance` settles small programmes by one non-negative least-squares problem,
  ``min ||[A^T; b^T] u - e||`` over ``u >= 0`` (Lawson and Hanson, *Solving Least Squares Problems*,
  chapter 23): its residual is zero exactly when no weights exist;
* :func:`refined` projects an approximate certificate onto the null space of :math:`A^\top`,
  weighted so that signs survive;
* :func:`reduced` keeps as few rows as Carathéodory's theorem allows, for a person to read.
"""

from __future__ import annotations

import numpy as np

from attsvm.data import FloatArray
from attsvm.solvers.methods.proximal import LARGEST_SYSTEM, weighted_moment
from attsvm.solvers.programme.programme import Programme, explicit_rows

ACCEPTED_RESIDUAL = 1e-14
_LARGEST_EXPLICIT = 1 << 25  # entries of a matrix of vectorised rows
_PROJECTIONS = 6


def least_distance(p: Programme) -> tuple[FloatArray, float]:
    r"""The NNLS multipliers :math:`u` and :math:`1-b^\top u`, the squared distance of :math:`e` to
    the cone of rows.

    At distance zero ``u`` is a Farkas certificate; otherwise ``u / distance`` are the multipliers
    of the minimum-norm weights. Zeros and one when the iteration limit was met.
    """
    if p.m == 0:
        return np.zeros(
            0
        ), 1.0  # SciPy's implementation aborts the process on a matrix without columns
    from scipy.optimize import nnls

    system = np.vstack([explicit_rows(p, np.arange(p.m)).T, p.b])
    target = np.zeros(p.dof + 1)
    target[-1] = 1.0
    try:
        u, _ = nnls(system, target)
    except RuntimeError:
        return np.zeros(p.m), 1.0
    return u, 1.0 - float(p.b @ u)


def residual(p: Programme, dual: FloatArray) -> float:
    r""":math:`\|A^\top\lambda\|_F / b^\top\lambda`, in the scale of the programme, whose rows and
    right-hand sides are at most one.
    """
    top = float(p.b @ dual)
    if top <= 0.0 or dual.min() < 0.0:
        return float("inf")
    return float(np.linalg.norm(p.adjoint(dual))) / top


def refined(p: Programme, dual: FloatArray) -> FloatArray | None:
    """An exact certificate (residual at rounding level) near ``dual``, or ``None`` when there is
    none to be found near it.
    """
    lam = np.where(dual > 1e-13 * dual.max(initial=0.0), dual, 0.0)
    best, best_residual = None, np.inf
    for _ in range(_PROJECTIONS):
        top = lam.max(initial=0.0)
        if not top > 0.0 or not np.isfinite(top):
            break
        lam = lam / top
        now = residual(p, lam)
        if now < best_residual:
            best, best_residual = lam, now
        if now <= ACCEPTED_RESIDUAL / 8 or not np.isfinite(now):
            break
        change = _projection(p, lam)
        if change is None:
            break
        lam = np.maximum(lam - change, 0.0)
    return best if best_residual <= ACCEPTED_RESIDUAL else None


def _projection(p: Programme, lam: FloatArray) -> FloatArray | None:
    r"""The :math:`\delta` of least :math:`\sum\delta_c^2/\lambda_c` with
    :math:`A^\top\delta=A^\top\lambda`.
    """
    rows = np.flatnonzero(lam)
    pull = p.adjoint(lam).reshape(-1)
    change = np.zeros(p.m)
    root = np.sqrt(lam[rows])
    if len(rows) * p.dof <= 1 << 18:
        written = explicit_rows(p, rows) * root[:, None]
        change[rows] = root * np.linalg.lstsq(written.T, pull, rcond=1e-12)[0]
        return change
    if p.dof > LARGEST_SYSTEM:
        return None
    from scipy.linalg.lapack import dpotrf, dpotrs

    K = weighted_moment(p, rows, lam[rows])
    diagonal = np.diag_indices(p.dof)
    K[diagonal] += 1e-13 * float(K[diagonal].max())
    factor, failed = dpotrf(K, lower=1, overwrite_a=1, clean=0)
    if failed:
        return None
    x = dpotrs(factor, pull, lower=1)[0].reshape(p.D.shape[1], p.Z.shape[1])
    return lam * p.values(x)


def reduced(p: Programme, dual: FloatArray) -> FloatArray:
    """The certificate on at most ``dof + 1`` linearly independent rows (Carathéodory); as given
    when it is too large to write out.
    """
    rows = np.flatnonzero(dual)
    if len(rows) * (p.dof + 1) > _LARGEST_EXPLICIT:
        return dual
    lam = dual[rows] / dual[rows].max()
    vectors = np.hstack([explicit_rows(p, rows), p.b[rows, None]])
    groups = 2 * (p.dof + 2)
    while len(rows) > groups:
        # Reduce sums over groups first: each round halves the number of rows at the price of one
        # small problem.
        starts = np.linspace(0, len(rows), groups, endpoint=False).astype(np.int64)
        sums = np.add.reduceat(vectors * lam[:, None], starts, axis=0)
        scale = np.repeat(_vertex(sums, np.ones(groups)), np.diff(np.append(starts, len(rows))))
        keep = scale > 0.0
        rows, vectors, lam = rows[keep], vectors[keep], (lam * scale)[keep]
    few = np.zeros(p.m)
    few[rows] = _vertex(vectors, lam)
    exact = refined(p, few)
    return exact if exact is not None else dual


def _vertex(vectors: FloatArray, weights: FloatArray) -> FloatArray:
    """Weights with the same ``weights @ vectors`` on linearly independent rows."""
    from scipy.linalg import qr, solve_triangular

    weights = weights.copy()
    _, R, order = qr(vectors.T, mode="economic", pivoting=True)
    pivots = np.abs(np.diag(R))
    rank = int((pivots > 1e-12 * pivots[0]).sum()) if len(pivots) else 0
    null = np.zeros((len(weights), len(weights) - rank))
    null[order[:rank]] = -solve_triangular(R[:rank, :rank], R[:rank, rank:])
    null[order[rank:]] = np.eye(len(weights) - rank)
    for j in range(null.shape[1]):
        direction = null[:, j] if null[:, j].max() > 0.0 else -null[:, j]
        ahead = np.flatnonzero(direction > 0.0)
        steps = weights[ahead] / direction[ahead]
        leaving = ahead[int(np.argmin(steps))]
        weights = np.maximum(weights - float(steps.min()) * direction, 0.0)
        weights[leaving] = 0.0
        rest = null[:, j + 1 :]
        rest -= np.outer(direction, rest[leaving] / direction[leaving])
        rest[leaving] = 0.0
    return weights
