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
from attsvm.solvers.columns import adjoint_residual
from attsvm.solvers.lattice import nearest_combination, shift_bits, to_scaled_integers
from attsvm.solvers.programme import Programme


class UnitOptions(NamedTuple):
    """Numbers of this module; chosen on random programmes with features in units up to 1e12 apart.

    Attributes:
        near: exponents by which columns may differ, and nothing is done.
        rounds: in which rows and columns are brought to one size in turn.
        heavy: share of the largest multiplier from which one has no digits for what is left over.
        passes: of cancelling what is left over.
        together: multipliers whose last digits are chosen together, at most.
        room: share by which a small multiplier may change, so that its sign is safe.
        bits: of a multiplier that are looked at together.
        point: binary digits behind the point with which a lattice is written in integers.
    """

    near: int = 7
    rounds: int = 3
    heavy: float = 1e-6
    passes: int = 3
    together: int = 40
    room: float = 0.2
    bits: int = 36
    point: int = 64


UNITS = UnitOptions()


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


def evened(margins: Margins, options: UnitOptions = UNITS) -> Even:
    """The programme with columns of one size, if they are far apart."""
    D, left = _even_columns(margins.differences, options)
    Z, right = _even_columns(margins.queries, options)
    powers = left[:, None] + right
    if not (left.any() or right.any()):
        return Even(margins, np.zeros_like(powers))
    return Even(replace(margins, differences=D, queries=Z), powers)


def _even_columns(rows: FloatArray, options: UnitOptions) -> tuple[FloatArray, IntArray]:
    """Rows divided column by column by powers of two, and the exponents; as they are where these
    are near each other.
    """
    largest = np.maximum(rows.max(axis=0, initial=0.0), -rows.min(axis=0, initial=0.0))
    is_used = largest > 0.0
    exponents = np.zeros(rows.shape[1], dtype=np.int64)
    if not is_used.any() or largest[is_used].max() <= 2.0**options.near * largest[is_used].min():
        return rows, exponents
    sizes = np.abs(rows)
    for _ in range(options.rounds):
        sizes = np.ldexp(sizes, -_exponents_of(sizes.max(axis=1))[:, None])
        columns = _exponents_of(sizes.max(axis=0))
        sizes = np.ldexp(sizes, -columns)
        exponents += columns
    exponents = np.where(is_used, exponents - exponents[is_used].min(), 0)
    return np.ldexp(rows, -exponents), exponents


def _exponents_of(sizes: FloatArray) -> IntArray:
    """Exponents of the powers of two above sizes; 0 for zero."""
    exponents: IntArray = np.where(sizes > 0.0, np.frexp(sizes)[1], 0).astype(np.int64)
    return exponents


def cancelled(
    p: Programme,
    dual: FloatArray,
    aim: FloatArray,
    matters: BoolArray,
    is_fine: BoolArray,
    least: FloatArray,
    is_held: BoolArray,
    options: UnitOptions = UNITS,
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
        matters: ``(d_x, d_z)`` entries where the aim matters.
        is_fine: ``(d_x, d_z)`` those of them that ask for more digits.
        least: ``(m,)`` size of multipliers that cost nothing.
        is_held: ``(m,)`` multipliers that stay.
        options: numbers of this module.
    """

    def corrected(
        dual: FloatArray, rows: IntArray, sizes: FloatArray, entries: IntArray
    ) -> FloatArray:
        """Multipliers changed in these rows, relative to ``sizes``, towards the aim."""
        residual = adjoint_residual(p, (dual,), aim.reshape(-1)[entries], entries)
        moves = (_entries_of_rows(p, rows, entries) * sizes[:, None]).T
        change = np.linalg.lstsq(moves, residual, rcond=None)[0]
        if not np.abs(change).max(initial=0.0) < 1.0:
            return dual
        better = dual.copy()
        better[rows] += change * sizes
        return better

    # 1. Small multipliers.
    is_heavy = _is_heavy(dual, options)
    dual = np.where(is_heavy, dual, np.maximum(dual, least))
    # 2. Large ones.
    rows = np.flatnonzero(is_heavy & ~is_held)
    dual = corrected(dual, rows, np.abs(dual[rows]), np.flatnonzero(matters))
    # 3. What is left over.
    rows = np.flatnonzero(~is_heavy & (dual > 0.0) & ~is_held)
    for _ in range(options.passes if len(rows) else 0):
        dual = corrected(dual, rows, dual[rows], np.flatnonzero(is_fine))
    return dual


def with_digits(
    p: Programme,
    dual: FloatArray,
    aim: FloatArray,
    is_fine: BoolArray,
    tolerance: FloatArray,
    share: float,
    is_held: BoolArray,
    options: UnitOptions = UNITS,
) -> FloatArray:
    """Multipliers that differ from ``dual`` by whole units of their last digits, such that their
    adjoint is nearer to ``aim``: the point of a lattice that is near what is left over.

    1. The rows whose digits are chosen, the largest multipliers first, and by how much they may
       change.
    2. The lattice: changes in units of what they may be, beside what they pull in units of the
       tolerance.
    3. Its point near what is left over, if that is nearer than before and changes no sign.

    Args:
        p: the programme, with columns of one size.
        dual: ``(m,)``.
        aim: ``(d_x, d_z)``.
        is_fine: ``(d_x, d_z)`` the entries that matter.
        tolerance: ``(d_x, d_z)`` how far from the aim is near enough.
        share: by which large multipliers may change at no cost.
        is_held: ``(m,)`` multipliers that stay.
        options: numbers of this module.
    """
    entries = np.flatnonzero(is_fine)
    unit, target = tolerance.reshape(-1)[entries], aim.reshape(-1)[entries]
    residual = adjoint_residual(p, (dual,), target, entries)
    error = np.abs(residual / unit).max(initial=0.0)
    if error <= 1.0 or len(entries) > options.together:
        return dual
    # 1. The rows.
    rows = np.flatnonzero((dual != 0.0) & ~is_held)
    rows = rows[np.argsort(-np.abs(dual[rows]), kind="stable")[: options.together]]
    size = np.abs(dual[rows])
    room = np.where(_is_heavy(dual, options)[rows], share, options.room) * size
    # 2. The lattice.
    quantum = np.maximum(np.spacing(size), 2.0 ** np.floor(np.log2(room) - options.bits))
    pulls = _entries_of_rows(p, rows, entries) * quantum[:, None] / unit
    basis = np.hstack([np.diag(quantum / room), pulls])
    target_point = np.concatenate([np.zeros(len(rows)), residual / unit])
    basis, point = (
        shift_bits(*to_scaled_integers(values, options.point)) for values in (basis, target_point)
    )
    # 3. Its point.
    better = dual.copy()
    better[rows] += quantum * nearest_combination(basis, point).astype(np.float64)
    better_error = np.abs(adjoint_residual(p, (better,), target, entries) / unit).max()
    is_better = better_error < error and bool((better * dual >= 0.0).all())
    return better if is_better else dual


def _is_heavy(dual: FloatArray, options: UnitOptions) -> BoolArray:
    """Whether multipliers have no digits for what is left over."""
    is_heavy: BoolArray = np.abs(dual) > options.heavy * np.abs(dual).max(initial=0.0)
    return is_heavy


def _entries_of_rows(p: Programme, rows: IntArray, entries: IntArray) -> FloatArray:
    """``(k, l)``: these entries of these rows, written out."""
    a, e = np.divmod(entries, p.Z.shape[1])
    written: FloatArray = p.D[np.ix_(rows, a)] * p.Z[np.ix_(p.sequence[rows], e)]
    return written
