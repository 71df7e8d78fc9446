r"""Least values of quadratic models over non-negative multipliers.

Block principal pivoting on a matrix that is written out: the free multipliers solve a linear
system, those with the wrong sign change sides. One factorisation serves several rounds, and
gradients: where few rows :math:`N` enter its rows :math:`F` and few rows :math:`R` leave them, the
system is bordered,

.. math:: \begin{pmatrix}K_{FF}&B\\B^\top&C\end{pmatrix}\begin{pmatrix}x_F\\y\end{pmatrix}
    =\begin{pmatrix}w_F\\c\end{pmatrix},\qquad B=(K_{FN},\,I_{FR}),\quad
    C=\begin{pmatrix}K_{NN}&\\&0\end{pmatrix},\quad c=(w_N,0),

and only a matrix of the size of :math:`N` and :math:`R` is solved anew.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from attsvm.datasets.attention_data import BoolArray, FloatArray, IntArray
from attsvm.native.lapack import lapack_routine
from attsvm.solvers.threads import all_threads


class ModelOptions(NamedTuple):
    """Limits of the method; untuned.

    Attributes:
        rounds: exchanges of free rows.
        rows_per_border: rows of the factor for each row of a border, at least.
    """

    rounds: int = 4
    rows_per_border: int = 8


MODEL = ModelOptions()


class QuadraticModel:
    """A form and a factor of it that serves several gradients, at multipliers that have moved on,
    too.

    Args:
        form: ``(k, k)``, its upper triangle, in numbers of 32 or of 64 bits: what is solved for is
            the step, which is short where few digits would not do.
        options: limits.
    """

    def __init__(self, form: FloatArray, options: ModelOptions = MODEL) -> None:
        kind = "s" if form.dtype == np.float32 else "d"
        self._symv, self._trsv, self._trsm, self._potrf = (
            lapack_routine(f"{kind}{name}") for name in ("symv", "trsv", "trsm", "potrf")
        )
        self._options = options
        self._form = self._factor = form
        self._factor_rows: IntArray = np.empty(0, dtype=np.int64)
        self._border_rows = self._factor_rows  # rows whose columns of the border are solved, and
        self._border = np.empty((0, 0), form.dtype)  # these columns

    def minimise(self, gradient: FloatArray, dual: FloatArray) -> FloatArray | None:
        """``(k,)``: the multipliers of least model value after a few exchanges of those that are
        free; ``None`` where the form is not definite.

        1. Factorise the rows of the free multipliers, unless a border is enough.
        2. Solve for their step, with the others at zero.
        3. Multipliers below zero, and rows at zero whose slope is negative, change sides.

        Args:
            gradient: ``(k,)`` at ``dual``.
            dual: ``(k,)`` multipliers.
        """
        symv, lower = self._symv, self._form.T  # its lower triangle, in Fortran order
        free = dual > 0.0
        if not free.any():
            free = gradient < 0.0
        step = np.zeros(len(dual))
        for _ in range(self._options.rounds):
            # 1. The factor.
            if not self._factorise(free):
                return None
            # 2. The step.
            to_zero = np.where(free, 0.0, -dual)
            outside = to_zero.copy()
            outside[self._factor_rows] = 0.0
            rhs = -gradient - symv(1.0, lower, outside, lower=1) if outside.any() else -gradient
            solution = self._solve(rhs, free, to_zero)
            if solution is None:
                return None
            step = solution
            # 3. Wrong signs.
            slope = symv(1.0, lower, step, lower=1) + gradient
            wrong: BoolArray = np.where(free, dual + step < 0.0, slope < 0.0)
            if not wrong.any():
                break
            free = free ^ wrong
            if not free.any():
                return None
        return np.maximum(dual + step, 0.0)

    def _factorise(self, free: BoolArray) -> bool:
        """Whether there is a factor of nearly the free rows; it is made where there was none."""
        rows = self._factor_rows
        changed = np.count_nonzero(free) - len(rows) + 2 * np.count_nonzero(~free[rows])
        # A border is cheaper than a factor as long as it is narrow.
        if self._options.rows_per_border * changed <= len(rows):
            return True
        self._factor_rows = rows = np.flatnonzero(free)
        self._border_rows = np.empty(0, dtype=np.int64)
        self._border = np.empty((len(rows), 0), self._form.dtype, order="F")
        with all_threads(len(rows)):
            self._factor, failed = self._potrf(
                self._form[np.ix_(rows, rows)].T, lower=1, clean=0, overwrite_a=1
            )
        return not failed

    def _solve(self, rhs: FloatArray, free: BoolArray, to_zero: FloatArray) -> FloatArray | None:
        """``(k,)``: the solution of the linear system of the free rows, with the steps ``to_zero``
        of the others; ``None`` where it is singular.
        """
        factor_rows, trsv = self._factor_rows, self._trsv
        solution, is_inside = to_zero.copy(), np.zeros(len(rhs), dtype=np.bool_)
        is_inside[factor_rows] = True
        entering, leaving = np.flatnonzero(free & ~is_inside), factor_rows[~free[factor_rows]]
        # Half of the solve is shared by the border and by the rest.
        half = trsv(self._factor, rhs[factor_rows], lower=1)
        count, rows = len(entering), np.append(entering, leaving)
        if len(rows) > 0:
            # The Schur complement of the factor in the bordered matrix.
            border = self._border_columns(rows, is_inside)
            corner = np.zeros((len(rows), len(rows)))
            corner[:count, :count] = _symmetric_entries(self._form, entering, entering)
            corner -= border.T @ border
            corner_rhs = np.append(rhs[entering], to_zero[leaving])
            outer, failed = lapack_routine("dsysv")(corner, corner_rhs - border.T @ half)[2:]
            if failed:
                return None
            half = half - border @ outer.astype(half.dtype)
            solution[entering] = outer[:count]
        solution[factor_rows] = trsv(self._factor, half, lower=1, trans=1)
        solution[leaving] = to_zero[leaving]
        return solution

    def _border_columns(self, rows: IntArray, is_inside: BoolArray) -> FloatArray:
        """:math:`L^{-1}B` for these rows; columns are solved once and kept."""
        new = np.setdiff1d(rows, self._border_rows)
        if len(new) > 0:
            columns = np.zeros((len(new), len(self._factor_rows)), self._factor.dtype).T  # Fortran
            entering = ~is_inside[new]
            columns[:, entering] = _symmetric_entries(self._form, self._factor_rows, new[entering])
            leaving = np.flatnonzero(~entering)
            columns[np.searchsorted(self._factor_rows, new[leaving]), leaving] = 1.0
            solved = self._trsm(1.0, self._factor, columns, lower=1, overwrite_b=1)
            self._border = np.asfortranarray(np.concatenate([self._border, solved], axis=1))
            self._border_rows = np.append(self._border_rows, new)
        order = np.argsort(self._border_rows)
        positions = order[np.searchsorted(self._border_rows, rows, sorter=order)]
        border: FloatArray = self._border[:, positions]
        return border


def _symmetric_entries(form: FloatArray, rows: IntArray, columns: IntArray) -> FloatArray:
    """Entries of a symmetric matrix whose upper triangle is there."""
    low, high = np.minimum.outer(rows, columns), np.maximum.outer(rows, columns)
    entries: FloatArray = form[low, high]
    return entries
