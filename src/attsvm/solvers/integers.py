r"""Programmes of few rows in integers, where float64 does not settle them.

Floating-point numbers are integers times powers of two, and so are Gram matrices. The dual method
of active sets (Goldfarb and Idnani, *A numerically stable dual method for solving strictly convex
quadratic programs*, 1983) on the Frobenius programme

.. math:: \max_{0\le\lambda\le C} b^\top\lambda-\tfrac12\|\sum_c\lambda_ca_c\|_F^2

then ends in the multipliers of the solution, or in a contradiction
:math:`\sum_c\lambda_ca_c=0,\ b^\top\lambda>0`, whatever nearly depends on what. Linear systems are
solved without fractions (E. H. Bareiss, *Sylvester's identity and multistep integer-preserving
Gaussian elimination*, 1968).
"""

from __future__ import annotations

import math
import time
from fractions import Fraction
from typing import Any

import numpy as np

from attsvm.datasets.attention_data import BoolArray, FloatArray
from attsvm.solvers import lattice
from attsvm.solvers.programme import DualPoint, Programme

_MOST = 200  # rows
_HELD = 16  # entries of weights that are rounded together
_BITS = 52  # of these
_NOTHING = 2.0**-20  # size of an entry, over that of the largest, that may as well be zero
_FINE = 16  # bits of what is allowed, in the lattice
_WORK = 2e8  # products of all steps times bits of their factors: half a second at most


def solve_in_integers(p: Programme, deadline: float) -> DualPoint | None:
    """The solution, rounded once, or a contradiction, which is a proof; ``None`` where rows are too
    many or numbers too long. Of two opposite rows the first stands for both, with a multiplier of
    any sign.
    """
    every = np.arange(p.m)
    other = -np.ones(p.m, np.int64) if p.opposite is None else p.opposite
    rows = np.flatnonzero((other < 0) | (every < other))
    if len(rows) > _MOST:
        return None
    (D, d), (Z, z), (b, s) = to_integers(p.D[rows]), to_integers(p.Z), to_integers(p.b[rows])
    Z, power = Z[p.sequence[rows]], s - 2 * (d + z)
    G = (D @ D.T) * (Z @ Z.T)
    caps = [_shifted(Fraction(x), -power) if x < math.inf else None for x in p.cap[rows].tolist()]
    method = _ActiveSet(G, b, caps, other[rows] >= 0)
    contradiction = method.run(deadline)
    if contradiction is None:
        return None
    lam, unit = method.lam, method.unit
    if contradiction:
        unit, power = int(np.abs(lam).max()), 0
    dual = np.zeros(p.m)
    try:
        dual[rows] = to_floats(lam, unit, power)
        W = to_floats((D * lam[:, None]).T @ Z, unit, power + d + z)
    except OverflowError:
        return None
    negative = np.flatnonzero(dual < 0.0)
    dual[other[negative]], dual[negative] = -dual[negative], 0.0
    return DualPoint(dual, W, not contradiction, contradiction)


def round_weights(p: Programme, at: DualPoint, share: float, deadline: float) -> FloatArray | None:
    r"""Weights of float64 numbers near a solution, whose margins of tight rows are their right-hand
    sides to a share; ``None`` where there are many entries, or no time.

    What each entry loses when it is rounded may move a margin by more than there is of it. So all
    are rounded together, to a point near the solution in the lattice of these margins; across the
    rows the weights may change by the root of the share, which changes their norm by the share.
    """
    rows, W = np.flatnonzero(at.dual > 0.0), at.W.reshape(-1)
    if p.dof > _HELD or len(rows) > p.dof:
        return None
    (D, d), (Z, z), (b, s) = to_integers(p.D[rows]), to_integers(p.Z), to_integers(p.b[rows])
    A = (D[:, :, None] * Z[p.sequence[rows]][:, None, :]).reshape(len(rows), p.dof)
    top = float(np.abs(W).max())
    exponent = np.frexp(np.maximum(np.abs(W), _NOTHING * top))[1] - _BITS
    low = int(exponent.min())
    grid = np.array([1 << int(e) - low for e in exponent], dtype=object)
    start = np.array([int(x) for x in np.rint(np.ldexp(W, -exponent))], dtype=object)
    moves, unit = A * grid, d + z + low
    sides = [_shifted(Fraction(x) * Fraction(1.0 + 0.5 * share), s - unit) for x in b.tolist()]
    short = [math.floor(x) - int(y) for x, y in zip(sides, moves @ start, strict=True)]
    fine = [_FINE - (math.floor(x * Fraction(0.25 * share)) or 1).bit_length() for x in sides]
    shift = max(0, -min(fine))
    scale = np.array([1 << power + shift for power in fine], dtype=object)
    along = Fraction(1 << _FINE + shift) / Fraction(0.25 * math.sqrt(share) * top)
    across = np.diag([math.ceil(along * Fraction(2) ** int(e)) for e in exponent])
    basis = np.concatenate([(moves * scale[:, None]).T, across.astype(object)], axis=1)
    target = np.concatenate([np.array(short, dtype=object) * scale, np.zeros(p.dof, object)])
    moved = lattice.nearest_combination(
        basis, target, deadline, heavy=np.zeros(len(target), np.int64)
    )
    if moved is None:
        return None
    found = np.ldexp((start + moved).astype(np.float64), exponent)
    return found.reshape(at.W.shape)


