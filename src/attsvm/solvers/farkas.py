r"""A proof that no weights meet the margins.

Computed multipliers :math:`\lambda` leave a residual :math:`r=\sum_c\lambda_ca_c` of rounding size,
so weights of size :math:`1/\|r\|` may still exist. The proof is that multipliers *without* residual
exist nearby. With :math:`M=\sum_c|\lambda_c|a_ca_c^\top`,

.. math:: \lambda'_c=\lambda_c-|\lambda_c|\,a_c^\top M^{-1}r
    \quad\text{has}\quad \sum_c\lambda'_ca_c=r-MM^{-1}r=0,

and all signs survive when :math:`\max_c\|a_c\|\,\|r\|<\lambda_{\min}(M)`, which then also bounds
the change of :math:`b^\top\lambda`. The residual is summed with twice the digits, rows and columns
are brought to one size by powers of two, and in coordinates in which :math:`M` is near the identity
the bound is checked with all roundings added to it.

That needs rows that span the space, or columns that span all others exactly, in which a
combination has to vanish. These are found by elimination without fractions (E. H. Bareiss,
*Sylvester's identity and multistep integer-preserving Gaussian elimination*, 1968), where residues
modulo a prime say that columns depend on each other; a prime that misleads costs the proof, and
never makes one. Few rows are settled in integers (:mod:`attsvm.solvers.integers`).
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from attsvm.datasets.attention_data import BoolArray, FloatArray, IntArray
from attsvm.margins import Margins
from attsvm.solvers import integers
from attsvm.solvers.programme import equilibrate
from attsvm.solvers.proofs import ROUNDING, sharp_adjoint
from attsvm.solvers.scaling import OutOfRangeError

_EPS = float(np.finfo(np.float64).eps)
_TINY = 2.0**-900  # more than what underflow takes from numbers near one
_DROPPED = 2.0**-300  # share of the largest multiplier below which a row is left out
_NOISE = 1e-12  # and what is tried next: multipliers below this share may be rounding
_ENTRIES = 1 << 24  # of the rows that may be written out and factorised
_ROWS_PER_COLUMN = 4  # rows that carry the correction
_SEPARATE = 1e-9  # smallest squared singular value, of the largest, of columns beyond doubt
_INDEPENDENT = 1e-11  # pivots below this share of the largest count as dependent columns
_FEW = 60  # rows, or columns, whose dependence is decided in integers
_EXACT_ENTRIES = 1 << 18  # of these rows written out
_PRIME = 1496910827


class Rows(NamedTuple):
    """Rows ``D[c] Z[owner[c]]^T`` of one size, their multipliers and right-hand sides, and which
    rows of the programme they are.
    """

    D: FloatArray
    Z: FloatArray
    owner: IntArray
    lam: FloatArray
    b: FloatArray
    positions: IntArray

    def part(self, kept: BoolArray) -> Rows:
        """Some of the rows."""
        used, owner = np.unique(self.owner[kept], return_inverse=True)
        lam, b, positions = self.lam[kept], self.b[kept], self.positions[kept]
        return Rows(self.D[kept], self.Z[used], owner.reshape(-1), lam, b, positions)


def prove_infeasible(margins: Margins, dual: FloatArray) -> FloatArray | None:
    """Multipliers near ``dual`` that are a proof that no weights meet ``margins``, rounded.

    Args:
        margins: the programme, at a scale near one (see :mod:`attsvm.solvers.scaling`).
        dual: ``(m,)`` multipliers, of any sign on equalities.

    Returns:
        ``dual`` with less residual; exact multipliers that differ from it by rounding exist.
        ``None`` says nothing.
    """
    some = np.flatnonzero(dual)
    if len(some) == 0 or (dual[some][~margins.equalities[some]] < 0.0).any():
        return None
    rows = _prepared(margins, dual, some)
    if rows is None:
        return None
    found = _proved(margins, dual, rows)
    loud = np.abs(rows.lam) >= _NOISE
    return _proved(margins, dual, rows.part(loud)) if found is None and not loud.all() else found


def _proved(margins: Margins, dual: FloatArray, rows: Rows) -> FloatArray | None:
    """What :func:`prove_infeasible` returns, for these rows."""
    D, Z, _, lam, b = rows[:5]
    better = np.zeros(len(dual))
    better[rows.positions] = dual[rows.positions]
    if D.shape[1] == 0 or Z.shape[1] == 0:  # the rows are zero
        return better if (b * lam > 0.0).any() else None
    if len(lam) > _FEW:
        D, Z = _spanning(D), _spanning(Z)
    found = None
    if len(lam) > D.shape[1] * Z.shape[1]:  # fewer rows do not span the space and depend
        found = _nearby(rows._replace(D=D, Z=Z))
    if found is not None:
        better[rows.positions] *= found
        return better
    return _in_integers(margins, dual, rows.positions)


def _prepared(margins: Margins, dual: FloatArray, some: IntArray) -> Rows | None:
    """The rows of a certificate, one query for neighbours with equal ones, rows and columns of size
    one, multipliers to match, and right-hand sides in units of the rows.
    """
    Z, owner = _neighbours(margins.queries[margins.sequence[some]])
    D, d_exponent = _unit(margins.differences[some])
    Z, z_exponent = _unit(Z)
    exponent = d_exponent + z_exponent[owner]
    mantissa, power = np.frexp(dual[some])
    power = power + exponent
    power -= power.max()
    lam = np.ldexp(mantissa, np.maximum(power, -2000))
    mantissa, power = np.frexp(margins.rhs[some])
    power = power - exponent
    positive = mantissa != 0.0
    power -= power[positive].max(initial=-10000) if positive.any() else 0
    b = np.ldexp(mantissa, np.clip(power, -2000, 0))
    kept = np.abs(lam) >= _DROPPED
    if not kept.any() or not np.isfinite(D).all() or not np.isfinite(Z).all():
        return None
    rows = Rows(np.ascontiguousarray(D), np.ascontiguousarray(Z), owner, lam, b, some)
    return rows if kept.all() else rows.part(kept)


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


def _spanning(rows: FloatArray) -> FloatArray:
    """The rows in columns that span all others exactly, which is where a combination has to vanish;
    all columns where that is not settled.
    """
    count = rows.shape[1]
    if len(rows) >= count:
        values = np.linalg.eigvalsh(rows.T @ rows)
        if values[0] > _SEPARATE * values[-1]:
            return rows
    different = np.unique(rows, axis=0)
    if count > _FEW or different.size > _EXACT_ENTRIES:
        return rows
    numbers = integers.to_integers(different)[0]
    columns, chosen = _profile((numbers.T % _PRIME).astype(np.int64))
    others = np.setdiff1d(np.arange(count), columns)
    if len(others) == 0 or len(columns) == 0 or different.size * len(others) > _EXACT_ENTRIES:
        return rows
    square = numbers[chosen][:, columns]
    mixture, scale = _solved(square, numbers[chosen][:, others])
    if not np.array_equal(numbers[:, columns] @ mixture, numbers[:, others] * scale):
        return rows
    return np.ascontiguousarray(rows[:, np.sort(columns)])


def _gains(gains: FloatArray, theta: float) -> bool:
    """Whether the sum of ``gains`` stays positive when each changes by a share of ``theta``."""
    total = float(np.abs(gains).sum())
    return float(gains.sum()) > (theta + len(gains) * 4.0 * _EPS) * total


def _nearby(rows: Rows) -> FloatArray | None:
    """Factors of multipliers without residual, by the bound in floating point."""
    D, Z, owner, lam, b = rows[:5]
    offsets = np.concatenate([[0], np.cumsum(np.bincount(owner, minlength=len(Z)))])
    count = D.shape[1] * Z.shape[1]
    high, low, size = sharp_adjoint(D, Z, offsets, lam)
    pull = (high + low).reshape(-1)
    residual = (np.abs(high) + np.abs(low) + ROUNDING * size + _TINY).reshape(-1)
    factors = np.ones(len(lam))
    if len(lam) * count > _ENTRIES:
        return None
    carrying = np.sort(np.argsort(-np.abs(lam))[: _ROWS_PER_COLUMN * count])
    found = _change(rows, carrying, pull, residual)
    if found is None and len(carrying) < len(lam):
        carrying = np.arange(len(lam))
        found = _change(rows, carrying, pull, residual)
    if found is None or not _gains(b * lam, found[0]):
        return None
    factors[carrying] -= np.sign(lam[carrying]) * found[1]
    return factors


def _change(
    rows: Rows, carrying: IntArray, pull: FloatArray, residual: FloatArray
) -> tuple[float, FloatArray] | None:
    """A bound of the share by which a multiplier must change for the residual to vanish, and these
    shares; ``None`` unless the columns are independent and the bound is below one.
    """
    from scipy.linalg.lapack import dtrtri

    D, Z = rows.D[carrying], rows.Z[rows.owner[carrying]]
    written = (D[:, :, None] * Z[:, None, :]).reshape(len(carrying), -1)
    root = np.sqrt(np.abs(rows.lam[carrying]))
    count = written.shape[1]
    if len(written) < count:
        return None
    R = np.linalg.qr(written * root[:, None], mode="r")
    pivots = np.abs(np.diag(R))
    if not pivots.min() > _INDEPENDENT * pivots.max():
        return None
    inverse, singular = dtrtri(R)
    if singular or not np.isfinite(inverse).all():
        return None
    moved, sizes = written @ inverse, np.abs(inverse)
    # Roundings of the entries of rows, of the products and of their sums, and what underflows.
    error = (count + 4) * _EPS * (np.abs(written) @ sizes) + _TINY * sizes.sum(axis=0)
    near = moved * root[:, None]
    distance = float(np.linalg.norm(near.T @ near - np.eye(count)))
    length, rough = float(np.linalg.norm(near)), float(np.linalg.norm(error * root[:, None]))
    distance += 2.0 * length * rough + rough**2 + (len(written) + 4) * _EPS * length**2
    if not distance < 0.5:
        return None
    distant = float(np.linalg.norm(sizes.T @ residual))
    reach = float(np.sqrt(((np.abs(moved) + error) ** 2).sum(axis=1)).max())
    theta = 1.001 * reach * distant / (1.0 - distance)
    return (theta, moved @ (inverse.T @ pull)) if theta < 1.0 else None


def _in_integers(margins: Margins, dual: FloatArray, rows: IntArray) -> FloatArray | None:
    """Multipliers that are exactly a contradiction of few rows. What equalities ask for is what
    inequalities with the signs of their multipliers ask for.
    """
    sign, part = np.sign(dual[rows]), margins.restricted(rows)
    if len(rows) > _FEW or not (sign * part.rhs > 0.0).any():
        return None
    differences, rhs = sign[:, None] * part.differences, sign * part.rhs
    try:
        p = equilibrate(replace(part, differences=differences, rhs=rhs, equality=None), None)
    except OutOfRangeError:
        return None
    found = integers.solve_in_integers(p, math.inf)
    if found is None or not found.contradiction:
        return None
    exact, lifted = np.zeros(len(dual)), p.lifted(found.dual)
    exact[rows] = sign * (lifted / lifted.max()) * np.abs(dual[rows]).max()
    return exact


def _profile(residues: IntArray) -> tuple[IntArray, IntArray]:
    """The first rows that are independent modulo the prime, and a column for each: the leading
    minors of the block of these, in this order, are not zero.
    """
    left, chosen = residues.copy(), []
    for c in range(len(left)):
        some = np.flatnonzero(left[c])
        if len(some) == 0:
            continue
        column = int(some[0])
        chosen.append((c, column))
        row = left[c] * pow(int(left[c, column]), -1, _PRIME) % _PRIME
        below = left[c + 1 :]
        used = np.flatnonzero(below[:, column])
        below[used] = (below[used] - below[used, column][:, None] * row % _PRIME) % _PRIME
    pairs = np.array(chosen, dtype=np.int64).reshape(-1, 2)
    return pairs[:, 0], pairs[:, 1]


def _solved(square: Any, sides: Any) -> tuple[Any, int]:
    """Integers ``X`` and ``d`` with ``square @ X = d sides``; leading minors are not zero."""
    count, before = len(square), 1
    system = np.concatenate([square, sides], axis=1)
    for k in range(count - 1):
        pivot = system[k, k]
        rest = system[k + 1 :, k + 1 :] * pivot - np.outer(system[k + 1 :, k], system[k, k + 1 :])
        system[k + 1 :, k + 1 :] = rest // before
        before = pivot
    scale = system[-1, count - 1]
    found = np.zeros((count, sides.shape[1]), dtype=object)
    for k in range(count - 1, -1, -1):
        rest = scale * system[k, count:] - system[k, k + 1 : count] @ found[k + 1 :]
        found[k] = rest // system[k, k]
    return found, int(scale)
