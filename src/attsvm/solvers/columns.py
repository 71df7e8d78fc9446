r"""Features in different units: columns of differences and queries brought to one size.

With :math:`\delta_c=S\hat\delta_c` and :math:`z_i=Q\hat z_i` for diagonal :math:`S, Q` of powers of
two the margins are those of :math:`\hat W=SWQ`. The entries of :math:`\hat W` then differ in what
they cost, :math:`\|W\|` is a norm of :math:`(g_{ae}\hat W_{ae})` with
:math:`g_{ae}=1/(s_aq_e)`, and both programmes have the same multipliers.

Multipliers of a programme with cheap entries have to cancel there:
:math:`(A^\top\lambda)_{ae}` may not be larger than about :math:`g_{ae}`, while float64 leaves
:math:`10^{-16}|A|^\top\lambda`. What is left over is taken up by small multipliers of rows that
need none, whose last digits are small, too (:func:`cancelled`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from attsvm.data import BoolArray, FloatArray, IntArray
from attsvm.margins import Margins
from attsvm.solvers.programme import Programme
from attsvm.solvers.proofs import sharp_adjoint

_APART = 7  # exponents by which columns may differ, and nothing is done
_ROUNDS = 3  # in which rows and columns are brought to one size in turn
_EPS = float(np.finfo(np.float64).eps)
_HEAVY = 1e-6  # share of the largest multiplier from which one has no digits for what is left over
_PASSES = 3  # of cancelling what is left over


class Even(NamedTuple):
    """A programme with columns of one size.

    Attributes:
        margins: the programme; the given one where its columns are not far apart.
        powers: ``(d_x, d_z)`` exponents of what the entries of the weights were multiplied with.
    """

    margins: Margins
    powers: IntArray

    @property
    def uneven(self) -> bool:
        """Whether columns were far apart."""
        return bool(self.powers.any())

    def costs(self) -> FloatArray:
        """``(d_x d_z,)`` what each entry counts in the norm, at most 1."""
        cost: FloatArray = np.ldexp(1.0, self.powers.min() - self.powers).reshape(-1)
        return cost

    def restored(self, W: FloatArray) -> FloatArray:
        """Weights of the programme whose columns are as they are."""
        return np.ldexp(W, -self.powers) if self.uneven else W


def evened(margins: Margins) -> Even:
    """The programme with columns of one size, if they are far apart."""
    D, left = _even(margins.differences)
    Z, right = _even(margins.queries)
    powers = left[:, None] + right
    if not (left.any() or right.any()):
        return Even(margins, np.zeros_like(powers))
    return Even(replace(margins, differences=D, queries=Z), powers)


def _even(rows: FloatArray) -> tuple[FloatArray, IntArray]:
    """Rows divided column by column by powers of two, and the exponents; as they are where these
    are near each other.
    """
    none = np.zeros(rows.shape[1], dtype=np.int64)
    largest = np.maximum(rows.max(axis=0, initial=0.0), -rows.min(axis=0, initial=0.0))
    some = largest > 0.0
    if not some.any() or largest[some].max() <= 2.0**_APART * largest[some].min():
        return rows, none
    sizes, total = np.abs(rows), none.copy()
    for _ in range(_ROUNDS):
        sizes = np.ldexp(sizes, -_exponents(sizes.max(axis=1))[:, None])
        columns = _exponents(sizes.max(axis=0))
        sizes = np.ldexp(sizes, -columns)
        total += columns
    total = np.where(some, total - total[some].min(), 0)
    return np.ldexp(rows, -total), total


def _exponents(sizes: FloatArray) -> IntArray:
    found: IntArray = np.where(sizes > 0.0, np.frexp(sizes)[1], 0).astype(np.int64)
    return found


def cancelled(
    p: Programme, dual: FloatArray, entries: BoolArray, aim: FloatArray, least: FloatArray
) -> FloatArray:
    """Multipliers near ``dual`` whose adjoint on some entries is ``aim`` to more digits than large
    multipliers have.

    1. Small multipliers are raised to ``least``, which costs nothing that matters.
    2. Large ones change by least squares, relative to their sizes.
    3. What these leave over by rounding is taken up by the small ones, a few times: the changes
       are far smaller than they are, so that signs stay.

    Args:
        p: the programme, with columns of one size.
        dual: ``(m,)``, of any sign where ``least`` is zero.
        entries: ``(d_x, d_z)``.
        aim: ``(d_x, d_z)``.
        least: ``(m,)`` size of multipliers that cost nothing.
    """
    some = np.flatnonzero(entries)
    a, e = np.divmod(some, p.Z.shape[1])
    heavy = np.abs(dual) > _HEAVY * np.abs(dual).max()

    def improved(dual: FloatArray, carrying: IntArray, sizes: FloatArray) -> FloatArray:
        high, low, _ = sharp_adjoint(p.D, p.Z, p.offsets, dual)
        left = ((aim - high) - low).reshape(-1)[some]
        written = p.D[np.ix_(carrying, a)] * p.Z[np.ix_(p.sequence[carrying], e)]
        share = np.linalg.lstsq((written * sizes[:, None]).T, left, rcond=None)[0]
        if not np.abs(share).max(initial=0.0) < 1.0:
            return dual
        better = dual.copy()
        better[carrying] += share * sizes
        return better

    # Step 1.
    dual = np.where(heavy, dual, np.maximum(dual, least))
    # Step 2.
    rows = np.flatnonzero(heavy)
    dual = improved(dual, rows, np.abs(dual[rows]))
    # Step 3.
    rows = np.flatnonzero(~heavy & (dual > 0.0))
    for _ in range(_PASSES if len(rows) else 0):
        dual = improved(dual, rows, dual[rows])
    return dual
