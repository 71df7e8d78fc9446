r"""Programmes whose columns are of very different sizes.

Features in other units multiply columns of the rows, and with them a norm of the weights: a weight
of a column in large units costs next to nothing, and one in small units is used only where nothing
else meets the margins. With rows :math:`a_{ce}=a'_{ce}s_e` of entries near one and
:math:`x_e=s_ew_e` the Frobenius programme is

.. math:: \min_x\tfrac12\sum_e(x_e/s_e)^2\quad\text{s.t.}\quad A'x\ge b,

whose Gram matrix :math:`A'\operatorname{diag}(s^2)A'^\top` holds nothing but the largest columns in
float64. Its solution does not need that matrix. Let :math:`\sigma` be the size at which the weights
are of norm one. Columns with :math:`s_e>\kappa\sigma` are capped there,
:math:`\tilde s_e=\min(s_e,\kappa\sigma)`, and the proximal point method

.. math:: x^{t+1}=\arg\min_{A'x\ge b}\ \tfrac12\sum_e(x_e/\tilde s_e)^2
   -\sum_e\big(\tilde s_e^{-2}-s_e^{-2}\big)x^t_ex_e

has the same fixed point (Rockafellar, *Monotone operators and the proximal point algorithm*, 1976).
Each step is a Frobenius programme of moderate columns around another centre, and shrinks the
distance by about :math:`\kappa^{-2}`. In :math:`\tilde w=x/\tilde s` and
:math:`\rho=\tilde s/s\le1` its centre is :math:`(1-\rho^2)\tilde w^t`.

Multipliers have to cancel in large columns to many more digits than a float64 number has. So they
are computed to twice the digits (:func:`sharpen`), and rounded together (:func:`round_together`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from attsvm.datasets.attention_data import BoolArray, FloatArray, IntArray
from attsvm.solvers.cancelling import adjoint_residual
from attsvm.solvers.integers import to_integers
from attsvm.solvers.lattice import nearest_combination, shift_bits, to_scaled_integers
from attsvm.solvers.programme import DualPoint, Programme, explicit_rows
from attsvm.solvers.proofs import sharp_adjoint, sharp_values


class ColumnOptions(NamedTuple):
    """How programmes of columns of very different sizes are solved.

    Attributes:
        caps: largest column in units of those that matter, as a power of two: it takes twice as
            many bits of the Gram matrix, and a step gains as many. The second one is for rows that
            nearly depend on each other.
        step: by how many powers of two the unit falls where larger columns alone contradict.
        enough: gap at which a unit is the right one.
        near: gap at which a unit is good enough for splitting to begin with.
        norm: longest weights to begin with, as a power of two.
        units: units that are tried, at most.
        steps: proximal steps, at most.
        close: relative change of the weights at which they end.
        together: multipliers that are rounded together, at most.
        digits: binary digits of their adjoint that are looked at.
        spare: shares of the largest multiplier that rows without one take together. All these
            numbers were chosen on programmes with columns times 10^k, of k up to 12 in size.
    """

    caps: tuple[int, ...] = (8, 3)
    step: int = 6
    enough: float = 1e-11
    near: float = 1e-7
    norm: int = 5
    units: int = 12
    steps: int = 60
    close: float = 2e-15
    together: int = 40
    digits: int = 110
    spare: tuple[float, ...] = (1e-13, 1e-11)


OPTIONS = ColumnOptions()
Solve = Callable[[Programme, FloatArray, float], DualPoint]
_NOISE = 1e-10  # share of the largest multiplier below which one may be rounding
_RANK = 1e-13  # of a least-squares problem


class Capped(NamedTuple):
    r"""A programme in units of the columns that matter, larger ones capped, written out.

    Attributes:
        programme: rows ``(m, d_x d_z)`` of one query.
        weight_exponents: ``(d_x d_z,)`` with ``W = 2**weight_exponents * w`` of the programme.
        rho: ``(d_x d_z,)`` :math:`\rho\le1`, sizes of capped columns in units of theirs.
        dual_exponents: ``(m,)`` with ``dual = 2**dual_exponents * multipliers`` of the capped
            programme.
        unit: exponent of the columns that matter.
        scale: of the weights, which have norm one at ``2**-scale``.
        rhs_exponents: ``(m,)`` with ``b = 2**rhs_exponents * b`` of the capped programme's.
    """

    programme: Programme
    weight_exponents: IntArray
    rho: FloatArray
    dual_exponents: IntArray
    unit: int
    scale: int
    rhs_exponents: IntArray

    @property
    def pull_exponents(self) -> IntArray:
        """``(d_x d_z,)``: with ``pull = 2**pull_exponents * adjoint(dual)`` of the capped
        programme.
        """
        return self.weight_exponents + 2 * self.scale

    @property
    def is_capped(self) -> BoolArray:
        """``(d_x d_z,)``: whether the entry's column is capped."""
        smaller: BoolArray = self.rho < 1.0
        return smaller


