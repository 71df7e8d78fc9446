r"""A proof in floating point that no weights meet the margins.

Computed multipliers :math:`\lambda` leave a residual :math:`r=\sum_c\lambda_ca_c` of rounding size,
and a small residual proves nothing: weights of size :math:`1/\|r\|` may exist. What is a proof is
that multipliers *without* residual exist nearby. With :math:`M=\sum_c|\lambda_c|a_ca_c^\top`,

.. math:: \lambda'_c=\lambda_c-|\lambda_c|\,a_c^\top M^{-1}r
    \quad\text{has}\quad \sum_c\lambda'_ca_c=r-MM^{-1}r=0,

and all signs survive when :math:`\max_c\|a_c\|\,\|r\|<\lambda_{\min}(M)`, which then also bounds
the change of :math:`b^\top\lambda`. The residual is summed with twice the digits
(:mod:`attsvm.solvers.proofs.double_double`), rows and columns are brought to one size by powers of
two, and in coordinates in which :math:`M` is near the identity the bound is checked with all
roundings added to it.

The argument needs rows that span the space. Where they do not, it is made for as many columns as
the rows have rank, and :func:`attsvm.solvers.proofs.dependence.spanned` decides whether the other
columns follow from those: first for differences and for queries alone, then for their products.
"""

from __future__ import annotations

import numpy as np

from attsvm.data import FloatArray, IntArray
from attsvm.margins import Margins
from attsvm.native import address, library
from attsvm.solvers.programme.programme import Programme
from attsvm.solvers.proofs import double_double
from attsvm.solvers.proofs.dependence import spanned

LARGEST_SYSTEM = 6000
"""Columns: a Cholesky factor of 288 MB."""

_EPS = float(np.finfo(np.float64).eps)
_TINY = 2.0**-900  # more than what underflow takes from numbers near one
_CHUNK = 4096  # sequences whose moments are held at a time
_DROPPED = 2.0**-300  # share of the largest multiplier below which a row is left out
_COLUMNS = 1600  # columns of the system that is factorised
_ENTRIES = 1 << 24  # of the rows that may be written out
_WRITTEN = 1 << 21  # and from where on something else is tried first
_ROWS_PER_COLUMN = 4  # rows that carry the correction
_SEPARATE = 1e-9  # smallest squared singular value, of the largest, of columns beyond doubt
_INDEPENDENT = 1e-11  # pivots below this share of the largest count as dependent columns


def proved(margins: Margins, dual: FloatArray) -> FloatArray | None:
    """Multipliers near ``dual`` that are a proof that no weights meet ``margins``, rounded.

    Args:
        margins: the programme, at a scale near one (see :mod:`attsvm.solvers.programme.scaling`).
        dual: ``(m,)`` multipliers, of any sign on equalities.

    Returns:
        ``dual`` with less residual; exact multipliers that differ from it by rounding exist.
        ``None`` says nothing.
    """
    rows = np.flatnonzero(dual)
    if len(rows) == 0 or (dual[rows][~margins.equalities[rows]] < 0.0).any():
        return None
    case = _prepared(margins, dual, rows)
    if case is None:
        return None
    D, Z, owner, lam, b, rows = case
    better = np.zeros(len(dual))
    better[rows] = dual[rows]
    if D.shape[1] == 0 or Z.shape[1] == 0:  # the rows are zero
        return better if (b * lam > 0.0).any() else None
    D, Z = _spanning(D), _spanning(Z)
    offsets = np.concatenate([[0], np.cumsum(np.bincount(owner, minlength=len(Z)))])
    shape = (D.shape[1], Z.shape[1])
    count = shape[0] * shape[1]
    high, low, size = np.empty(shape), np.empty(shape), np.empty(shape)
    double_double.adjoint(D, Z, offsets, lam, high, low, size)
    pull = (high + low).reshape(-1)
    residual = (np.abs(high) + np.abs(low) + double_double.ROUNDING * size + _TINY).reshape(-1)
    weight = np.abs(lam)
    if len(lam) * count > _WRITTEN:
        theta = _large(D, Z, offsets, owner, weight, residual)
        if theta is not None:
            return better if _gains(b * lam, theta) else None
    if count > _COLUMNS or len(lam) * count > _ENTRIES:
        return None
    every = np.arange(count)
    carrying = np.sort(np.argsort(-weight)[: _ROWS_PER_COLUMN * count])
    found = _change(D, Z, owner, weight, carrying, every, pull, residual)
    if found is None and len(carrying) < len(lam):
        carrying = np.arange(len(lam))
        found = _change(D, Z, owner, weight, carrying, every, pull, residual)
    if found is None:
        return None
    columns, theta, shares = found
    # Columns that are proved to be independent and as many as there are rows span all others.
    if len(columns) < min(count, len(lam)) and not spanned(D, Z, owner, columns):
        return None
    if not _gains(b * lam, theta):
        return None
    better[rows[carrying]] *= 1.0 - np.sign(lam[carrying]) * shares
    return better


