r"""The least value of a quadratic model over non-negative multipliers, from multipliers near it.

Block principal pivoting (:mod:`attsvm.solvers.frobenius`) on a matrix that is written out:
the free multipliers solve a linear system, those with the wrong sign change sides. One
factorisation serves several rounds, and gradients. Where few rows :math:`N` enter its rows
:math:`F` and few rows :math:`R` leave them, the system is bordered,

.. math:: \begin{pmatrix}K_{FF}&B\\B^\top&C\end{pmatrix}\begin{pmatrix}x_F\\y\end{pmatrix}
    =\begin{pmatrix}w_F\\c\end{pmatrix},\qquad B=(K_{FN},\,I_{FR}),\quad
    C=\begin{pmatrix}K_{NN}&\\&0\end{pmatrix},\quad c=(w_N,0),

and only a matrix of the size of :math:`N` and :math:`R` is solved anew.
"""

from __future__ import annotations

import numpy as np

from attsvm.data import BoolArray, FloatArray, IntArray
from attsvm.jit import kernel
from attsvm.solvers.programme.threads import all_threads

_ROUNDS = 4
_FEW = 8  # a border is at most the free rows divided by this


class QuadraticModel:
    """A form and the factor that serves several gradients, at multipliers that have moved on, too.

    Args:
        form: ``(k, k)``, its upper triangle, in numbers of 32 or of 64 bits: what is solved for is
            the step, which is short where few digits would not do.
    """

    def __init__(self, form: FloatArray) -> None:
        from scipy.linalg.blas import get_blas_funcs
        from scipy.linalg.lapack import get_lapack_funcs

        self._symv, self._trsv, self._trsm = get_blas_funcs(("symv", "trsv", "trsm"), (form,))
        self._potrf = get_lapack_funcs("potrf", (form,))
        self._form = self._factor = form
        self._part: IntArray = np.empty(0, dtype=np.int64)  # the rows of the factor
        self._bordered = self._part  # rows whose columns of the border are solved, and these
        self._border = np.empty((0, 0), form.dtype)

    def nearest(self, gradient: FloatArray, dual: FloatArray) -> FloatArray | None:
        """The multipliers of least model value after a few exchanges of those that are free;
        ``None`` where the form is not definite.

        Args:
            gradient: ``(k,)`` at ``dual``.
            dual: ``(k,)`` multipliers.
        """
        symv, turned = self._symv, self._form.T  # its lower triangle, in Fortran order
        free = dual > 0.0
        if not free.any():
            free = gradient < 0.0
        step = np.zeros(len(dual))
        for _ in range(_ROUNDS):
            if not self._factored(free):
                return None
            ends = np.where(free, 0.0, -dual)
            beyond = ends.copy()
            beyond[self._part] = 0.0
            wanted = -gradient - symv(1.0, turned, beyond, lower=1) if beyond.any() else -gradient
            found = self._solution(wanted, free, ends)
            if found is None:
                return None
            step = found
            slope = symv(1.0, turned, step, lower=1) + gradient
            wrong: BoolArray = np.where(free, dual + step < 0.0, slope < 0.0)
            if not wrong.any():
                break
            free = free ^ wrong
            if not free.any():
                return None
        return np.maximum(dual + step, 0.0)

    def _factored(self, free: BoolArray) -> bool:
        """Whether there is a factor of nearly the free rows; it is made where there was none."""
        part = self._part
        changed = np.count_nonzero(free) - len(part) + 2 * np.count_nonzero(~free[part])
        if _FEW * changed <= len(part):
            return True
        self._part = part = np.flatnonzero(free)
        self._bordered = np.empty(0, dtype=np.int64)
        self._border = np.empty((len(part), 0), self._form.dtype, order="F")
        with all_threads(len(part)):
            self._factor, failed = self._potrf(
                _upper(self._form, part).T, lower=1, clean=0, overwrite_a=1
            )
        return not failed

    def _solution(self, wanted: FloatArray, free: BoolArray, ends: FloatArray) -> FloatArray | None:
        """Of the linear system of the free rows where the others are to be ``ends``; ``None`` where
        it is singular.
        """
        from scipy.linalg.lapack import dsysv

        part, trsv = self._part, self._trsv
        found, inside = ends.copy(), np.zeros(len(wanted), dtype=np.bool_)
        inside[part] = True
        entering, leaving = np.flatnonzero(free & ~inside), part[~free[part]]
        half = trsv(self._factor, wanted[part], lower=1)
        count, rows = len(entering), np.append(entering, leaving)
        if len(rows) > 0:
            border = self._columns(rows, inside)
            corner = np.zeros((len(rows), len(rows)))
            corner[:count, :count] = _between(self._form, entering, entering)
            corner -= border.T @ border
            sides = np.append(wanted[entering], ends[leaving])
            outer, failed = dsysv(corner, sides - border.T @ half)[2:]
            if failed:
                return None
            half = half - border @ outer.astype(half.dtype)
            found[entering] = outer[:count]
        found[part] = trsv(self._factor, half, lower=1, trans=1)
        found[leaving] = ends[leaving]
        return found

    def _columns(self, rows: IntArray, inside: BoolArray) -> FloatArray:
        """:math:`L^{-1}B` for these rows; those that were asked for before are not solved again."""
        new = np.setdiff1d(rows, self._bordered)
        if len(new) > 0:
            fresh = np.zeros((len(new), len(self._part)), self._factor.dtype).T  # Fortran order
            entering = ~inside[new]
            fresh[:, entering] = _between(self._form, self._part, new[entering])
            leaving = np.flatnonzero(~entering)
            fresh[np.searchsorted(self._part, new[leaving]), leaving] = 1.0
            solved = self._trsm(1.0, self._factor, fresh, lower=1, overwrite_b=1)
            self._border = np.asfortranarray(np.concatenate([self._border, solved], axis=1))
            self._bordered = np.append(self._bordered, new)
        order = np.argsort(self._bordered)
        columns: FloatArray = self._border[
            :, order[np.searchsorted(self._bordered, rows, sorter=order)]
        ]
        return columns


def _between(form: FloatArray, rows: IntArray, columns: IntArray) -> FloatArray:
    """Entries of a symmetric matrix whose upper triangle is there."""
    low, high = np.minimum.outer(rows, columns), np.maximum.outer(rows, columns)
    entries: FloatArray = form[low, high]
    return entries


@kernel
def _upper(form: FloatArray, part: IntArray) -> FloatArray:
    """The upper triangle of these rows and columns; nothing below it."""
    k = len(part)
    out = np.empty((k, k), form.dtype)
    for a in range(k):
        row, into = form[part[a]], out[a]
        for e in range(a, k):
            into[e] = row[part[e]]
    return out
