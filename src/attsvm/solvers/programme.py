r"""The programme a solver works on: the caller's margins with rows of one size.

Row :math:`c` of ``minimise 1/2 ||W||^2 + C sum xi  subject to  <A_c, W> >= b_c - xi_c`` is
multiplied by a power of two that brings :math:`\|\delta_c\|` and :math:`\|z_i\|` into
:math:`[1/2, 1)`, then all right-hand sides by one more. Powers of two are exact, so both programmes
have the same solutions bit for bit, at any scale of the data, and token pairs that nearly coincide
become rows like any other.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from attsvm.data import BoolArray, FloatArray, IntArray
from attsvm.margins import Margins
from attsvm.solvers import kernels
from attsvm.solvers.scaling import OutOfRangeError

_BLOCK = 256  # rows up to which sequences of one query are treated together
_LARGEST_EXPONENT = 480  # weights within 2**480; their multipliers then stay within 2**960


@dataclass(frozen=True, eq=False)
class Programme:
    r"""Rows :math:`\hat a_c = \hat\delta_c\hat z_i^\top`, right-hand sides and boxes
    :math:`0\le\hat\lambda_c\le\hat C_c`.

    Attributes:
        D: ``(m, d_x)`` differences with norms in [1/2, 1), or exactly zero.
        Z: ``(k, d_z)`` queries, likewise; neighbouring sequences with one query share a block, so
            ``k <= n``.
        offsets: ``(k + 1,)`` where each block's rows start.
        sequence: ``(m,)`` the block of each row.
        b: ``(m,)`` right-hand sides, the largest in [1/2, 1). Negative ones come with their
            opposite rows: equalities written as pairs.
        cap: ``(m,)`` upper bounds of the multipliers, ``inf`` for the hard margin.
        weight_exponent: ``W = 2**weight_exponent * W_hat``.
        dual_exponent: ``(m,)``, ``dual = 2**dual_exponent * dual_hat``.
        opposite: ``(m,)`` the row :math:`-\hat a_c` with which row ``c`` makes an equality, -1 for
            none; ``None`` without equalities.
    """

    D: FloatArray
    Z: FloatArray
    offsets: IntArray
    sequence: IntArray
    b: FloatArray
    cap: FloatArray
    weight_exponent: int
    dual_exponent: IntArray
    opposite: IntArray | None = None

    @property
    def m(self) -> int:
        """Number of rows."""
        return int(self.D.shape[0])

    @property
    def dof(self) -> int:
        """Number of entries of the weights."""
        return int(self.D.shape[1] * self.Z.shape[1])

    @cached_property
    def hard(self) -> bool:
        """True when no multiplier has an upper bound."""
        return bool(np.isinf(self.cap).all())

    @cached_property
    def diagonal(self) -> FloatArray:
        r""":math:`\|\hat a_c\|^2`."""
        squares: FloatArray = (
            np.einsum("cd,cd->c", self.D, self.D)
            * np.einsum("nd,nd->n", self.Z, self.Z)[self.sequence]
        )
        return squares

    def values(self, W: FloatArray) -> FloatArray:
        r""":math:`(\langle\hat a_c, W\rangle)_c`."""
        return kernels.values(self.D, self.offsets, np.ascontiguousarray(self.Z @ W.T))

    def adjoint(self, dual: FloatArray) -> FloatArray:
        r""":math:`\sum_c\lambda_c\hat a_c`."""
        return kernels.pulled(self.D, self.offsets, dual).T @ self.Z

    def gram(self, rows: IntArray) -> FloatArray:
        """Gram matrix of these rows, in Fortran order for LAPACK."""
        D, Z = self.D[rows], self.Z[self.sequence[rows]]
        G = D @ D.T
        G *= Z @ Z.T
        return G.T  # symmetric: the transposed view is the same matrix, column by column

    def restored(self, W: FloatArray, dual: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Weights and multipliers of the caller's programme."""
        return np.ldexp(W, self.weight_exponent), np.ldexp(dual, self.dual_exponent)

    def scaled_dual(self, dual: FloatArray) -> FloatArray:
        """Multipliers of the caller's programme, brought to this one's scale and into its box."""
        clipped: FloatArray = np.clip(np.ldexp(dual, -self.dual_exponent), 0.0, self.cap)
        return clipped

    def cancelled(self, dual: FloatArray) -> FloatArray:
        """The same ``adjoint`` with at most one of two opposite multipliers positive."""
        if self.opposite is None:
            return dual
        return dual - np.where(self.opposite >= 0, np.minimum(dual, dual[self.opposite]), 0.0)