def _spanning(rows: FloatArray) -> FloatArray:
    """The rows in columns that span all others exactly, which is where a combination has to
    vanish; all columns where that is not settled.
    """
    count = rows.shape[1]
    if len(rows) >= count:
        values = np.linalg.eigvalsh(rows.T @ rows)
        if values[0] > _SEPARATE * values[-1]:
            return rows
    chosen = _independent(rows)
    one, owner = np.ones((1, 1)), np.zeros(len(rows), dtype=np.int64)
    if len(chosen) == count or not spanned(rows, one, owner, chosen):
        return rows
    return np.ascontiguousarray(rows[:, chosen])


def _gains(gains: FloatArray, theta: float) -> bool:
    """Whether the sum of ``gains`` stays positive when each changes by a share of ``theta``."""
    total = float(np.abs(gains).sum())
    return float(gains.sum()) > (theta + len(gains) * 4.0 * _EPS) * total


def _large(
    D: FloatArray,
    Z: FloatArray,
    offsets: IntArray,
    owner: IntArray,
    weight: FloatArray,
    residual: FloatArray,
) -> float | None:
    """The bound of :func:`_change` for rows that span many columns, from the matrix ``M`` itself:
    ``M - c`` has a Cholesky factor, so its eigenvalues are above ``c`` less all roundings.
    """
    from scipy.linalg.lapack import dpotrf

    columns = D.shape[1] * Z.shape[1]
    if columns > LARGEST_SYSTEM or len(D) < columns:
        return None
    count = len(D)
    nothing = np.zeros(count)
    p = Programme(D, Z, offsets, owner, nothing, nothing, 0, np.zeros(count, dtype=np.int64))
    M = weighted_moment(p, np.arange(count), weight)
    sizes = np.einsum("cd,cd->c", D, D) * np.einsum("nd,nd->n", Z, Z)[owner]
    rounding = (2.0 * count + 4.0 * columns + 64.0) * _EPS * float(weight @ sizes)
    distant = float(np.linalg.norm(residual)) * float(np.sqrt(sizes.max())) * (1.0 + 1e-9)
    needed = max(4.0 * distant, rounding)
    M[np.diag_indices(columns)] -= needed + rounding
    _, failed = dpotrf(M, lower=1, overwrite_a=1, clean=0)
    return None if failed else distant / needed


def _prepared(
    margins: Margins, dual: FloatArray, rows: IntArray
) -> tuple[FloatArray, FloatArray, IntArray, FloatArray, FloatArray, IntArray] | None:
    """The rows of the certificate, one query for neighbours with equal ones, rows and columns of
    size one, multipliers to match, right-hand sides in units of the rows, and which rows they are.
    """
    Z, owner = _neighbours(margins.queries[margins.sequence[rows]])
    D, d_exponent = _unit(margins.differences[rows])
    Z, z_exponent = _unit(Z)
    exponent = d_exponent + z_exponent[owner]
    mantissa, power = np.frexp(dual[rows])
    power = power + exponent
    power -= power.max()
    lam = np.ldexp(mantissa, np.maximum(power, -2000))
    mantissa, power = np.frexp(margins.rhs[rows])
    power = power - exponent
    some = mantissa != 0.0
    power -= power[some].max(initial=-10000) if some.any() else 0
    b = np.ldexp(mantissa, np.clip(power, -2000, 0))
    kept = np.abs(lam) >= _DROPPED
    if not kept.any() or not np.isfinite(D).all() or not np.isfinite(Z).all():
        return None
    if not kept.all():
        used, owner = np.unique(owner[kept], return_inverse=True)
        D, Z, lam, b, rows = D[kept], Z[used], lam[kept], b[kept], rows[kept]
    return np.ascontiguousarray(D), np.ascontiguousarray(Z), owner, lam, b, rows


def _neighbours(rows: FloatArray) -> tuple[FloatArray, IntArray]:
    """The rows without those that equal the one before, and which of them each row is."""
    first = np.ones(len(rows), dtype=np.bool_)
    first[1:] = (rows[1:] != rows[:-1]).any(axis=1)
    return rows[first], np.cumsum(first) - 1


def _unit(rows: FloatArray) -> tuple[FloatArray, IntArray]:
    """Columns, then rows, divided by powers of two above their largest entries, without columns of
    zeros; and the exponents of the rows.
    """
    rows = rows[:, (rows != 0.0).any(axis=0)]
    total = np.zeros(len(rows), dtype=np.int64)
    if rows.shape[1] == 0:
        return rows, total
    for _ in range(2):
        columns = np.frexp(np.abs(rows).max(axis=0))[1]
        rows = np.ldexp(rows, -columns)
        largest = np.frexp(np.abs(rows).max(axis=1))[1]
        rows = np.ldexp(rows, -largest[:, None])
        total += largest
    return rows, total


