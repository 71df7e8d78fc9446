r"""Multipliers that cancel in cheap entries to more digits than float64 leaves.

Of a programme whose columns were brought to one size (:mod:`attsvm.solvers.column_sizes`)
:math:`(A^\top\lambda)_{ae}` may not be larger than about what the entry costs, :math:`g_{ae}`,
while float64 leaves :math:`10^{-16}|A|^\top\lambda`. What is left over is taken up by small
multipliers of rows that need none, whose last digits are small, too (:func:`cancelled`), and by the
last digits of all, chosen together (:func:`with_digits`).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from attsvm.datasets.attention_data import BoolArray, FloatArray, IntArray
from attsvm.solvers.lattice import nearest_combination, shift_bits, to_scaled_integers
from attsvm.solvers.programme import Programme
from attsvm.solvers.proofs import sharp_adjoint


class CancellingOptions(NamedTuple):
    """Numbers of this module; chosen on random programmes with features in units up to 1e12 apart.

    Attributes:
        heavy: share of the largest multiplier from which one has no digits for what is left over.
        passes: of cancelling what is left over.
        together: multipliers whose last digits are chosen together, at most.
        room: share by which a small multiplier may change, so that its sign is safe.
        bits: of a multiplier that are looked at together.
        point: binary digits behind the point with which a lattice is written in integers.
    """

    heavy: float = 1e-6
    passes: int = 3
    together: int = 40
    room: float = 0.2
    bits: int = 36
    point: int = 64


CANCELLING = CancellingOptions()


def adjoint_residual(
    p: Programme,
    dual: tuple[FloatArray, ...],
    target: FloatArray,
    entries: IntArray,
    exponents: IntArray | int = 0,
) -> FloatArray:
    """``(k,)``: what the adjoint of multipliers lacks to a target on some entries, computed to
    twice the digits.

    Args:
        p: the programme.
        dual: multipliers ``(m,)``, or numbers that add up to them.
        target: ``(k,)``.
        entries: ``(k,)`` positions in the flat weights.
        exponents: powers of two by which the adjoint is multiplied.
    """
    pulls = [sharp_adjoint(p.D, p.Z, p.offsets, digits) for digits in dual]
    residual = target.copy()
    for order in (0, 1):  # the larger digits first
        for pull in pulls:
            residual -= np.ldexp(pull[order].reshape(-1)[entries], exponents)
    return residual


def cancelled(
    p: Programme,
    dual: FloatArray,
    aim: FloatArray,
    matters: BoolArray,
    is_fine: BoolArray,
    least: FloatArray,
    is_held: BoolArray,
    options: CancellingOptions = CANCELLING,
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
    options: CancellingOptions = CANCELLING,
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
    if len(rows) == 0:
        return dual
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


def _is_heavy(dual: FloatArray, options: CancellingOptions) -> BoolArray:
    """Whether multipliers have no digits for what is left over."""
    is_heavy: BoolArray = np.abs(dual) > options.heavy * np.abs(dual).max(initial=0.0)
    return is_heavy


def _entries_of_rows(p: Programme, rows: IntArray, entries: IntArray) -> FloatArray:
    """``(k, l)``: these entries of these rows, written out."""
    a, e = np.divmod(entries, p.Z.shape[1])
    written: FloatArray = p.D[np.ix_(rows, a)] * p.Z[np.ix_(p.sequence[rows], e)]
    return written