class _ActiveSet:
    """Multipliers ``lam / unit`` of a quadratic programme in integers; :meth:`run` makes them those
    of its solution. The rows that are free are tight, and independent.
    """

    def __init__(self, G: Any, b: Any, caps: list[Fraction | None], signed: BoolArray) -> None:
        self._G, self._b, self._caps, self._signed = G, b, caps, signed
        self.lam, self.unit = np.zeros(len(b), dtype=object), 1
        self._free: list[int] = []
        self._factor = np.zeros((0, 0), dtype=object)  # of these rows, lower triangle
        self._capped = np.zeros(len(b), dtype=np.bool_)

    def run(self, deadline: float) -> bool | None:
        """Whether the rows contradict each other; ``None`` when the time is over, or much work
        done.
        """
        work = 0.0
        while True:
            short = self._b * self.unit - self._G @ self.lam
            missed = np.where(self._signed, np.abs(short), np.where(self._capped, -short, short))
            missed[self._free] = 0
            missed[np.diag(self._G) == 0] = 0
            row = int(np.argmax(missed))
            if missed[row] <= 0:
                return False
            entered: bool | None = False
            while not entered:
                count = len(self._free) + 1
                work += count * (count + len(short)) * self.unit.bit_length()
                if work > _WORK or time.monotonic() > deadline:
                    return None
                entered = self._step(row, 1 if short[row] > 0 else -1)
                if entered is None:
                    return True

    def _step(self, row: int, sign: int) -> bool | None:
        """A step with the multiplier of a row, whether it was the last one with it; ``None`` where
        nothing ends the step, and the multipliers become a contradiction.
        """
        caps, line = self._caps, self._eliminated(row)
        along = self._along(row, sign, line)
        ends = [
            (self._room(i, along[i] > 0) / abs(along[i]), i)
            for i in (*self._free, row)
            if not self._signed[i] and (along[i] < 0 or (along[i] > 0 and caps[i] is not None))
        ]
        if line[-1] > 0:
            slope = abs(int(self._b[row]) * self.unit - int(self._G[row] @ self.lam))
            ends.append((Fraction(slope, self.unit * line[-1]), -1))
        if not ends:
            self.lam, self.unit = along, 1
            return None
        length, end = min(ends)
        lam = self.lam * length.denominator + along * (length.numerator * self.unit)
        unit = self.unit * length.denominator
        common = math.gcd(unit, *lam.tolist())
        self.lam, self.unit = lam // common, unit // common
        if end == -1:
            self._append(row, line)
            return True
        self._capped[end] = along[end] > 0
        if end == row:
            return True
        place = self._free.index(end)
        after, self._free = self._free[place + 1 :], self._free[:place]
        self._factor = self._factor[:place, :place]
        for each in after:
            self._append(each, self._eliminated(each))
        return False

    def _append(self, row: int, line: Any) -> None:
        """One more free row, with what is left of it."""
        count = len(self._free)
        factor = np.zeros((count + 1, count + 1), dtype=object)
        factor[:count, :count] = self._factor
        factor[count] = line
        self._factor = factor
        self._free.append(row)

    def _eliminated(self, row: int) -> Any:
        """The entries of a row, of the Gram matrix, in the columns of the free ones, each when it
        is eliminated, and what is left of its own: the determinant with this row.
        """
        line, before = self._G[row, [*self._free, row]], 1
        for i in range(len(self._free)):
            pivot, below = self._factor[i, i], np.append(self._factor[i + 1 :, i], line[i])
            line[i + 1 :] = (line[i + 1 :] * pivot - line[i] * below) // before
            before = pivot
        return line

    def _along(self, row: int, sign: int, line: Any) -> Any:
        """How the multipliers move with that of a row, as integers, while free rows stay tight."""
        count, along = len(self._free), np.zeros(len(self._b), dtype=object)
        along[row] = sign * (self._factor[-1, -1] if count else 1)
        for i in range(count - 1, -1, -1):
            rest = self._factor[i + 1 : count, i] @ along[self._free[i + 1 :]]
            along[self._free[i]] = -(rest + line[i] * along[row]) // self._factor[i, i]
        return along

    def _room(self, row: int, upwards: bool) -> Fraction:
        """How far a multiplier is from the end of its box."""
        at, cap = Fraction(self.lam[row], self.unit), self._caps[row]
        return cap - at if upwards and cap is not None else at


def _shifted(number: Fraction, power: int) -> Fraction:
    return number * 2**power if power >= 0 else number / 2**-power


def to_floats(numbers: Any, unit: int, power: int) -> FloatArray:
    """``2**power * numbers / unit`` in float64."""
    low, high = (unit << max(-power, 0)), max(power, 0)
    flat = [(int(x) << high) / low for x in numbers.reshape(-1)]
    return np.array(flat, dtype=np.float64).reshape(numbers.shape)


def to_integers(values: FloatArray) -> tuple[Any, int]:
    """The numbers as integers in units of a power of two, and its exponent."""
    mantissa, exponent = np.frexp(values)
    some = values != 0.0
    low = int(exponent.min(where=some, initial=10000))
    shift = np.where(some, exponent - low, 0)
    found = np.ldexp(mantissa, 53).astype(np.int64).astype(object) << shift.astype(object)
    every = int(np.bitwise_or.reduce(found.reshape(-1))) if found.size else 0
    if not every:
        return found, 0
    unit = every & -every
    return found // unit, low - 53 + unit.bit_length() - 1