def _independent(rows: FloatArray) -> IntArray:
    from scipy.linalg import qr

    R, order = qr(rows, mode="r", pivoting=True, check_finite=False)
    pivots = np.abs(np.diag(R))
    count = int((pivots > _INDEPENDENT * pivots[0]).sum())
    chosen: IntArray = np.sort(order[:count])
    return chosen


def _change(
    D: FloatArray,
    Z: FloatArray,
    owner: IntArray,
    weight: FloatArray,
    carrying: IntArray,
    columns: IntArray,
    pull: FloatArray,
    residual: FloatArray,
) -> tuple[IntArray, float, FloatArray] | None:
    """Independent columns, a bound of the share by which a multiplier must change for the residual
    in them to vanish, and these shares; ``None`` unless the bound is below one.
    """
    from scipy.linalg import qr
    from scipy.linalg.lapack import dtrtri

    a, e = columns // Z.shape[1], columns % Z.shape[1]
    rows = D[carrying][:, a] * Z[owner[carrying]][:, e]
    root = np.sqrt(weight[carrying])
    R = np.linalg.qr(rows * root[:, None], mode="r")
    pivots = np.abs(np.diag(R))
    if len(pivots) < len(columns) or not pivots.min() > _INDEPENDENT * pivots.max():
        R, order = qr(rows * root[:, None], mode="r", pivoting=True, check_finite=False)
        pivots = np.abs(np.diag(R))
        rank = int((pivots > _INDEPENDENT * pivots[0]).sum())
        R, rows, columns = R[:rank, :rank], rows[:, order[:rank]], columns[order[:rank]]
    count = len(columns)
    if count == 0:
        return None
    inverse, singular = dtrtri(R)
    if singular or not np.isfinite(inverse).all():
        return None
    moved = rows @ inverse
    sizes = np.abs(inverse)
    # Roundings of the entries of rows, of the products and of their sums, and what underflows.
    error = (count + 4) * _EPS * (np.abs(rows) @ sizes) + _TINY * sizes.sum(axis=0)
    near = moved * root[:, None]
    blur = error * root[:, None]
    gram = near.T @ near
    distance = float(np.linalg.norm(gram - np.eye(count)))
    length, rough = float(np.linalg.norm(near)), float(np.linalg.norm(blur))
    distance += 2.0 * length * rough + rough**2 + (len(rows) + 4) * _EPS * length**2
    if not distance < 0.5:
        return None
    distant = float(np.linalg.norm(sizes.T @ residual[columns]))
    reach = float(np.sqrt(((np.abs(moved) + error) ** 2).sum(axis=1)).max())
    theta = 1.001 * reach * distant / (1.0 - distance)
    return (columns, theta, moved @ (inverse.T @ pull[columns])) if theta < 1.0 else None


def weighted_moment(p: Programme, rows: IntArray, weights: FloatArray) -> FloatArray:
    r""":math:`\sum_{c\in P} w_c\, a_c a_c^\top` with
    :math:`a_c=\operatorname{vec}(\delta_c z^\top)`, ``(dof, dof)``, Fortran order.
    """
    d_x, d_z = p.D.shape[1], p.Z.shape[1]
    active, first = np.unique(p.sequence[rows], return_index=True)
    ends = np.append(first, len(rows))
    D = p.D[rows] * np.sqrt(weights)[:, None]
    z_row, z_col = np.triu_indices(d_z)
    total = np.zeros((d_x * (d_x + 1) // 2, len(z_row)))
    for start in range(0, len(active), _CHUNK):
        stop = min(start + _CHUNK, len(active))
        Z = p.Z[active[start:stop]]
        moments = _token_moments(D, ends[start : stop + 1])
        total += moments.T @ (Z[:, z_row] * Z[:, z_col])
    x_pair, z_pair = np.zeros((d_x, d_x), dtype=np.int64), np.zeros((d_z, d_z), dtype=np.int64)
    x_pair[np.triu_indices(d_x)] = np.arange(total.shape[0])
    z_pair[z_row, z_col] = np.arange(total.shape[1])
    x_pair, z_pair = np.maximum(x_pair, x_pair.T), np.maximum(z_pair, z_pair.T)
    K = total[x_pair.reshape(-1)][:, z_pair.reshape(-1)].reshape(d_x, d_x, d_z, d_z)
    return np.ascontiguousarray(K.transpose(0, 2, 1, 3)).reshape(d_x * d_z, d_x * d_z).T


def _token_moments(D: FloatArray, ends: IntArray) -> FloatArray:
    """``(k, d (d + 1) / 2)``: upper triangles of the sums of ``D[c] D[c]^T`` over the rows between
    two neighbours of ``ends``.
    """
    d, count = D.shape[1], len(ends) - 1
    moments = np.empty((count, d * (d + 1) // 2))
    library.token_moments(
        address(D, np.float64, *D.shape),
        address(ends, np.int64, count + 1),
        *(count, d),
        address(moments, np.float64, *moments.shape),
    )
    return moments