def explicit_rows(p: Programme, rows: IntArray) -> FloatArray:
    """``(k, dof)``: the rows written out, for systems small enough to hold them."""
    D, Z = p.D[rows], p.Z[p.sequence[rows]]
    written: FloatArray = (D[:, :, None] * Z[:, None, :]).reshape(len(rows), p.dof)
    return written


def empty_rows(margins: Margins) -> BoolArray:
    """Rows whose difference or query is exactly zero: their margin is 0 whatever the weights
    are.
    """
    silent: BoolArray = np.logical_not(np.any(margins.queries, axis=1))
    equal: BoolArray = np.logical_not(np.any(margins.differences, axis=1))
    return equal | silent[margins.sequence]


def equilibrate(
    margins: Margins, slack: float | None, opposite: IntArray | None = None
) -> Programme:
    """The programme with rows of one size.

    Raises:
        OutOfRangeError: differences times queries leave the range in which weights and multipliers
            are float64 numbers.
    """
    D, d_exponent = _unit_rows(margins.differences)
    Z, z_exponent = _unit_rows(margins.queries)
    sequence = margins.sequence
    row_exponent = -(d_exponent + z_exponent[sequence])
    mantissa, exponent = np.frexp(margins.rhs)
    exponent = exponent.astype(np.int64) + row_exponent
    positive = margins.rhs > 0
    weight_exponent = int(exponent[positive].max())
    dual_exponent = row_exponent + weight_exponent
    if (
        abs(weight_exponent) > _LARGEST_EXPONENT
        or (np.abs(dual_exponent[positive]) > 2 * _LARGEST_EXPONENT).any()
    ):
        sizes = -row_exponent[positive]
        raise OutOfRangeError(
            "weights for rows (differences of tokens times queries) of sizes from"
            f" 2^{int(sizes.min())} to 2^{int(sizes.max())} leave the range of float64; divide the"
            " tokens or the queries by a constant first"
        )
    b = np.where(margins.rhs != 0, np.ldexp(mantissa, exponent - weight_exponent), 0.0)
    cap = (
        np.full(margins.m, np.inf)
        if slack is None
        else np.ldexp(np.full(margins.m, slack), -dual_exponent)
    )
    Z, offsets = _blocks(Z, np.ascontiguousarray(margins.offsets, dtype=np.int64), z_exponent)
    sequence = np.repeat(np.arange(len(Z)), np.diff(offsets))
    return Programme(D, Z, offsets, sequence, b, cap, weight_exponent, dual_exponent, opposite)


def _blocks(Z: FloatArray, offsets: IntArray, exponent: IntArray) -> tuple[FloatArray, IntArray]:
    """Queries and offsets with neighbours of equal queries made one block, up to a size.

    Token-priority graphs have a sequence per query and winner, but only as many queries as tokens.
    """
    new = np.ones(len(Z), dtype=np.bool_)
    new[1:] = (
        (Z[1:] != Z[:-1]).any(axis=1)
        | (exponent[1:] != exponent[:-1])
        | (offsets[2:] // _BLOCK != offsets[1:-1] // _BLOCK)
    )
    first = np.flatnonzero(new)
    if len(first) == len(Z):
        return Z, offsets
    return np.ascontiguousarray(Z[first]), np.append(offsets[first], offsets[-1])


def _unit_rows(rows: FloatArray) -> tuple[FloatArray, IntArray]:
    """Rows divided by the power of two above their norm, and the exponents."""
    rows = np.ascontiguousarray(rows, dtype=np.float64)
    peak, relative = kernels.row_norms(rows)
    exponent = np.frexp(peak)[1].astype(np.int64) + np.frexp(relative)[1]
    if (np.abs(exponent) < 1000).all():
        return rows * np.ldexp(1.0, -exponent)[:, None], exponent
    return np.ldexp(rows, -exponent[:, None]), exponent
