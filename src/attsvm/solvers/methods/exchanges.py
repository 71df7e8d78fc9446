r"""The least value of a quadratic model over non-negative multipliers, from multipliers near it.

Block principal pivoting (:mod:`attsvm.solvers.methods.pivoting`) on a matrix that is written out:
the free multipliers solve a linear system, those with the wrong sign change sides. One
factorisation serves several rounds. Where few rows :math:`N` enter its rows :math:`F` and few rows
:math:`R` leave them, the system is bordered,

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


def nearest_multipliers(
    form: FloatArray, gradient: FloatArray, dual: FloatArray
) -> FloatArray | None:
    """The multipliers of least model value after a few exchanges of those that are free; ``None``
    where the form is not definite.

    Args:
        form: ``(k, k)`` of the model, its upper triangle, in numbers of 32 or of 64 bits: what is
            solved for is the step, which is short where few digits would not do.
        gradient: ``(k,)`` at ``dual``.
        dual: ``(k,)`` multipliers.
    """
    from scipy.linalg.blas import get_blas_funcs
    from scipy.linalg.lapack import get_lapack_funcs

    symv, potrf = get_blas_funcs("symv", (form,)), get_lapack_funcs("potrf", (form,))
    turned = form.T  # its lower triangle, in Fortran order
    free = dual > 0.0
    if not free.any():
        free = gradient < 0.0
    part: IntArray = np.empty(0, dtype=np.int64)  # the rows of the factor
    step, factor = np.zeros(len(dual)), form
    for _ in range(_ROUNDS):
        changed = np.count_nonzero(free) - len(part) + 2 * np.count_nonzero(~free[part])
        if _FEW * changed > len(part):
            part = np.flatnonzero(free)
            with all_threads(len(part)):
                factor, failed = potrf(_upper(form, part).T, lower=1, clean=0, overwrite_a=1)
            if failed:
                return None
        ends = np.where(free, 0.0, -dual)
        beyond = ends.copy()
        beyond[part] = 0.0
        wanted = -gradient - symv(1.0, turned, beyond, lower=1) if beyond.any() else -gradient
        found = _solution(form, part, factor, wanted, free, ends)
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


def _solution(
    form: FloatArray,
    part: IntArray,
    factor: FloatArray,
    wanted: FloatArray,
    free: BoolArray,
    ends: FloatArray,
) -> FloatArray | None:
    """Of the linear system of the free rows, from the factor of the rows ``part``, where the others
    are to be ``ends``; ``None`` where it is singular.
    """
    from scipy.linalg.blas import get_blas_funcs
    from scipy.linalg.lapack import dsysv

    trsm, trsv = get_blas_funcs(("trsm", "trsv"), (factor,))
    found, inside = ends.copy(), np.zeros(len(wanted), dtype=np.bool_)
    inside[part] = True
    entering, leaving = np.flatnonzero(free & ~inside), np.flatnonzero(~free[part])
    count, width = len(entering), len(entering) + len(leaving)
    half = trsv(factor, wanted[part], lower=1)
    if width > 0:
        border = np.zeros((width, len(part)), factor.dtype).T  # in Fortran order
        border[:, :count] = _between(form, part, entering)
        border[leaving, np.arange(count, width)] = 1.0
        border = trsm(1.0, factor, border, lower=1, overwrite_b=1)
        corner = np.zeros((width, width))
        corner[:count, :count] = _between(form, entering, entering)
        corner -= border.T @ border
        sides = np.append(wanted[entering], ends[part[leaving]])
        outer, failed = dsysv(corner, sides - border.T @ half)[2:]
        if failed:
            return None
        half = half - border @ outer.astype(half.dtype)
        found[entering] = outer[:count]
    found[part] = trsv(factor, half, lower=1, trans=1)
    found[part[leaving]] = ends[part[leaving]]
    return found


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
