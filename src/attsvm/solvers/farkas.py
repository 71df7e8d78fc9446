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
from attsvm.native.lapack import lapack_routine
from attsvm.solvers import integers
from attsvm.solvers.programme import equilibrate
from attsvm.solvers.proofs import ROUNDING, sharp_adjoint
from attsvm.solvers.scaling import OutOfRangeError

_EPS = float(np.finfo(np.float64).eps)
_TINY = 2.0**-900  # more than what underflow takes from numbers near one
_PRIME = 1496910827  # largest products of residues modulo it are integers of 62 bits


class ProofOptions(NamedTuple):
    """Limits of :func:`prove_infeasible`. They decide which proofs are tried, never what counts as
    one; all are untuned.
    """

    left_out: float = 2.0**-300  # share of the largest multiplier below which a row is left out
    noise: float = 1e-12  # and in a second try, as multipliers below this may be rounding
    written_entries: int = 1 << 24  # of rows that are written out and factorised
    rows_per_column: int = 4  # that carry the correction
    separate: float = 1e-9  # smallest squared singular value, of the largest, of columns that span
    independent: float = 1e-11  # pivots below this share of the largest are dependent columns
    exact_rows: int = 60  # rows, or columns, whose dependence is decided in integers
    exact_entries: int = 1 << 18  # of these rows written out


OPTIONS = ProofOptions()


class ExactRows(NamedTuple):
    """Rows ``D[c] Z[owner[c]]^T`` of a certificate, scaled by powers of two.

    Attributes:
        D: ``(m, d_x)`` differences, entries at most one.
        Z: ``(k, d_z)`` queries, likewise.
        owner: ``(m,)`` the query of each row.
        dual: ``(m,)`` multipliers, the largest near one.
        rhs: ``(m,)`` right-hand sides, the largest near one.
        positions: ``(m,)`` numbers of the rows in the programme.
    """

    D: FloatArray
    Z: FloatArray
    owner: IntArray
    dual: FloatArray
    rhs: FloatArray
    positions: IntArray

    def take(self, mask: BoolArray) -> ExactRows:
        """The rows of a mask, and the queries that they use."""
        used, owner = np.unique(self.owner[mask], return_inverse=True)
        return ExactRows(
            self.D[mask],
            self.Z[used],
            owner.reshape(-1),
            self.dual[mask],
            self.rhs[mask],
            self.positions[mask],
        )


def prove_infeasible(
    margins: Margins, dual: FloatArray, options: ProofOptions = OPTIONS
) -> FloatArray | None:
    """Multipliers near ``dual`` that are a proof that no weights meet ``margins``, rounded.

    1. Scale rows, multipliers and right-hand sides to size one.
    2. Try all rows; then without those whose multipliers may be rounding.

    Args:
        margins: the programme, at a scale near one (see :mod:`attsvm.solvers.scaling`).
        dual: ``(m,)`` multipliers, of any sign on equalities.
        options: limits.

    Returns:
        ``dual`` with less residual; exact multipliers that differ from it by rounding exist.
        ``None`` says nothing.
    """
    positions = np.flatnonzero(dual)
    if len(positions) == 0 or (dual[positions][~margins.equalities[positions]] < 0.0).any():
        return None
    # 1. Scale.
    rows = _scale_rows(margins, dual, positions, options)
    if rows is None:
        return None
    # 2. Two tries.
    proof = _prove_with_rows(margins, dual, rows, options)
    above_noise = np.abs(rows.dual) >= options.noise
    if proof is None and not above_noise.all():
        proof = _prove_with_rows(margins, dual, rows.take(above_noise), options)
    return proof


