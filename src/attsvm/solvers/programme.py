r"""The programme a solver works on: the caller's margins with rows of one size.

Row :math:`c` of ``minimise 1/2 ||W||^2 + C sum xi  subject to  <A_c, W> >= b_c - xi_c`` is
multiplied by a power of two that brings :math:`\|\delta_c\|` and :math:`\|z_i\|` into
:math:`[1/4, 1)`, then all right-hand sides by one more. Powers of two are exact, so both programmes
have the same solutions bit for bit, at any scale of the data, and token pairs that nearly coincide
become rows like any other.

With orthonormal bases :math:`P` of :math:`\operatorname{span}\{\delta_c\}` and :math:`Q` of
:math:`\operatorname{span}\{z_i\}`, :math:`W\mapsto PP^\top W QQ^\top` keeps every margin and raises
no unitarily invariant norm, so the programme may be solved in the coordinates :math:`B` of
:math:`W=PBQ^\top`, with the same multipliers (:func:`reduce`). Not valid for entrywise norms.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from attsvm.base.cores import map_on_threads
from attsvm.datasets.attention_data import BoolArray, FloatArray, IntArray
from attsvm.margins import Margins
from attsvm.native import address, library
from attsvm.solvers.scaling import OutOfRangeError
from attsvm.solvers.threads import all_threads


class ProgrammeOptions(NamedTuple):
    """How the rows of a programme are cut for loops over them."""

    shared_entries: int = 1 << 22  # of the differences, from which a second core pays
    shares: int = 8  # of loops over rows, so that none waits long for another; untuned
    query_rows: int = 256  # up to which sequences of one query are treated together; untuned
    largest_exponent: int = 480  # of weights; twice that of their multipliers is in float64, too
    sequence_rows: int = 4  # on average, from which products of queries are made once a sequence


OPTIONS = ProgrammeOptions()


@dataclass(frozen=True, eq=False, repr=False)
class Programme:
    r"""Rows :math:`\hat a_c = \hat\delta_c\hat z_i^\top`, right-hand sides and boxes
    :math:`0\le\hat\lambda_c\le\hat C_c`.

    Attributes:
        D: ``(m, d_x)`` differences with norms in [1/4, 1), or exactly zero.
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
        options: how the rows are cut for loops.
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
    options: ProgrammeOptions = OPTIONS

    @property
    def m(self) -> int:
        """Number of rows."""
        return int(self.D.shape[0])

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of the weights."""
        return int(self.D.shape[1]), int(self.Z.shape[1])

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
        r"""Squared lengths :math:`\|\hat a_c\|^2`, ``(m,)``."""
        squares: FloatArray = (
            np.einsum("cd,cd->c", self.D, self.D)
            * np.einsum("nd,nd->n", self.Z, self.Z)[self.sequence]
        )
        return squares

    def values(self, W: FloatArray) -> FloatArray:
        r"""Margins :math:`(\langle\hat a_c, W\rangle)_c` of the weights, ``(m,)``."""
        if self.D.size < self.options.shared_entries:
            return row_values(self.D, self.offsets, self.Z @ W.T)

        def values_of_share(first: int, last: int) -> FloatArray:
            rows, offsets = self.rows_of(first, last)
            return row_values(self.D[rows], offsets, self.Z[first:last] @ W.T)

        return self._run_shares(values_of_share)

    def adjoint(self, dual: FloatArray) -> FloatArray:
        r"""The sum :math:`\sum_c\lambda_c\hat a_c`, in the shape of weights."""
        if self.D.size < self.options.shared_entries:
            return pull_rows(self.D, self.offsets, dual).T @ self.Z

        def pull_share(first: int, last: int) -> FloatArray:
            rows, offsets = self.rows_of(first, last)
            return pull_rows(self.D[rows], offsets, dual[rows])

        # First rows by their sequences, then the product with queries by columns.
        columns = np.array_split(self._run_shares(pull_share).T, self.options.shares)
        return np.concatenate(map_on_threads(lambda block: block @ self.Z, columns))

    def rows_of(self, first: int, last: int) -> tuple[slice, IntArray]:
        """The rows of the blocks from ``first`` to before ``last``, and where those of each begin
        among them.
        """
        start = self.offsets[first]
        return slice(start, self.offsets[last]), self.offsets[first : last + 1] - start

    def _run_shares(self, run: Callable[[int, int], FloatArray]) -> FloatArray:
        """``run(first, last)`` over shares of the blocks, on all cores."""
        ends = np.linspace(0, len(self.Z), self.options.shares + 1).astype(int).tolist()
        return np.concatenate(
            map_on_threads(lambda share: run(*share), list(itertools.pairwise(ends)))
        )

    def gram(self, rows: IntArray) -> FloatArray:
        """Gram matrix of these rows, in Fortran order for LAPACK."""
        D, sequence = self.D[rows], self.sequence[rows]
        # Rows of one sequence are neighbours and share a query.
        first = np.flatnonzero(np.diff(sequence, prepend=-1))
        Z = self.Z[sequence[first]]
        with all_threads(len(D)):
            G = D @ D.T
            if self.options.sequence_rows * len(first) > len(rows):
                Z = self.Z[sequence]
                G *= Z @ Z.T
            else:  # a sequence at a time: rows of one share their products of queries
                ends = np.append(first, len(rows))
                K = np.repeat(Z @ Z.T, np.diff(ends), axis=1)
                for i in range(len(first)):
                    G[ends[i] : ends[i + 1]] *= K[i]
        return G.T  # symmetric: the transposed view is the same matrix, column by column

    def restored(self, W: FloatArray, dual: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Weights and multipliers of the caller's programme."""
        return np.ldexp(W, self.weight_exponent), np.ldexp(dual, self.dual_exponent)

    def unscaled_certificate(self, dual: FloatArray) -> FloatArray:
        """Multipliers of a contradiction, which have no scale, in the caller's rows; the largest is
        near one.
        """
        mantissa, exponent = np.frexp(dual)
        power = np.where(dual != 0.0, exponent + self.dual_exponent, -(10**6))
        near: FloatArray = np.ldexp(mantissa, np.maximum(power - power.max(), -2000))
        return near

    def scaled_dual(self, dual: FloatArray) -> FloatArray:
        """Multipliers of the caller's programme, brought to this one's scale and into its box."""
        clipped: FloatArray = np.clip(np.ldexp(dual, -self.dual_exponent), 0.0, self.cap)
        return clipped

    def cancelled(self, dual: FloatArray) -> FloatArray:
        """``(m,)`` multipliers with the same ``adjoint``, at most one of two opposite ones
        positive.
        """
        if self.opposite is None:
            return dual
        return dual - np.where(self.opposite >= 0, np.minimum(dual, dual[self.opposite]), 0.0)