def cap_columns(p: Programme, size: IntArray, unit: int, cap: int) -> Capped:
    """The programme with columns up to ``2**cap`` in units of ``2**unit``.

    Args:
        p: the programme.
        size: ``(d_x, d_z)`` exponents of its columns.
        unit: exponent of the columns that matter.
        cap: how far columns may reach.
    """
    s = size.reshape(-1) - unit
    # Columns larger than the cap are shrunk to it, and rho says by how much.
    tilde = np.minimum(s, cap)
    with np.errstate(under="ignore"):
        written = np.ldexp(explicit_rows(p, np.arange(p.m)), tilde - s - unit)
        peak = np.frexp(np.abs(written).max(axis=1, initial=0.0))[1]
        written = np.ldexp(written, -peak[:, None])
    mantissa, power = np.frexp(p.b)
    power = power - peak
    power -= (lift := int(power.max(initial=-10000, where=p.b > 0.0)))
    rhs = np.ldexp(mantissa, np.maximum(power, -1000))
    programme = replace(
        p,
        D=written,
        Z=np.ones((1, 1)),
        offsets=np.array([0, p.m]),
        sequence=np.zeros(p.m, dtype=np.int64),
        b=rhs,
        cap=np.ldexp(p.cap, peak - lift + 2 * unit),
    )
    return Capped(
        programme,
        tilde - s - unit + lift,
        np.ldexp(1.0, tilde - s),
        lift - peak - 2 * unit,
        unit,
        unit - lift,
        -peak - lift,
    )


class DoubleDouble(NamedTuple):
    """Numbers with twice the digits, as ``high + low``."""

    high: FloatArray
    low: FloatArray

    def plus(self, change: FloatArray) -> DoubleDouble:
        """The sum with numbers of 53 bits."""
        total = self.high + change
        # Knuth's two-sum: what rounding took away from the sum
        added = total - self.high
        lost = (self.high - (total - added)) + (change - added)
        low = self.low + lost
        high = total + low
        return DoubleDouble(high, low - (high - total))


class UnevenSolution(NamedTuple):
    """The weights of least Frobenius norm, or a contradiction.

    Attributes:
        capped: the capped programme.
        w: ``(d_x d_z,)`` weights of it.
        dual: ``(m,)`` multipliers of it; of a contradiction, the rows of this cancel.
        contradiction: whether the rows of any size contradict each other.
        pull: ``(d_x d_z,)`` what the adjoint of exact multipliers is in capped columns.
        error: relative gap of weights and multipliers.
    """

    capped: Capped
    w: FloatArray
    dual: DoubleDouble
    pull: FloatArray
    contradiction: bool = False
    error: float = math.inf

    @property
    def W(self) -> FloatArray:
        """Weights of the programme, flat."""
        return np.ldexp(self.w, self.capped.weight_exponents)

    @property
    def multipliers(self) -> DoubleDouble:
        """Multipliers of the programme."""
        return DoubleDouble(*(np.ldexp(digits, self.capped.dual_exponents) for digits in self.dual))


