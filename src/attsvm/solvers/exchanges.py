r"""The least value of a quadratic model over non-negative multipliers, from multipliers near it.

Block principal pivoting (:mod:`attsvm.solvers.pivoting`) on a matrix that is written out: the free
multipliers solve a linear system, those with the wrong sign change sides. One factorisation serves
several rounds. Where few rows :math:`N` enter its rows :math:`F` and few rows :math:`R` leave
them, the system is bordered,

.. math:: \begin{pmatrix}K_{FF}&B\\B^\top&C\end{pmatrix}\begin{pmatrix}x_F\\y\end{pmatrix}
    =\begin{pmatrix}w_F\\c\end{pmatrix},\qquad B=(K_{FN},\,I_{FR}),\quad
    C=\begin{pmatrix}K_{NN}&\\&0\end{pmatrix},\quad c=(w_N,0),

and only a matrix of the size of :math:`N` and :math:`R` is solved anew.
"""

from __future__ import annotations

import numpy as np

from attsvm.data import BoolArray, FloatArray, IntArray
from attsvm.jit import kernel
from attsvm.solvers.threads import all_threads

_ROUNDS = 4
_FEW = 8  # a border is at most the free rows divided by this


def nearest_multipliers(
    form: FloatArray, gradient: FloatArray, dual: FloatArray
) -> FloatArray | None:
    """The multipliers of least model value after a few exchanges of those that are free; ``None``
    where the form is not definite.

    Args:
        form: ``(k, k)`` of the model, its upper triangle.
        gradient: ``(k,)`` at ``dual``.
        dual: ``(k,)`` multipliers.
    """
    from scipy.linalg.blas import dsymv
    from scipy.linalg.lapack import dpotrf

    turned = form.T  # its lower triangle, in Fortran order
    wanted = dsymv(1.0, turned, dual, lower=1) - gradient
    free = dual > 0.0
    if not free.any():
        free = gradient < 0.0
    part: IntArray = np.empty(0, dtype=np.int64)  # the rows of the factor
    new, factor = dual, form
    for _ in range(_ROUNDS):
        changed = np.count_nonzero(free) - len(part) + 2 * np.count_nonzero(~free[part])
        if _FEW * changed > len(part):
            part = np.flatnonzero(free)
            with all_threads(len(part)):
                factor, failed = dpotrf(_upper(form, part).T, lower=1, clean=0, overwrite_a=1)
            if failed:
                return None
        found = _solution(form, part, factor, wanted, free)
        if found is None:
            return None
        new = found
        slope = dsymv(1.0, turned, new, lower=1) - wanted
        wrong: BoolArray = np.where(free, new < 0.0, slope < 0.0)
        if not wrong.any():
            break
        free = free ^ wrong
        if not free.any():
            return None
    return np.maximum(new, 0.0)


def _solution(
    form: FloatArray, part: IntArray, factor: FloatArray, wanted: FloatArray, free: BoolArray
) -> FloatArray | None:
    """Of the linear system of the free rows, from the factor of the rows ``part``; ``None`` where
    it is singular.
    """
    from scipy.linalg.blas import dtrsm, dtrsv
    from scipy.linalg.lapack import dsysv

    new, inside = np.zeros(len(wanted)), np.zeros(len(wanted), dtype=np.bool_)
    inside[part] = True
    entering, leaving = np.flatnonzero(free & ~inside), np.flatnonzero(~free[part])
    count, width = len(entering), len(entering) + len(leaving)
    half = dtrsv(factor, wanted[part], lower=1)
    if width > 0:
        border = np.zeros((width, len(part))).T  # in Fortran order
        border[:, :count] = _between(form, part, entering)
        border[leaving, np.arange(count, width)] = 1.0
        border = dtrsm(1.0, factor, border, lower=1, overwrite_b=1)
        corner, sides = np.zeros((width, width)), np.zeros(width)
        corner[:count, :count] = _between(form, entering, entering)
        sides[:count] = wanted[entering]
        corner -= border.T @ border
        outer, failed = dsysv(corner, sides - border.T @ half)[2:]
        if failed:
            return None
        half = half - border @ outer
        new[entering] = outer[:count]
    new[part] = dtrsv(factor, half, lower=1, trans=1)
    new[part[leaving]] = 0.0
    return new


def _between(form: FloatArray, rows: IntArray, columns: IntArray) -> FloatArray:
    """Entries of a symmetric matrix whose upper triangle is there."""
    low, high = np.minimum.outer(rows, columns), np.maximum.outer(rows, columns)
    entries: FloatArray = form[low, high]
    return entries


@kernel
def _upper(form: FloatArray, part: IntArray) -> FloatArray:
    """The upper triangle of these rows and columns; nothing below it."""
    k = len(part)
    out = np.empty((k, k))
    for a in range(k):
        row, into = form[part[a]], out[a]
        for e in range(a, k):
            into[e] = row[part[e]]
    return out
