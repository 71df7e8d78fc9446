"""Certificates recomputed in extended precision from written-out constraint matrices: nothing
shared with the library but the data.
"""

from __future__ import annotations

from typing import Any

import mpmath
import numpy as np

from attsvm.margins import Margins
from attsvm.norms import Frobenius, MaxRow, Norm, Rows, Schatten
from attsvm.solvers import MarginSolution

Long = np.longdouble


def rows(margins: Margins) -> Any:
    """``(m, d_x, d_z)`` in extended precision (64 bits of mantissa, exponents to 2**16383)."""
    D, Z = (
        np.asarray(margins.differences).astype(Long),
        np.asarray(margins.queries).astype(Long)[margins.sequence],
    )
    return D[:, :, None] * Z[:, None, :]


def value(norm: Norm, W: Any) -> Any:
    """``||W||`` in extended precision."""
    p = 2.0 if norm == Frobenius() else norm.p
    entries = _numbers(norm, W)
    largest = entries.max()
    if not largest > 0:
        return Long(0)
    if np.isinf(p):
        return largest
    return largest * ((entries / largest) ** Long(p)).sum() ** (1 / Long(p))


def dual_value(norm: Norm, V: Any) -> Any:
    """``||V||_*`` in extended precision."""
    p = 2.0 if norm == Frobenius() else norm.p
    # 1 + 1/(p - 1) rather than p/(p - 1): the exponent itself must be right to all digits at p =
    # 1.0001
    q = np.inf if p == 1.0 else (1.0 if np.isinf(p) else 1 + 1 / (Long(p) - 1))
    entries = _numbers(norm, V)
    largest = entries.max()
    if not largest > 0 or np.isinf(q):
        return largest
    return largest * ((entries / largest) ** q).sum() ** (1 / Long(q))


def _numbers(norm: Norm, W: Any) -> Any:
    """The numbers whose p-norm it is."""
    if isinstance(norm, Rows | MaxRow):
        scale = np.abs(W).max() or Long(1)
        return scale * np.sqrt(((W / scale) ** 2).sum(axis=1))
    if isinstance(norm, Schatten) and norm.p != 2.0:
        return _singular_values(W)
    return np.abs(W).reshape(-1)


def _singular_values(W: Any) -> Any:
    scale = np.abs(W).max()
    if not scale > 0:
        return np.zeros(1, dtype=Long)
    with mpmath.workprec(80):
        matrix = mpmath.matrix([[mpmath.mpf(str(entry)) for entry in row] for row in W / scale])
        found = mpmath.svd_r(matrix, compute_uv=False)
        return scale * np.array([Long(mpmath.nstr(each, 22)) for each in found])


def gap_and_violation(solution: MarginSolution) -> tuple[float, float]:
    """Relative duality gap and relative violation (in units of the largest right-hand side) of a
    hard-margin solution.
    """
    margins, W, dual = solution.margins, solution.W.astype(Long), solution.dual.astype(Long)
    A, b, equal = rows(margins), np.asarray(margins.rhs).astype(Long), margins.equalities
    values = np.einsum("cab,ab->c", A, W)
    short = np.where(equal, np.abs(b - values), b - values)
    assert (dual[~equal] >= 0).all()
    unit = np.abs(b).max(initial=0)
    if not unit > 0:
        return float(value(solution.geometry, W)), float(short.max(initial=0))
    lower = b @ dual / dual_value(solution.geometry, np.einsum("c,cab->ab", dual, A))
    return float(1 - lower / value(solution.geometry, W)), float(max(short.max(), 0) / unit)


def farkas(solution: MarginSolution) -> float:
    """``b_max ||A^T lam|| / (b^T lam max ||A_c||)`` over the rows of the certificate."""
    used = np.flatnonzero(solution.dual)
    A, b, lam = (
        rows(solution.margins)[used],
        np.asarray(solution.margins.rhs).astype(Long)[used],
        solution.dual[used].astype(Long),
    )
    assert len(used) > 0
    assert (lam[~solution.margins.equalities[used]] > 0).all()
    top, longest = b @ lam, np.sqrt((A**2).sum(axis=(1, 2))).max()
    assert top > 0
    pull = np.einsum("c,cab->ab", lam, A)
    return (
        float(np.sqrt((pull**2).sum()) * np.abs(b).max() / (top * longest)) if longest > 0 else 0.0
    )


def assert_proved(solution: MarginSolution) -> None:
    """What the status promises holds in extended precision; ``inaccurate`` promises nothing."""
    if solution.status == "infeasible":
        assert farkas(solution) <= 1e-12, solution.message
    elif solution.status == "optimal":
        gap, violation = gap_and_violation(solution)
        # 1e-13: rounding of the float64 evaluation that the solution's own numbers went through.
        assert gap <= solution.tol + 1e-13, (gap, solution.message)
        assert violation <= solution.tol + 1e-13, (violation, solution.message)
        assert abs(max(gap, 0.0) - solution.gap) <= 1e-6 * solution.gap + 1e-12, (
            gap,
            solution.message,
        )