def solve_uneven(
    p: Programme, size: IntArray, deadline: float, solve: Solve, options: ColumnOptions = OPTIONS
) -> UnevenSolution | None:
    """The solution of the Frobenius programme, whatever the sizes of its columns; ``None`` where
    no unit leads to one.

    1. Begin with the largest columns as unit.
    2. Cap larger columns, and make proximal steps.
    3. Where the rows contradict each other, or the gap stays, the next columns become the unit; at
       last the columns that would give the best weights norm one.
    4. Where no unit leads to weights, begin again with lower caps, and better Gram matrices.

    Args:
        p: the programme.
        size: ``(d_x, d_z)`` exponents of its columns.
        deadline: of :func:`time.monotonic`.
        solve: the Frobenius programme of columns of moderate sizes, from multipliers.
        options: how.
    """
    best: UnevenSolution | None = None
    for cap in options.caps:
        # 1. The largest columns are the unit.
        unit: int | None = int(size.max())
        dual, tried = np.zeros(p.m), set[int]()
        while unit is not None:
            tried.add(unit)
            # 2. Proximal steps on capped columns, from the multipliers of the unit before.
            capped = cap_columns(p, size, unit, cap)
            with np.errstate(under="ignore"):
                start = np.clip(np.ldexp(dual, -capped.dual_exponents), 0.0, capped.programme.cap)
            least = _proximal(capped, start, deadline, solve, options)
            if least is not None and not least.contradiction:
                least = _with_gap(p, sharpen(p, least))
                dual = least.multipliers.high
            if least is not None and (
                best is None or least.error < best.error or best.contradiction
            ):
                best = least  # of contradictions the one of most columns
            if time.monotonic() > deadline or (best is not None and best.error <= options.enough):
                return best
            # 3. A contradiction of the largest columns says nothing of smaller ones.
            unit = _next_unit(size, unit, best, tried, options)
        # 4. Lower caps, where no unit led to weights.
        if best is not None and best.error < 1.0:
            break
    return best


def shorten(
    p: Programme,
    size: IntArray,
    least: UnevenSolution,
    deadline: float,
    solve: Solve,
    options: ColumnOptions = OPTIONS,
) -> UnevenSolution:
    """The solution in a smaller unit of columns, as long as its weights are long and there are
    columns whose entries they need.

    Splitting computes weights to rounding in units of their norm, which loses the margins of long
    ones.
    """
    while True:
        capped = least.capped
        length = int(np.frexp(float(np.linalg.norm(capped.rho * least.w)))[1])
        smaller = size[(size <= capped.unit - options.step) & (size >= capped.unit - length - 4)]
        if length <= options.norm or len(smaller) == 0:
            return least
        capped = cap_columns(p, size, int(smaller.max()), options.caps[0])
        with np.errstate(under="ignore"):
            start = np.clip(
                np.ldexp(least.multipliers.high, -capped.dual_exponents), 0.0, capped.programme.cap
            )
        other = _proximal(capped, start, deadline, solve, options)
        if other is None or other.contradiction:
            return least
        other = _with_gap(p, sharpen(p, other))
        if other.error > max(options.near, least.error):
            return least
        least = other


def _next_unit(
    size: IntArray, unit: int, best: UnevenSolution | None, tried: set[int], options: ColumnOptions
) -> int | None:
    """The unit to try after this one."""
    smaller = size[size <= unit - options.step]
    if len(smaller) > 0:
        return int(smaller.max())
    if best is None or best.contradiction or len(tried) >= options.units:
        return None
    unit = best.capped.unit - int(np.frexp(float(np.linalg.norm(best.capped.rho * best.w)))[1])
    return None if unit in tried else unit


def rounded_multipliers(
    p: Programme, least: UnevenSolution, deadline: float, options: ColumnOptions = OPTIONS
) -> Iterator[FloatArray]:
    """Multipliers in float64, each better than those before, and more work: rounded one by one,
    rounded together, and with others that are next to nothing, and so hold lower digits.
    """
    yield least.multipliers.high
    yield round_together(p, least, deadline, options)
    for share in options.spare:
        with_spare = with_spare_rows(p, least, share)
        if with_spare is not None:
            yield round_together(p, with_spare, deadline, options)


def with_spare_rows(p: Programme, least: UnevenSolution, share: float) -> UnevenSolution | None:
    """The solution with small multipliers for rows that have none; ``None`` where that cannot
    be.
    """
    high, low = least.dual
    # More multipliers make the lattice of their roundings finer.
    spare = np.flatnonzero((high == 0.0) & (least.capped.programme.diagonal > 0.0))
    if len(spare) == 0:
        return None
    high = high.copy()
    high[spare] = share * high.max() / len(spare)
    with_spare = sharpen(p, least._replace(dual=DoubleDouble(high, low)))
    gained = np.count_nonzero(with_spare.dual.high) > np.count_nonzero(least.dual.high)
    return with_spare if gained else None


def _pull_of_digits(p: Programme, dual: DoubleDouble) -> FloatArray:
    """``(d_x d_z,)``: the adjoint of multipliers with twice the digits, rounded."""
    high, low, _ = sharp_adjoint(p.D, p.Z, p.offsets, dual.high)
    return (high + (low + sharp_adjoint(p.D, p.Z, p.offsets, dual.low)[0])).reshape(-1)


