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

from attsvm.datasets.attention_data import BoolArray, FloatArray, IntArray
from attsvm.margins import Margins
from attsvm.solvers.lattice import nearest_combination, shift_bits, to_scaled_integers
from attsvm.solvers.programme import Programme
from attsvm.solvers.proofs import sharp_adjoint

_APART = 7  # exponents by which columns may differ, and nothing is done
_ROUNDS = 3  # in which rows and columns are brought to one size in turn
_EPS = float(np.finfo(np.float64).eps)
_HEAVY = 1e-6  # share of the largest multiplier from which one has no digits for what is left over
_DIGITS = 40  # rows whose last digits are chosen together
_ROOM = 0.2  # share by which a small multiplier may change, so that its sign is safe
_BITS = 36  # of a multiplier that are looked at together
_POINT = 64  # binary digits behind the point with which a lattice is written in integers
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
    p: Programme,
    dual: FloatArray,
    aim: FloatArray,
    entries: BoolArray,
    fine: BoolArray,
    least: FloatArray,
    held: BoolArray,
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
        aim: ``(d_x, d_z)``.
        entries: ``(d_x, d_z)`` where the aim matters.
        fine: ``(d_x, d_z)`` those of them that ask for more digits.
        least: ``(m,)`` size of multipliers that cost nothing.
        held: ``(m,)`` multipliers that stay.
    """

    def improved(dual: FloatArray, rows: IntArray, sizes: FloatArray, some: IntArray) -> FloatArray:
        left = residual(p, dual, aim, some)
        moves = (_written(p, rows, some) * sizes[:, None]).T
        change = np.linalg.lstsq(moves, left, rcond=None)[0]
        if not np.abs(change).max(initial=0.0) < 1.0:
            return dual
        better = dual.copy()
        better[rows] += change * sizes
        return better

    # Step 1.
    large = heavy(dual)
    dual = np.where(large, dual, np.maximum(dual, least))
    # Step 2.
    rows = np.flatnonzero(large & ~held)
    dual = improved(dual, rows, np.abs(dual[rows]), np.flatnonzero(entries))
    # Step 3.
    rows = np.flatnonzero(~large & (dual > 0.0) & ~held)
    for _ in range(_PASSES if len(rows) else 0):
        dual = improved(dual, rows, dual[rows], np.flatnonzero(fine))
    return dual


def with_digits(
    p: Programme,
    dual: FloatArray,
    aim: FloatArray,
    fine: BoolArray,
    tolerance: FloatArray,
    share: float,
    held: BoolArray,
) -> FloatArray:
    """Multipliers that differ from ``dual`` by whole units of their last digits, such that their
    adjoint is nearer to ``aim``: the point of a lattice that is near what is left over.

    Args:
        p: the programme, with columns of one size.
        dual: ``(m,)``.
        aim: ``(d_x, d_z)``.
        fine: ``(d_x, d_z)`` the entries that matter.
        tolerance: ``(d_x, d_z)`` how far from the aim is near enough.
        share: by which large multipliers may change at no cost.
        held: ``(m,)`` multipliers that stay.
    """
    some = np.flatnonzero(fine)
    unit, left = tolerance.reshape(-1)[some], residual(p, dual, aim, some)
    if np.abs(left / unit).max(initial=0.0) <= 1.0 or len(some) > _DIGITS:
        return dual
    rows = np.flatnonzero((dual != 0.0) & ~held)
    rows = rows[np.argsort(-np.abs(dual[rows]), kind="stable")[:_DIGITS]]
    room = np.where(heavy(dual)[rows], share, _ROOM) * np.abs(dual[rows])
    last = np.maximum(np.spacing(np.abs(dual[rows])), 2.0 ** np.floor(np.log2(room) - _BITS))
    basis = np.hstack([np.diag(last / room), _written(p, rows, some) * last[:, None] / unit])
    better = dual.copy()
    target = np.concatenate([np.zeros(len(rows)), left / unit])
    basis, target = (shift_bits(*to_scaled_integers(values, _POINT)) for values in (basis, target))
    better[rows] += last * nearest_combination(basis, target).astype(np.float64)
    reached = np.abs(residual(p, better, aim, some) / unit).max()
    nearer = reached < np.abs(left / unit).max() and bool((better * dual >= 0.0).all())
    return better if nearer else dual


def heavy(dual: FloatArray) -> BoolArray:
    """The multipliers that have no digits for what is left over."""
    large: BoolArray = np.abs(dual) > _HEAVY * np.abs(dual).max(initial=0.0)
    return large


def residual(p: Programme, dual: FloatArray, aim: FloatArray, some: IntArray) -> FloatArray:
    """What is missing to the aim on some entries."""
    high, low, _ = sharp_adjoint(p.D, p.Z, p.offsets, dual)
    left: FloatArray = ((aim - high) - low).reshape(-1)[some]
    return left


def _written(p: Programme, rows: IntArray, some: IntArray) -> FloatArray:
    a, e = np.divmod(some, p.Z.shape[1])
    found: FloatArray = p.D[np.ix_(rows, a)] * p.Z[np.ix_(p.sequence[rows], e)]
    return found