class DualPoint(NamedTuple):
    """Multipliers and weights of one stage.

    ``settled`` is True when every sign is right; otherwise ``dual`` is the last point, clipped into
    the box. ``W`` is ``adjoint(dual)`` refined on its own, so that cancellation among large
    multipliers does not blur its margins. Of a ``contradiction`` the rows add up to zero.
    """

    dual: FloatArray
    W: FloatArray
    settled: bool
    contradiction: bool = False


def row_values(D: FloatArray, offsets: IntArray, moved: FloatArray) -> FloatArray:
    """Products ``D[c] . moved[i]`` for every row ``c`` of every sequence ``i``, ``(m,)``."""
    count, of = len(offsets) - 1, address
    moved, values = np.ascontiguousarray(moved), np.empty(len(D))
    library.row_values(
        of(D, np.float64, *D.shape),
        of(offsets, np.int64, count + 1),
        *(count, D.shape[1]),
        of(moved, np.float64, count, D.shape[1]),
        of(values, np.float64, len(D)),
    )
    return values


def pull_rows(D: FloatArray, offsets: IntArray, dual: FloatArray) -> FloatArray:
    """Sums ``sum_c dual[c] D[c]`` over the rows of each sequence, ``(k, d_x)``."""
    count, of = len(offsets) - 1, address
    dual, sums = np.ascontiguousarray(dual), np.empty((count, D.shape[1]))
    library.pull_rows(
        of(D, np.float64, *D.shape),
        of(offsets, np.int64, count + 1),
        *(count, D.shape[1]),
        of(dual, np.float64, len(D)),
        of(sums, np.float64, *sums.shape),
    )
    return sums


def _exponents(rows: FloatArray) -> IntArray:
    """``(m,)`` exponents of the powers of two that bring the norm of each row near one."""
    exponents = np.empty(len(rows), dtype=np.int64)
    library.row_exponents(
        address(rows, np.float64, *rows.shape),
        *rows.shape,
        address(exponents, np.int64, len(rows)),
    )
    return exponents


def explicit_rows(p: Programme, rows: IntArray) -> FloatArray:
    """The rows written out, ``(k, dof)``, for systems small enough to hold them."""
    D, Z = p.D[rows], p.Z[p.sequence[rows]]
    written: FloatArray = (D[:, :, None] * Z[:, None, :]).reshape(len(rows), p.dof)
    return written


def empty_rows(margins: Margins) -> BoolArray:
    """``(m,)``: whether the difference or the query of a row is exactly zero, so that its margin is
    0 whatever the weights are.
    """
    silent: BoolArray = np.logical_not(np.any(margins.queries, axis=1))
    equal: BoolArray = np.logical_not(np.any(margins.differences, axis=1))
    return equal | silent[margins.sequence]