def _with_gap(p: Programme, least: UnevenSolution) -> UnevenSolution:
    """The solution with the relative gap of its weights and multipliers, in floating point."""
    dual, scale = least.multipliers, least.capped.scale
    with np.errstate(all="ignore"):
        W, pulled = (np.ldexp(array, scale) for array in (least.W, _pull_of_digits(p, dual)))
        length = float(np.linalg.norm(W))
        # At the scale at which weights have norm one, nothing leaves float64.
        lam = np.ldexp(dual.high, 2 * scale)
        top = math.fsum((p.b * lam).tolist())
        high, low = sharp_values(p.D, p.Z, p.offsets, least.W.reshape(*p.shape))
        missed = (p.b - high) - low
        if p.hard:
            bottom = float(np.linalg.norm(pulled))
            gap = 1.0 - top / (bottom * length) if bottom > 0.0 and length > 0.0 else 1.0
            short = missed / np.where(p.b > 0.0, p.b, 1.0)
            error = max(abs(gap), float(short.max(initial=0.0)))
        else:
            # free rows are met but for rounding, and what that costs is their multiplier's
            free = (dual.high > 0.0) & (dual.high < least.capped.programme.cap)
            loss = float(np.ldexp(p.cap, 2 * scale) @ np.where(free, 0.0, np.maximum(missed, 0.0)))
            primal = 0.5 * length**2 + loss
            gap = primal - top + 0.5 * float(pulled @ pulled)
            error = max(abs(gap), float(lam[free] @ np.abs(missed[free]))) / max(primal, 1e-300)
    return least._replace(error=error if math.isfinite(error) else math.inf)


def sharpen(p: Programme, least: UnevenSolution, rounds: int = 4) -> UnevenSolution:
    r"""The solution with more digits.

    1. Its weights meet free rows to the last digit.
    2. Its multipliers pull on capped columns by ``least.pull``, to twice the digits: the least
       relative change with :math:`\sum_c\lambda_ca_{ce}` equal to it there.
    3. Multipliers that this makes negative were rounding, and become zero.
    """
    capped, dual = least.capped, least.dual
    rows = np.flatnonzero((dual.high > 0.0) & (dual.high < capped.programme.cap))
    entries = np.flatnonzero(capped.is_capped)
    if len(rows) == 0:
        return least
    matrix, w = capped.programme.D[rows], least.w
    # 1. Two corrections of the weights by least squares on the free rows.
    for _ in range(2):
        high, low = sharp_values(
            p.D, p.Z, p.offsets, np.ldexp(w, capped.weight_exponents).reshape(*p.shape)
        )
        w = w + _solve_least_squares(
            matrix, np.ldexp((p.b - high) - low, capped.rhs_exponents)[rows]
        )
    least = least._replace(w=w)
    if len(entries) == 0:
        return least
    target = least.pull[entries]
    while len(rows) > 0:
        # 2. Multipliers that cancel in capped columns.
        moved = _cancel(p, capped, dual, rows, entries, target, rounds)
        negative = moved.high[rows] < 0.0
        if not negative.any():
            return least._replace(dual=moved)
        # 3. Negative ones were rounding.
        for digits in dual:
            digits[rows[negative]] = 0.0
        rows = rows[~negative]
    return least


def _cancel(
    p: Programme,
    capped: Capped,
    dual: DoubleDouble,
    rows: IntArray,
    entries: IntArray,
    target: FloatArray,
    rounds: int,
) -> DoubleDouble:
    """Multipliers that pull on these entries by ``target``, with changes in these rows."""
    # Changes are relative, so that small multipliers keep their signs.
    share = np.maximum(dual.high[rows], _NOISE * dual.high.max())
    matrix = capped.programme.D[np.ix_(rows, entries)].T * share
    power = capped.pull_exponents[entries]
    for _ in range(rounds):
        multipliers = tuple(np.ldexp(digits, capped.dual_exponents) for digits in dual)
        missed = adjoint_residual(p, multipliers, target, entries, power)
        change = np.zeros(p.m)
        change[rows] = share * _solve_least_squares(matrix, missed)
        dual = dual.plus(change)
    return dual


def _solve_least_squares(matrix: FloatArray, rhs: FloatArray) -> FloatArray:
    from scipy.linalg import lstsq

    solution: FloatArray = lstsq(matrix, rhs, cond=_RANK, lapack_driver="gelsy")[0]
    return solution