def _prove_with_rows(
    margins: Margins, dual: FloatArray, rows: ExactRows, options: ProofOptions
) -> FloatArray | None:
    """``(m,)`` multipliers that are a proof with these rows alone.

    1. Where rows may span the space, bound the correction in floating point.
    2. Otherwise solve few rows in integers.
    """
    D, Z = rows.D, rows.Z
    proof = np.zeros(len(dual))
    proof[rows.positions] = dual[rows.positions]
    if D.shape[1] == 0 or Z.shape[1] == 0:  # the rows are zero
        return proof if (rows.rhs * rows.dual > 0.0).any() else None
    # 1. Floating point.
    if len(rows.dual) > options.exact_rows:
        D, Z = _spanning_columns(D, options), _spanning_columns(Z, options)
    if len(rows.dual) > D.shape[1] * Z.shape[1]:  # fewer rows do not span the space and depend
        factors = _correct_multipliers(rows._replace(D=D, Z=Z), options)
        if factors is not None:
            proof[rows.positions] *= factors
            return proof
    # 2. Integers.
    return _prove_in_integers(margins, dual, rows.positions, options)


def _scale_rows(
    margins: Margins, dual: FloatArray, positions: IntArray, options: ProofOptions
) -> ExactRows | None:
    """The rows of a certificate, one query for neighbours with equal ones, with multipliers to
    match; ``None`` where numbers leave float64.
    """
    Z, owner = _merge_neighbours(margins.queries[margins.sequence[positions]])
    D, D_exponent = _scale_to_one(margins.differences[positions])
    Z, Z_exponent = _scale_to_one(Z)
    row_exponent = D_exponent + Z_exponent[owner]
    # Exponents are added to exponents: products of the numbers would leave float64.
    mantissa, power = np.frexp(dual[positions])
    power = power + row_exponent
    power -= power.max()
    scaled_dual = np.ldexp(mantissa, np.maximum(power, -2000))
    mantissa, power = np.frexp(margins.rhs[positions])
    power = power - row_exponent
    nonzero = mantissa != 0.0
    power -= power[nonzero].max(initial=-10000) if nonzero.any() else 0
    rhs = np.ldexp(mantissa, np.clip(power, -2000, 0))
    # Rows with next to no multiplier cost exact arithmetic many digits.
    counts = np.abs(scaled_dual) >= options.left_out
    if not counts.any() or not np.isfinite(D).all() or not np.isfinite(Z).all():
        return None
    rows = ExactRows(
        np.ascontiguousarray(D), np.ascontiguousarray(Z), owner, scaled_dual, rhs, positions
    )
    return rows if counts.all() else rows.take(counts)


def _merge_neighbours(rows: FloatArray) -> tuple[FloatArray, IntArray]:
    """The rows without those that equal the one before ``(k, d)``, and which of them each row is
    ``(m,)``.
    """
    is_first = np.ones(len(rows), dtype=np.bool_)
    is_first[1:] = (rows[1:] != rows[:-1]).any(axis=1)
    return rows[is_first], np.cumsum(is_first) - 1


def _scale_to_one(rows: FloatArray) -> tuple[FloatArray, IntArray]:
    """Columns, then rows, divided by powers of two above their largest entries, without columns of
    zeros; and the exponents of the rows ``(m,)``.
    """
    rows = rows[:, (rows != 0.0).any(axis=0)]
    exponents = np.zeros(len(rows), dtype=np.int64)
    if rows.shape[1] == 0:
        return rows, exponents
    # Rows at size one take columns away from it, so both have two turns.
    for _ in range(2):
        of_columns = np.frexp(np.abs(rows).max(axis=0))[1]
        rows = np.ldexp(rows, -of_columns)
        of_rows = np.frexp(np.abs(rows).max(axis=1))[1]
        rows = np.ldexp(rows, -of_rows[:, None])
        exponents += of_rows
    return rows, exponents


