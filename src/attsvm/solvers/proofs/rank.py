r"""Rank and uniqueness of max-margin solutions in norms of singular values, read off the
multipliers.

*Rank, nuclear norm.* Let :math:`M=A^\top\lambda/\|A^\top\lambda\|` have singular values
:math:`1=\mu_1\ge\mu_2\ge\dots` and let
:math:`\varepsilon` be the gap, so
:math:`\langle M,W^\star\rangle\ge(1-\varepsilon)\|W^\star\|_\star` for *every* solution. With
:math:`W^\star=\sum_i\sigma_iu_iv_i^\top` and :math:`2u^\top Mv\le u^\top|M^\top|u+v^\top|M|v`, the
parts of :math:`u_i,v_i` outside the first :math:`k` singular vectors of :math:`M` lose a factor
:math:`\mu_{k+1}`, and by Ky Fan's inequality

.. math:: \sum_{i>k}\sigma_i(W^\star)\;\le\;\tau_k\,\|W^\star\|_\star,\qquad
    \tau_k=\frac{\varepsilon}{1-\mu_{k+1}} .

Once that is small against :math:`\sigma_1\ge(1-\tau_k)\|W^\star\|_\star/k`, no solution has
numerical rank above :math:`k`. For
:math:`\varepsilon=0` this is :math:`\operatorname{rank}W^\star\le\operatorname{mult}(\mu_1)`
(*Transformers as Support Vector Machines*, section 2).

*Uniqueness.* All solutions lie in the face that :math:`M` exposes: :math:`U_kBV_k^\top` with
:math:`B\succeq0` (nuclear), or
:math:`\tau U_kV_k^\top+U_\perp XV_\perp^\top` with :math:`\|X\|\le\tau` (spectral), and meet the
rows with positive multipliers with equality. If these rows determine the face's coordinates (a rank
test in floating point) the solution is unique; if the active rows leave a direction, and a point
along it, at a distance, is certified as well, it is not.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from attsvm.cores import shared_out
from attsvm.data import FloatArray, IntArray
from attsvm.geometry import Norm
from attsvm.margins import Margins
from attsvm.solvers.programme.programme import Programme
from attsvm.solvers.programme.threads import all_threads
from attsvm.solvers.proofs.certificates import Certificate, certify_hard
from attsvm.solvers.proofs.spectra import singular_values, svd

RELATIVE = 1e-3  # singular values below this share of the largest do not count
_ROUNDING = 1e-13  # no gap is trusted below this
_ACTIVE = 1e-6  # relative distance to equality of an active row
_POSITIVE = 1e-6  # multipliers above this share of the largest are taken to be positive
_VANISHING = 1e-7  # share of the largest dual singular value below which a spectral face is free
_INJECTIVE = 1e-9  # smallest eigenvalue of a normal matrix of unit rows that determines the face
_RIDGE = 1e-11  # beside rows of length one: above what their products round by, below what counts
_MOST_ROWS = 1500
_LARGEST_FACE = 1 << 22  # entries of the system that determines weights on a face
_APART = 1e-3  # relative distance of a second solution
_FEW = 512  # rows whose coordinates stay in the cache
_CHUNK = 4096  # rows whose coordinates are written out at a time
_ALL_AT_ONCE = 200  # size from which the least eigenvalue alone is found sooner than all


class Facts(NamedTuple):
    """The fields of :class:`attsvm.solvers.MarginSolution` of the same names."""

    rank: int
    rank_bound: int | None
    rank_proved: int | None
    unique: bool | None


def facts(margins: Margins, norm: Norm, found: Certificate, p: float) -> Facts:
    """Numerical rank, its certified bound (nuclear) and uniqueness of a certified solution in the
    Schatten norm of exponent ``p``.
    """
    values = singular_values(_unit(found.W))
    rank = _counted(values)
    if 1.0 < p < np.inf:
        return Facts(rank, None, None, True)
    pulled = margins.adjoint(found.dual / found.dual.max(initial=0.0))
    left, mu, right = svd(_unit(pulled))
    if p == 1.0:
        pull, mu = float(mu[0] * np.abs(pulled).max()), mu / mu[0]
        k = rank_bound(mu, found.error)
        if k is None:
            return Facts(rank, None, None, None)
        unique, distance = _nuclear_face(
            margins, norm, found, (float(values.sum()), pull), left[:, :k], mu, right[:k]
        )
        least, most = rank_interval(values, distance)
        bound = min(k, most)
        return Facts(rank, bound, bound if least == bound else None, unique)
    k = int((mu > _VANISHING * mu[0]).sum())
    return Facts(rank, None, None, _unique_spectral(margins, norm, found, left[:, k:], right[k:]))


def numerical_rank(W: FloatArray) -> int:
    """How many singular values exceed ``RELATIVE`` of the largest."""
    return _counted(singular_values(_unit(W)))


def _counted(values: FloatArray) -> int:
    return int((values > RELATIVE * values[0]).sum())


def rank_interval(values: FloatArray, distance: float) -> tuple[int, int]:
    """The least and the largest numerical rank of weights within ``distance`` (in the Frobenius
    norm) of some with these singular values.
    """
    least = int((values - distance > RELATIVE * (values[0] + distance)).sum())
    most = int((values + distance > RELATIVE * max(values[0] - distance, 0.0)).sum())
    return least, most


def rank_bound(mu: FloatArray, gap: float) -> int | None:
    """The smallest ``k`` that the inequality of this module proves for ``mu`` (the first is 1),
    ``None`` when it proves none.
    """
    for k in range(1, len(mu) + 1):
        rest = float(mu[k]) if k < len(mu) else -np.inf
        tail = max(gap, _ROUNDING) / (1.0 - rest) if rest < 1.0 else np.inf
        if k == len(mu) or tail <= RELATIVE * (1.0 - tail) / k:
            return k if k < len(mu) or gap < 1.0 else None
    return None


def weights_on_face(p: Programme, dual: FloatArray, k: int | None) -> FloatArray | None:
    r"""The :math:`U_kBV_k^\top`, :math:`B` symmetric, that meets the rows with positive multipliers
    best: exact where those are.
    """
    rows = np.flatnonzero(dual > _POSITIVE * dual.max(initial=0.0))
    if k is None or len(rows) * k * (k + 1) > 2 * _LARGEST_FACE:
        return None
    left, _, right = svd(p.adjoint(dual), full_matrices=True)
    T, i, j = _symmetric_rows(p.D[rows] @ left[:, :k], p.Z[p.sequence[rows]] @ right[:k].T)
    coordinates = np.asarray(np.linalg.lstsq(T, p.b[rows], rcond=None)[0], dtype=np.float64)
    W: FloatArray = left[:, :k] @ _symmetric_matrix(coordinates, k, i, j) @ right[:k]
    return W


def _nuclear_face(
    margins: Margins,
    norm: Norm,
    found: Certificate,
    sizes: tuple[float, float],
    left: FloatArray,
    mu: FloatArray,
    right: FloatArray,
) -> tuple[bool | None, float]:
    """Uniqueness, and a bound on the distance of any solution to ``W``, divided by the largest
    entry of ``W``. ``sizes`` are those of :func:`_distance`.
    """
    k = left.shape[1]
    positive = np.flatnonzero(found.dual > _POSITIVE * found.dual.max())
    smallest, _ = _least_direction(_symmetric(margins, positive, left, right))
    if smallest > _INJECTIVE:
        return True, _distance(margins, found, positive, mu, k, smallest, *sizes)
    smallest, direction = _least_direction(
        _symmetric(margins, _active(margins, found), left, right)
    )
    if smallest > 1e-4 * _INJECTIVE:
        return None, np.inf
    N = _symmetric_matrix(direction, k, *np.triu_indices(k, 1))
    return (False if _second(margins, norm, found, left @ N @ right) else None), np.inf


def _distance(
    margins: Margins,
    found: Certificate,
    rows: IntArray,
    mu: FloatArray,
    k: int,
    smallest: float,
    C: float,
    pull: float,
) -> float:
    r"""How far apart two points with this gap can be.

    Off the face each is within :math:`R=2\sqrt{2\tau_kC^2}+C\sqrt{2\varepsilon'}`: parts outside
    the first k singular vectors, and the part of :math:`B` that is not symmetric, with
    :math:`\varepsilon'=\varepsilon+\tau_k+1-\mu_k`. On it the rows with positive multipliers, whose
    margins exceed their right-hand sides by at most :math:`\varepsilon C/\lambda_c`, hold the
    coordinates. ``C`` is the nuclear norm of ``W`` over its largest entry, ``pull`` the spectral
    norm of :math:`A^\top\lambda` over the largest multiplier.
    """
    gap = max(found.error, _ROUNDING)
    tail = gap / (1.0 - float(mu[k])) if k < len(mu) else 0.0
    off = (
        2.0 * C * (2.0 * np.sqrt(2.0 * tail) + np.sqrt(2.0 * (gap + tail + 1.0 - float(mu[k - 1]))))
    )
    shares = found.dual[rows] / found.dual.max() * margins.lengths[rows]
    slack = gap * C * float(np.linalg.norm(pull / shares))
    return float((slack + np.sqrt(len(rows)) * off) / np.sqrt(smallest) + off)


def _symmetric(margins: Margins, rows: IntArray, left: FloatArray, right: FloatArray) -> FloatArray:
    r"""Normal matrix of :math:`B\mapsto(\langle A_c,UBV^\top\rangle)_c` on symmetric ``B``."""
    D, Z = (
        _unit_rows(margins.differences[rows]) @ left,
        (_unit_rows(margins.queries) @ right.T)[margins.sequence[rows]],
    )
    size = D.shape[1] * (D.shape[1] + 1) // 2
    normal = np.zeros((size, size))
    for start in range(0, len(D), _CHUNK):
        T, _, _ = _symmetric_rows(D[start : start + _CHUNK], Z[start : start + _CHUNK])
        with all_threads(size):
            normal += T.T @ T
    return normal


def _symmetric_rows(D: FloatArray, Z: FloatArray) -> tuple[FloatArray, IntArray, IntArray]:
    r""":math:`B\mapsto(d_c^\top Bz_c)_c` in orthonormal coordinates of symmetric matrices, and the
    pairs of its later coordinates.
    """
    k = D.shape[1]
    rows = np.empty((len(D), k * (k + 1) // 2))

    def part(some: slice) -> None:
        d, z, out, at = D[some], Z[some], rows[some], k
        np.multiply(d, z, out=out[:, :k])
        for i in range(k - 1):
            pairs = out[:, at : (at := at + k - 1 - i)]
            np.multiply(d[:, i, None], z[:, i + 1 :], out=pairs)
            pairs += d[:, i + 1 :] * z[:, i, None]
            pairs *= np.sqrt(0.5)

    shared_out(part, [slice(at, at + _FEW) for at in range(0, len(D), _FEW)])
    return rows, *np.triu_indices(k, 1)


def _symmetric_matrix(coordinates: FloatArray, k: int, i: IntArray, j: IntArray) -> FloatArray:
    B = np.diag(coordinates[:k])
    B[i, j] = B[j, i] = coordinates[k:] * np.sqrt(0.5)
    return B


def _unique_spectral(
    margins: Margins, norm: Norm, found: Certificate, left: FloatArray, right: FloatArray
) -> bool | None:
    from scipy.linalg.lapack import dpotrf, dpotrs

    size = left.shape[1] * right.shape[0]
    if size == 0:
        return True
    rows = _active(margins, found)
    if len(rows) > _MOST_ROWS:
        return None
    D, Z = (
        _unit_rows(margins.differences[rows]) @ left,
        (_unit_rows(margins.queries) @ right.T)[margins.sequence[rows]],
    )
    if size <= min(len(rows), _MOST_ROWS):
        positive = found.dual[rows] > _POSITIVE * found.dual.max()
        T = (D[positive, :, None] * Z[positive, None, :]).reshape(-1, size)
        smallest, _ = _least_direction(T.T @ T)
        if smallest > _INJECTIVE:
            return True
    X = np.random.default_rng(0).standard_normal((left.shape[1], right.shape[0]))
    start = float(np.linalg.norm(X))
    normal = (D @ D.T) * (Z @ Z.T)
    normal[np.diag_indices(len(rows))] += _RIDGE
    with all_threads(len(rows)):
        factor, failed = dpotrf(normal.T, lower=1, clean=0, overwrite_a=1)
    if failed:
        return None
    for _ in range(3):  # each leaves of a singular value s the share _RIDGE / (s^2 + _RIDGE)
        moved = np.einsum("ca,ab,cb->c", D, X, Z, optimize=True)
        X = X - (D * dpotrs(factor, moved, lower=1)[0][:, None]).T @ Z
    if np.linalg.norm(X) <= 1e-3 * start:
        return None
    return False if _second(margins, norm, found, left @ X @ right) else None


def _second(margins: Margins, norm: Norm, found: Certificate, direction: FloatArray) -> bool:
    """Whether a point along ``direction``, at a distance, is certified as well as the one found."""
    direction = direction * (
        np.linalg.norm(_unit(found.W)) / np.linalg.norm(direction) * float(np.abs(found.W).max())
    )
    allowed = max(10.0 * found.gap, 1e-12)
    for step in (0.3, -0.3, 0.03, -0.03, 2 * _APART, -2 * _APART):
        if certify_hard(margins, norm, found.W + step * direction, found.dual).gap <= allowed:
            return True
    return False


def _active(margins: Margins, found: Certificate) -> IntArray:
    slack: FloatArray = found.values - margins.rhs
    return np.flatnonzero(slack <= _ACTIVE * np.where(margins.rhs > 0, margins.rhs, 1.0))


def _least_direction(normal: FloatArray) -> tuple[float, FloatArray]:
    """Smallest eigenvalue and its vector; the rows have length one, so the number needs no
    scale.
    """
    if len(normal) < _ALL_AT_ONCE:
        weights, vectors = np.linalg.eigh(normal)
    else:
        from scipy.linalg import eigh

        with all_threads(len(normal)):
            weights, vectors = eigh(normal, subset_by_index=(0, 0), check_finite=False)
    return float(weights[0]), vectors[:, 0]


def _unit(W: FloatArray) -> FloatArray:
    top = float(np.abs(W).max(initial=0.0))
    return W / top if top > 0.0 else W


def _unit_rows(rows: FloatArray) -> FloatArray:
    length = np.linalg.norm(_unit(rows), axis=1, keepdims=True)
    return _unit(rows) / np.where(length > 0.0, length, 1.0)