def equilibrate(
    margins: Margins,
    slack: float | None,
    opposite: IntArray | None = None,
    options: ProgrammeOptions = OPTIONS,
) -> Programme:
    """The programme with rows of one size.

    1. Divide differences and queries by powers of two of their sizes.
    2. Divide right-hand sides by those of their rows, then all by one more.
    3. Scale the caps of multipliers to match.
    4. Merge neighbouring sequences of one query.

    Raises:
        OutOfRangeError: differences times queries leave the range in which weights and multipliers
            are float64 numbers.
    """
    # 1. Rows.
    D, d_exponent = equilibrate_rows(margins.differences, options)
    Z, z_exponent = equilibrate_rows(margins.queries, options)
    sequence = margins.sequence
    row_exponent = -(d_exponent + z_exponent[sequence])
    # 2. Right-hand sides.
    mantissa, exponent = np.frexp(margins.rhs)
    exponent = exponent.astype(np.int64) + row_exponent
    positive = margins.rhs > 0
    weight_exponent = int(exponent[positive].max())
    dual_exponent = row_exponent + weight_exponent
    if (
        abs(weight_exponent) > options.largest_exponent
        or (np.abs(dual_exponent[positive]) > 2 * options.largest_exponent).any()
    ):
        sizes = -row_exponent[positive]
        raise OutOfRangeError(
            "weights for rows (differences of tokens times queries) of sizes from"
            f" 2^{int(sizes.min())} to 2^{int(sizes.max())} leave the range of float64; divide the"
            " tokens or the query of each sequence by their own size"
        )
    b = np.where(margins.rhs != 0, np.ldexp(mantissa, exponent - weight_exponent), 0.0)
    # 3. Caps.
    cap = (
        np.full(margins.m, np.inf)
        if slack is None
        else np.ldexp(np.full(margins.m, slack), -dual_exponent)
    )
    # 4. Queries.
    offsets = np.array(margins.offsets, dtype=np.int64)
    Z, offsets = _merge_queries(Z, offsets, z_exponent, options.query_rows)
    sequence = np.repeat(np.arange(len(Z)), np.diff(offsets))
    return Programme(
        D, Z, offsets, sequence, b, cap, weight_exponent, dual_exponent, opposite, options
    )


def _merge_queries(
    Z: FloatArray, offsets: IntArray, exponent: IntArray, query_rows: int
) -> tuple[FloatArray, IntArray]:
    """Queries and offsets with neighbours of equal queries made one block, up to a size.

    Token-priority graphs have a sequence per query and winner, but only as many queries as tokens.
    """
    is_first = np.ones(len(Z), dtype=np.bool_)
    is_first[1:] = (
        (Z[1:] != Z[:-1]).any(axis=1)
        | (exponent[1:] != exponent[:-1])
        | (offsets[2:] // query_rows != offsets[1:-1] // query_rows)
    )
    first = np.flatnonzero(is_first)
    if len(first) == len(Z):
        return Z, offsets
    return np.ascontiguousarray(Z[first]), np.append(offsets[first], offsets[-1])


def equilibrate_rows(
    rows: FloatArray, options: ProgrammeOptions = OPTIONS
) -> tuple[FloatArray, IntArray]:
    """Rows divided by a power of two of their size, and the exponents."""
    rows = np.ascontiguousarray(rows, dtype=np.float64)
    unit, exponent = np.empty_like(rows), np.empty(len(rows), dtype=np.int64)

    def scale_share(share: slice) -> None:
        exponent[share] = powers = _exponents(rows[share])
        # A product with a power of two is quicker than `ldexp`, while that is a number.
        if (np.abs(powers) < 1000).all():
            np.multiply(rows[share], np.ldexp(1.0, -powers)[:, None], out=unit[share])
        else:
            np.ldexp(rows[share], -powers[:, None], out=unit[share])

    if rows.size < options.shared_entries:
        scale_share(slice(None))
    else:
        ends = np.linspace(0, len(rows), options.shares + 1).astype(int).tolist()
        map_on_threads(
            scale_share, [slice(*ends_of_share) for ends_of_share in itertools.pairwise(ends)]
        )
    return unit, exponent


class Reduction(NamedTuple):
    """A programme in coordinates and its bases.

    Attributes:
        programme: the programme of ``B``; the one given when nothing shrinks.
        left: ``(d_x, k_x)`` with orthonormal columns, or ``None`` for the identity.
        right: ``(d_z, k_z)`` likewise.
    """

    programme: Programme
    left: FloatArray | None
    right: FloatArray | None

    def coordinates(self, W: FloatArray) -> FloatArray:
        """The ``B`` of the weights nearest to ``W`` in the spans."""
        B = W if self.left is None else self.left.T @ W
        return B if self.right is None else B @ self.right

    def lifted(self, B: FloatArray) -> FloatArray:
        """The weights ``left B right^T``."""
        W = B if self.left is None else self.left @ B
        return W if self.right is None else W @ self.right.T


def reduce(p: Programme, differences: bool = True, queries: bool = True) -> Reduction:
    """The programme in the smaller of the given coordinates and those of the spans, side by side,
    on the sides that the norm allows (:attr:`attsvm.norms.Norm.invariant`).
    """
    left, D = _basis_and_coordinates(p.D) if differences else (None, p.D)
    right, Z = _basis_and_coordinates(p.Z) if queries else (None, p.Z)
    return Reduction(p if left is None and right is None else replace(p, D=D, Z=Z), left, right)


def _basis_and_coordinates(rows: FloatArray) -> tuple[FloatArray | None, FloatArray]:
    """Basis and coordinates of fewer rows than columns; the rows as they are otherwise."""
    count, width = rows.shape
    # Rows that may span the space are coordinates already.
    if count >= width:
        return None, rows
    basis, R = np.linalg.qr(rows.T)
    return basis, np.ascontiguousarray(R.T)
