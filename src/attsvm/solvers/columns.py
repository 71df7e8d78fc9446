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
are computed to twice the digits (:func:`sharpened`), and rounded together (:func:`rounded`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from attsvm.datasets.attention_data import BoolArray, FloatArray, IntArray
from attsvm.solvers.integers import whole
from attsvm.solvers.lattice import integers, nearest, shifted
from attsvm.solvers.programme import Point, Programme, explicit_rows
from attsvm.solvers.proofs import sharp_adjoint, sharp_values

_FINITE = 1000  # powers of two up to this one are float64 numbers


@dataclass(frozen=True)
class ColumnOptions:
    """How programmes of columns of very different sizes are solved.

    Attributes:
        bits: ratio of the largest to the smallest column from which on this comes first, as a power
            of two; below it the Gram matrix has digits enough.
        last: and from which on it is tried where other methods have failed.
        caps: largest column in units of those that matter, as a power of two: it takes twice as
            many bits of the Gram matrix, and a step gains as many. The second one is for rows that
            nearly depend on each other.
        step: by how many powers of two the unit falls where larger columns alone contradict.
        enough: gap at which a unit is the right one.
        near: and at which it is good to begin with.
        norm: longest weights to begin with, as a power of two.
        units: that are tried.
        steps: of the proximal point method.
        close: relative change at which it ends.
        entries: of the rows written out, at most.
        together: multipliers that are rounded together, at most.
        digits: binary ones of their adjoint that are looked at.
        spare: shares of the largest multiplier that rows without one take together.
    """

    bits: int = 14
    last: int = 8
    caps: tuple[int, ...] = (8, 3)
    step: int = 6
    enough: float = 1e-11
    near: float = 1e-7
    norm: int = 5
    units: int = 12
    steps: int = 60
    close: float = 2e-15
    entries: int = 1 << 23
    together: int = 40
    digits: int = 110
    spare: tuple[float, ...] = (1e-13, 1e-11)


OPTIONS = ColumnOptions()
Solve = Callable[[Programme, FloatArray, float], Point]
_NOISE = 1e-10  # share of the largest multiplier below which one may be rounding
_RANK = 1e-13  # of a least-squares problem


class Sizes(NamedTuple):
    """Exponents of the columns of differences and of queries, where rows are of size one."""

    differences: IntArray
    queries: IntArray

    @property
    def entries(self) -> IntArray:
        """``(d_x, d_z)``: of the columns of the rows written out."""
        return self.differences[:, None] + self.queries

    @property
    def spread(self) -> int:
        """The exponent of the ratio of the largest and the smallest."""
        return sum(int(np.ptp(each)) if len(each) else 0 for each in self)


def sizes(p: Programme) -> Sizes:
    """The sizes of the columns of a programme."""
    return Sizes(_columns(p.D), _columns(p.Z))


def _columns(rows: FloatArray) -> IntArray:
    """Exponents of columns, after rows and columns took turns in being brought to size one."""
    size = np.abs(rows)
    largest = size.max(axis=0, initial=0.0)
    some = largest > 0.0
    total = np.zeros(rows.shape[1], dtype=np.int64)
    for _ in range(3):
        column = (np.frexp(largest)[1] * some).clip(-_FINITE, _FINITE)
        total += column
        # products with powers of two are exact, and quicker than `ldexp` of the whole array
        size *= np.ldexp(1.0, -column)
        size *= np.ldexp(1.0, -np.frexp(size.max(axis=1, initial=0.0))[1].clip(-_FINITE))[:, None]
        largest = size.max(axis=0, initial=0.0)
        if (largest[some] >= 0.25).all():  # of size one as they are
            break
    if some.any() and not some.all():  # columns of zeros are like any other
        total[~some] = total[some].max()
    return total


class Capped(NamedTuple):
    r"""A programme in units of the columns that matter, larger ones capped, written out.

    Attributes:
        programme: rows ``(m, d_x d_z)`` of one query.
        down: ``(d_x d_z,)`` exponents with ``W = 2**down * w``, in the programme's own weights.
        rho: ``(d_x d_z,)`` :math:`\rho\le1`, sizes of capped columns in units of theirs.
        rows: ``(m,)`` exponents with ``dual = 2**rows * multipliers`` of the capped programme.
        unit: exponent of the columns that matter.
        scale: of the weights, which have norm one at ``2**-scale``.
        sides: ``(m,)`` exponents with ``b = 2**sides * b`` of the capped programme's.
    """

    programme: Programme
    down: IntArray
    rho: FloatArray
    rows: IntArray
    unit: int
    scale: int
    sides: IntArray

    @property
    def pull(self) -> IntArray:
        """``(d_x d_z,)`` exponents with ``pull = 2**pull * adjoint(dual)``, of the capped
        programme.
        """
        return self.down + 2 * self.scale

    @property
    def free(self) -> BoolArray:
        """``(d_x d_z,)``: the entries that are capped."""
        capped: BoolArray = self.rho < 1.0
        return capped


def capped(p: Programme, size: IntArray, unit: int, cap: int) -> Capped:
    """The programme with columns up to ``2**cap`` in units of ``2**unit``.

    Args:
        p: the programme.
        size: ``(d_x, d_z)`` exponents of its columns.
        unit: exponent of the columns that matter.
        cap: how far columns may reach.
    """
    s = size.reshape(-1) - unit
    tilde = np.minimum(s, cap)
    with np.errstate(under="ignore"):
        written = np.ldexp(explicit_rows(p, np.arange(p.m)), tilde - s - unit)
        peak = np.frexp(np.abs(written).max(axis=1, initial=0.0))[1]
        written = np.ldexp(written, -peak[:, None])
    mantissa, power = np.frexp(p.b)
    power = power - peak
    power -= (lift := int(power.max(initial=-10000, where=p.b > 0.0)))
    sides = np.ldexp(mantissa, np.maximum(power, -1000))
    programme = replace(
        p,
        D=written,
        Z=np.ones((1, 1)),
        offsets=np.array([0, p.m]),
        sequence=np.zeros(p.m, dtype=np.int64),
        b=sides,
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


class Twice(NamedTuple):
    """Numbers with twice the digits, as ``high + low``."""

    high: FloatArray
    low: FloatArray

    def plus(self, change: FloatArray) -> Twice:
        """The sum with numbers of 53 bits."""
        total = self.high + change
        part = total - self.high
        rest = (self.high - (total - part)) + (change - part)
        low = self.low + rest
        high = total + low
        return Twice(high, low - (high - total))


class Least(NamedTuple):
    """The weights of least Frobenius norm, or a contradiction.

    Attributes:
        at: the capped programme.
        w: ``(d_x d_z,)`` weights of it.
        dual: ``(m,)`` multipliers of it; of a contradiction, the rows of this cancel.
        contradiction: whether the rows of any size contradict each other.
        pull: ``(d_x d_z,)`` what the adjoint of exact multipliers is in capped columns.
        error: relative gap of weights and multipliers.
    """

    at: Capped
    w: FloatArray
    dual: Twice
    pull: FloatArray
    contradiction: bool = False
    error: float = math.inf

    @property
    def W(self) -> FloatArray:
        """Weights of the programme, flat."""
        return np.ldexp(self.w, self.at.down)

    @property
    def multipliers(self) -> Twice:
        """Multipliers of the programme."""
        return Twice(*(np.ldexp(each, self.at.rows) for each in self.dual))


def least(
    p: Programme, size: IntArray, deadline: float, solve: Solve, options: ColumnOptions = OPTIONS
) -> Least | None:
    """The Frobenius programme, whatever the sizes of its columns.

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
    best: Least | None = None
    for cap in options.caps:
        unit: int | None = int(size.max())  # 1
        dual, tried = np.zeros(p.m), set[int]()
        while unit is not None:
            tried.add(unit)
            at = capped(p, size, unit, cap)
            with np.errstate(under="ignore"):
                start = np.clip(np.ldexp(dual, -at.rows), 0.0, at.programme.cap)
            found = _proximal(at, start, deadline, solve, options)  # 2
            if found is not None and not found.contradiction:
                found = _measured(p, sharpened(p, found))
                dual = found.multipliers.high
            if found is not None and (
                best is None or found.error < best.error or best.contradiction
            ):
                best = found  # of contradictions the one of most columns
            if time.monotonic() > deadline or (best is not None and best.error <= options.enough):
                return best
            unit = _next(size, unit, best, tried, options)  # 3
        if best is not None and best.error < 1.0:
            break  # 4
    return best


def shorter(
    p: Programme,
    size: IntArray,
    found: Least,
    deadline: float,
    solve: Solve,
    options: ColumnOptions = OPTIONS,
) -> Least:
    """The same in a smaller unit, as long as weights are long and columns are there whose entries
    they need: where weights are computed to rounding in units of their norm, that loses the margins
    of long ones.
    """
    while True:
        at = found.at
        length = int(np.frexp(float(np.linalg.norm(at.rho * found.w)))[1])
        smaller = size[(size <= at.unit - options.step) & (size >= at.unit - length - 4)]
        if length <= options.norm or len(smaller) == 0:
            return found
        at = capped(p, size, int(smaller.max()), options.caps[0])
        with np.errstate(under="ignore"):
            start = np.clip(np.ldexp(found.multipliers.high, -at.rows), 0.0, at.programme.cap)
        other = _proximal(at, start, deadline, solve, options)
        if other is None or other.contradiction:
            return found
        other = _measured(p, sharpened(p, other))
        if other.error > max(options.near, found.error):
            return found
        found = other


def _next(
    size: IntArray, unit: int, best: Least | None, tried: set[int], options: ColumnOptions
) -> int | None:
    """The unit to try after this one."""
    smaller = size[size <= unit - options.step]
    if len(smaller) > 0:
        return int(smaller.max())
    if best is None or best.contradiction or len(tried) >= options.units:
        return None
    unit = best.at.unit - int(np.frexp(float(np.linalg.norm(best.at.rho * best.w)))[1])
    return None if unit in tried else unit


def uneven(p: Programme, bits: int, options: ColumnOptions = OPTIONS) -> IntArray | None:
    """The sizes of the columns, where their ratio has so many bits and rows can be written out."""
    if p.m * p.dof > options.entries:
        return None
    # rows are of norm one: where the largest entries of columns are alike, so are the columns
    if 2 * (_span(p.D) + _span(p.Z)) < bits:
        return None
    found = sizes(p)
    return found.entries if found.spread >= bits else None


def _span(rows: FloatArray) -> int:
    """Exponent of the ratio of the largest entries of columns."""
    largest = np.maximum(rows.max(axis=0, initial=0.0), -rows.min(axis=0, initial=0.0))
    exponents = np.frexp(largest[largest > 0.0])[1]
    return int(np.ptp(exponents)) if len(exponents) else 0


def multipliers(
    p: Programme, found: Least, deadline: float, options: ColumnOptions = OPTIONS
) -> Iterator[FloatArray]:
    """Multipliers in float64, each better than those before, and more work: rounded one by one,
    rounded together, and with others that are next to nothing, and so hold lower digits.
    """
    yield found.multipliers.high
    yield rounded(p, found, deadline, options)
    for share in options.spare:
        more = spared(p, found, share)
        if more is not None:
            yield rounded(p, more, deadline, options)


def spared(p: Programme, found: Least, share: float) -> Least | None:
    """With small multipliers for rows that have none; ``None`` where that cannot be."""
    high, low = found.dual
    rest = np.flatnonzero((high == 0.0) & (found.at.programme.diagonal > 0.0))
    if len(rest) == 0:
        return None
    high = high.copy()
    high[rest] = share * high.max() / len(rest)
    more = sharpened(p, found._replace(dual=Twice(high, low)))
    return more if np.count_nonzero(more.dual.high) > np.count_nonzero(found.dual.high) else None


def _pulled(p: Programme, dual: Twice) -> FloatArray:
    """``(d_x d_z,)``: the adjoint of multipliers with twice the digits, rounded."""
    high, low, _ = sharp_adjoint(p.D, p.Z, p.offsets, dual.high)
    return (high + (low + sharp_adjoint(p.D, p.Z, p.offsets, dual.low)[0])).reshape(-1)


def _measured(p: Programme, found: Least) -> Least:
    """With the relative gap of weights and multipliers, in floating point."""
    dual, scale = found.multipliers, found.at.scale
    with np.errstate(all="ignore"):
        W, pulled = (np.ldexp(each, scale) for each in (found.W, _pulled(p, dual)))
        length = float(np.linalg.norm(W))
        lam = np.ldexp(dual.high, 2 * scale)
        top = math.fsum((p.b * lam).tolist())
        high, low = sharp_values(p.D, p.Z, p.offsets, found.W.reshape(*p.shape))
        missed = (p.b - high) - low
        if p.hard:
            bottom = float(np.linalg.norm(pulled))
            gap = 1.0 - top / (bottom * length) if bottom > 0.0 and length > 0.0 else 1.0
            short = missed / np.where(p.b > 0.0, p.b, 1.0)
            error = max(abs(gap), float(short.max(initial=0.0)))
        else:
            # free rows are met but for rounding, and what that costs is their multiplier's
            free = (dual.high > 0.0) & (dual.high < found.at.programme.cap)
            loss = float(np.ldexp(p.cap, 2 * scale) @ np.where(free, 0.0, np.maximum(missed, 0.0)))
            primal = 0.5 * length**2 + loss
            gap = primal - top + 0.5 * float(pulled @ pulled)
            error = max(abs(gap), float(lam[free] @ np.abs(missed[free]))) / max(primal, 1e-300)
    return found._replace(error=error if math.isfinite(error) else math.inf)


def sharpened(p: Programme, found: Least, rounds: int = 4) -> Least:
    r"""With weights that meet free rows to the last digit, and multipliers that pull on capped
    columns by what ``found`` says, to twice the digits: the least relative change with
    :math:`\sum_c\lambda_ca_{ce}` equal to it there.
    """
    at, dual = found.at, found.dual
    rows = np.flatnonzero((dual.high > 0.0) & (dual.high < at.programme.cap))
    some = np.flatnonzero(at.free)
    if len(rows) == 0:
        return found
    matrix, w = at.programme.D[rows], found.w
    for _ in range(2):
        high, low = sharp_values(p.D, p.Z, p.offsets, np.ldexp(w, at.down).reshape(*p.shape))
        w = w + _least_squares(matrix, np.ldexp((p.b - high) - low, at.sides)[rows])
    found = found._replace(w=w)
    if len(some) == 0:
        return found
    target = found.pull[some]
    while len(rows) > 0:
        moved = _cancelling(p, at, dual, rows, some, target, rounds)
        below = moved.high[rows] < 0.0
        if not below.any():
            return found._replace(dual=moved)
        # what is zero in the solution was rounding before, and of any sign
        for each in dual:
            each[rows[below]] = 0.0
        rows = rows[~below]
    return found


def _cancelling(
    p: Programme,
    at: Capped,
    dual: Twice,
    rows: IntArray,
    some: IntArray,
    target: FloatArray,
    rounds: int,
) -> Twice:
    """Multipliers that pull on some entries by ``target``, with changes in these rows."""
    share = np.maximum(dual.high[rows], _NOISE * dual.high.max())
    matrix = at.programme.D[np.ix_(rows, some)].T * share
    power = at.pull[some]
    for _ in range(rounds):
        shape = p.D, p.Z, p.offsets
        high, low, _ = sharp_adjoint(*shape, np.ldexp(dual.high, at.rows))
        rest, rest_low, _ = sharp_adjoint(*shape, np.ldexp(dual.low, at.rows))
        missed = target.copy()
        for each in (high, rest, low, rest_low):
            missed -= np.ldexp(each.reshape(-1)[some], power)
        change = np.zeros(p.m)
        change[rows] = share * _least_squares(matrix, missed)
        dual = dual.plus(change)
    return dual


def _least_squares(matrix: FloatArray, sides: FloatArray) -> FloatArray:
    from scipy.linalg import lstsq

    found: FloatArray = lstsq(matrix, sides, cond=_RANK, lapack_driver="gelsy")[0]
    return found


def _proximal(
    at: Capped, dual: FloatArray, deadline: float, solve: Solve, options: ColumnOptions
) -> Least | None:
    """Proximal steps to the fixed point."""
    p, rho = at.programme, at.rho
    some = at.free.any()
    away = 1.0 - rho**2
    w, before = np.zeros(p.D.shape[1]), math.inf
    for _ in range(options.steps):
        centre = away * w
        sides = p.b - p.D @ centre if some else p.b
        unit = max(1.0, float(np.abs(sides).max(initial=0.0)))
        around = replace(p, b=sides / unit, cap=p.cap / unit)
        point = solve(around, dual / unit, deadline)
        if point.contradiction:
            return Least(at, w, Twice(point.dual, 0.0 * point.dual), w, True)
        if not np.isfinite(point.dual).all():
            return None
        moved = centre + unit * point.W.reshape(-1)
        change = float(np.linalg.norm(moved - w)) / max(float(np.linalg.norm(moved)), 1e-300)
        w, dual = moved, unit * point.dual
        if not some or change <= options.close or (change < 1e-12 and change > 0.5 * before):
            break
        before = change
        if time.monotonic() > deadline:
            break
    return Least(at, w, Twice(dual, 0.0 * dual), rho**2 * w)


def rounded(
    p: Programme, found: Least, deadline: float, options: ColumnOptions = OPTIONS
) -> FloatArray:
    r"""Multipliers in float64 whose adjoint is near that of ``found``, as nothing is that rounds
    each on its own where they cancel in large columns.

    1. The rounding of multiplier :math:`c` may be :math:`q_cn_c` with an integer :math:`n_c` and
       the distance :math:`q_c` of its neighbours.
    2. The adjoints of :math:`q_c` span a lattice, in which the point next to the adjoint of the low
       parts is looked for; with one more coordinate for each, which keeps :math:`q_cn_c` small.

    Args:
        p: the programme.
        found: multipliers with twice the digits.
        deadline: of :func:`time.monotonic`.
        options: how many multipliers.
    """
    at, (high, low) = found.at, found.dual
    rows = np.flatnonzero((high > 0.0) & (high < at.programme.cap))
    quantum = np.frexp(high[rows])[1] - 53  # 1
    if len(rows) == 0:
        return np.ldexp(high, at.rows)
    if len(rows) > options.together:
        order = np.lexsort((quantum, high[rows] < _NOISE * high.max()))
        rows = np.sort(rows[order[: options.together]])
        quantum = np.frexp(high[rows])[1] - 53
    (D, d), (Z, z) = whole(p.D[rows]), whole(p.Z)
    written = (D[:, :, None] * Z[p.sequence[rows]][:, None, :]).reshape(len(rows), -1)
    # in units in which the weights, and so the adjoint, are of size one
    power = (quantum + at.rows[rows] + d + z + at.scale)[:, None] + options.digits
    vectors = shifted(written, power)
    own = np.diag([1 << max(0, int(each)) for each in quantum + options.digits]).astype(object)
    rest = np.ldexp(_pulled(p, Twice(np.ldexp(low, at.rows), 0.0 * low)), at.scale)
    target = shifted(*integers(rest, options.digits))
    basis = np.concatenate([vectors, own], axis=1)
    target = np.concatenate([target, 0 * own[0]])
    together = nearest(basis, target, deadline)  # 2
    if together is None:
        return np.ldexp(high, at.rows)
    lam = high.copy()
    lam[rows] += np.ldexp(together.astype(np.float64), quantum)
    return np.ldexp(lam if (lam >= 0.0).all() else high, at.rows)