def _spanning_columns(rows: FloatArray, options: ProofOptions) -> FloatArray:
    """The rows in columns that span all others exactly, which is where a combination has to vanish;
    in all columns where that is not decided.

    1. Columns that are clearly independent are all needed.
    2. Choose independent columns modulo a prime.
    3. Verify in integers that these span the others.
    """
    # 1. Independent in floating point.
    count = rows.shape[1]
    if len(rows) >= count:
        values = np.linalg.eigvalsh(rows.T @ rows)
        if values[0] > options.separate * values[-1]:
            return rows
    # 2. Independent modulo a prime.
    different = np.unique(rows, axis=0)
    if count > options.exact_rows or different.size > options.exact_entries:
        return rows
    numbers = integers.to_integers(different)[0]
    columns, chosen_rows = _independent_rows((numbers.T % _PRIME).astype(np.int64))
    others = np.setdiff1d(np.arange(count), columns)
    if (
        len(others) == 0
        or len(columns) == 0
        or different.size * len(others) > options.exact_entries
    ):
        return rows
    # 3. The others as combinations of the chosen.
    square = numbers[chosen_rows][:, columns]
    mixture, scale = _solve_in_fractions(square, numbers[chosen_rows][:, others])
    if not np.array_equal(numbers[:, columns] @ mixture, numbers[:, others] * scale):
        return rows
    return np.ascontiguousarray(rows[:, np.sort(columns)])


def _stays_positive(terms: FloatArray, theta: float) -> bool:
    """Whether the sum of ``terms`` stays positive when each changes by a share of ``theta``."""
    total = float(np.abs(terms).sum())
    return float(terms.sum()) > (theta + len(terms) * 4.0 * _EPS) * total


def _correct_multipliers(rows: ExactRows, options: ProofOptions) -> FloatArray | None:
    """``(m,)`` factors of multipliers without residual, by the bound of this module; ``None`` where
    it does not hold.
    """
    D, Z, owner, dual = rows.D, rows.Z, rows.owner, rows.dual
    offsets = np.concatenate([[0], np.cumsum(np.bincount(owner, minlength=len(Z)))])
    count = D.shape[1] * Z.shape[1]
    high, low, size = sharp_adjoint(D, Z, offsets, dual)
    residual = (high + low).reshape(-1)
    residual_bound = (np.abs(high) + np.abs(low) + ROUNDING * size + _TINY).reshape(-1)
    if len(dual) * count > options.written_entries:
        return None
    # The largest multipliers carry the correction where they can, else all of them.
    carrying = np.sort(np.argsort(-np.abs(dual))[: options.rows_per_column * count])
    correction = _bound_correction(rows, carrying, residual, residual_bound, options)
    if correction is None and len(carrying) < len(dual):
        carrying = np.arange(len(dual))
        correction = _bound_correction(rows, carrying, residual, residual_bound, options)
    if correction is None:
        return None
    theta, shares = correction
    if not _stays_positive(rows.rhs * dual, theta):
        return None
    factors = np.ones(len(dual))
    factors[carrying] -= np.sign(dual[carrying]) * shares
    return factors


def _bound_correction(
    rows: ExactRows,
    carrying: IntArray,
    residual: FloatArray,
    residual_bound: FloatArray,
    options: ProofOptions,
) -> tuple[float, FloatArray] | None:
    """A bound ``theta`` of the share by which a multiplier must change for the residual to vanish,
    and these shares ``(carrying,)``; ``None`` unless the columns are independent and the bound is
    below one.

    1. Factorise: ``R`` of ``sqrt(|dual|) a_c``, so that ``R^-T M R^-1`` is near the identity.
    2. Bound how far it is from there, with all roundings.
    3. ``theta`` is the longest row times the residual, both in these coordinates.
    """
    # 1. Factorise.
    D, Z = rows.D[carrying], rows.Z[rows.owner[carrying]]
    written = (D[:, :, None] * Z[:, None, :]).reshape(len(carrying), -1)
    root = np.sqrt(np.abs(rows.dual[carrying]))
    count = written.shape[1]
    if len(written) < count:
        return None
    R = np.linalg.qr(written * root[:, None], mode="r")
    pivots = np.abs(np.diag(R))
    if not pivots.min() > options.independent * pivots.max():
        return None
    inverse, singular = lapack_routine("dtrtri")(R)
    if singular or not np.isfinite(inverse).all():
        return None
    # 2. Roundings of the entries of rows, of the products and of their sums, and what underflows.
    coordinates, sizes = written @ inverse, np.abs(inverse)
    error = (count + 4) * _EPS * (np.abs(written) @ sizes) + _TINY * sizes.sum(axis=0)
    near = coordinates * root[:, None]
    distance = float(np.linalg.norm(near.T @ near - np.eye(count)))
    length, rough = float(np.linalg.norm(near)), float(np.linalg.norm(error * root[:, None]))
    distance += 2.0 * length * rough + rough**2 + (len(written) + 4) * _EPS * length**2
    if not distance < 0.5:
        return None
    # 3. The bound.
    residual_length = float(np.linalg.norm(sizes.T @ residual_bound))
    longest_row = float(np.sqrt(((np.abs(coordinates) + error) ** 2).sum(axis=1)).max())
    theta = 1.001 * longest_row * residual_length / (1.0 - distance)
    return (theta, coordinates @ (inverse.T @ residual)) if theta < 1.0 else None