def _proximal(
    capped: Capped, dual: FloatArray, deadline: float, solve: Solve, options: ColumnOptions
) -> UnevenSolution | None:
    r"""The fixed point of proximal steps, each of which

    1. moves the centre to :math:`(1-\rho^2)w`, and the right-hand sides with it;
    2. solves the Frobenius programme around it, with right-hand sides of at most one;
    3. moves back, and ends where the weights no longer change.

    Returns:
        Weights and multipliers, or the contradiction that a programme ended in; ``None`` where
        multipliers leave float64.
    """
    p, rho = capped.programme, capped.rho
    any_capped = capped.is_capped.any()
    shrink = 1.0 - rho**2
    w, before = np.zeros(p.D.shape[1]), math.inf
    for _ in range(options.steps):
        # 1. The centre, and right-hand sides less its margins.
        # At the fixed point w = centre + rho^2 w, the capped columns have their own size again.
        centre = shrink * w
        rhs = p.b - p.D @ centre if any_capped else p.b
        unit = max(1.0, float(np.abs(rhs).max(initial=0.0)))
        around = replace(p, b=rhs / unit, cap=p.cap / unit)
        # 2. The Frobenius programme around it, from the multipliers of the step before.
        point = solve(around, dual / unit, deadline)
        if point.contradiction:
            return UnevenSolution(capped, w, DoubleDouble(point.dual, 0.0 * point.dual), w, True)
        if not np.isfinite(point.dual).all():
            return None
        # 3. Back to weights; they end at rounding, or where rounding makes them turn.
        moved = centre + unit * point.W.reshape(-1)
        change = float(np.linalg.norm(moved - w)) / max(float(np.linalg.norm(moved)), 1e-300)
        w, dual = moved, unit * point.dual
        if not any_capped or change <= options.close or (change < 1e-12 and change > 0.5 * before):
            break
        before = change
        if time.monotonic() > deadline:
            break
    return UnevenSolution(capped, w, DoubleDouble(dual, 0.0 * dual), rho**2 * w)


def round_together(
    p: Programme, least: UnevenSolution, deadline: float, options: ColumnOptions = OPTIONS
) -> FloatArray:
    r"""``(m,)``: multipliers in float64 whose adjoint is near that of ``least``. Where multipliers
    cancel in large columns, rounding them one by one does not come near it.

    1. The rounding of multiplier :math:`c` may be :math:`q_cn_c` with an integer :math:`n_c` and
       the distance :math:`q_c` of its neighbours.
    2. The adjoints of :math:`q_c` span a lattice, in which the point next to the adjoint of the low
       digits is looked for; one more coordinate for each multiplier keeps :math:`q_cn_c` small.

    Args:
        p: the programme.
        least: multipliers with twice the digits.
        deadline: of :func:`time.monotonic`.
        options: how many multipliers.
    """
    capped, (high, low) = least.capped, least.dual
    rows = np.flatnonzero((high > 0.0) & (high < capped.programme.cap))
    # 1. Distances of neighbouring numbers; the largest multipliers where there are many.
    quantum = np.frexp(high[rows])[1] - 53
    if len(rows) == 0:
        return np.ldexp(high, capped.dual_exponents)
    if len(rows) > options.together:
        order = np.lexsort((quantum, high[rows] < _NOISE * high.max()))
        rows = np.sort(rows[order[: options.together]])
        quantum = np.frexp(high[rows])[1] - 53
    (D, d), (Z, z) = to_integers(p.D[rows]), to_integers(p.Z)
    written = (D[:, :, None] * Z[p.sequence[rows]][:, None, :]).reshape(len(rows), -1)
    # in units in which the weights, and so the adjoint, are of size one
    power = (quantum + capped.dual_exponents[rows] + d + z + capped.scale)[:, None] + options.digits
    vectors = shift_bits(written, power)
    small = np.diag([1 << max(0, int(power)) for power in quantum + options.digits]).astype(object)
    low_digits = DoubleDouble(np.ldexp(low, capped.dual_exponents), 0.0 * low)
    pull = np.ldexp(_pull_of_digits(p, low_digits), capped.scale)
    target = shift_bits(*to_scaled_integers(pull, options.digits))
    basis = np.concatenate([vectors, small], axis=1)
    target = np.concatenate([target, 0 * small[0]])
    # 2. The lattice point next to what the low digits pull.
    quanta = nearest_combination(basis, target, deadline)
    if quanta is None:
        return np.ldexp(high, capped.dual_exponents)
    lam = high.copy()
    lam[rows] += np.ldexp(quanta.astype(np.float64), quantum)
    return np.ldexp(lam if (lam >= 0.0).all() else high, capped.dual_exponents)