def _prove_in_integers(
    margins: Margins, dual: FloatArray, rows: IntArray, options: ProofOptions
) -> FloatArray | None:
    """``(m,)`` multipliers that are exactly a contradiction of few rows. What equalities ask for is
    what inequalities with the signs of their multipliers ask for.
    """
    sign, subset = np.sign(dual[rows]), margins.restricted(rows)
    if len(rows) > options.exact_rows or not (sign * subset.rhs > 0.0).any():
        return None
    differences, rhs = sign[:, None] * subset.differences, sign * subset.rhs
    try:
        p = equilibrate(replace(subset, differences=differences, rhs=rhs, equality=None), None)
    except OutOfRangeError:
        return None
    point = integers.solve_in_integers(p, math.inf)
    if point is None or not point.contradiction:
        return None
    proof, lifted = np.zeros(len(dual)), p.unscaled_certificate(point.dual)
    proof[rows] = sign * (lifted / lifted.max()) * np.abs(dual[rows]).max()
    return proof


def _independent_rows(residues: IntArray) -> tuple[IntArray, IntArray]:
    """The first rows that are independent modulo the prime, and a column for each: the leading
    minors of the block of these, in this order, are not zero.
    """
    left, pivots = residues.copy(), []
    for c in range(len(left)):
        nonzero = np.flatnonzero(left[c])
        if len(nonzero) == 0:
            continue
        column = int(nonzero[0])
        pivots.append((c, column))
        # Eliminate the column from all rows below.
        row = left[c] * pow(int(left[c, column]), -1, _PRIME) % _PRIME
        below = left[c + 1 :]
        used = np.flatnonzero(below[:, column])
        below[used] = (below[used] - below[used, column][:, None] * row % _PRIME) % _PRIME
    pairs = np.array(pivots, dtype=np.int64).reshape(-1, 2)
    return pairs[:, 0], pairs[:, 1]


def _solve_in_fractions(square: Any, rhs: Any) -> tuple[Any, int]:
    """Integers ``X`` and ``d`` with ``square @ X = d rhs``, by Bareiss' elimination; leading
    minors are not zero.
    """
    count, pivot_before = len(square), 1
    system = np.concatenate([square, rhs], axis=1)
    for k in range(count - 1):
        pivot = system[k, k]
        rest = system[k + 1 :, k + 1 :] * pivot - np.outer(system[k + 1 :, k], system[k, k + 1 :])
        system[k + 1 :, k + 1 :] = rest // pivot_before  # without remainder
        pivot_before = pivot
    scale = system[-1, count - 1]
    solution = np.zeros((count, rhs.shape[1]), dtype=object)
    for k in range(count - 1, -1, -1):
        rest = scale * system[k, count:] - system[k, k + 1 : count] @ solution[k + 1 :]
        solution[k] = rest // system[k, k]
    return solution, int(scale)
