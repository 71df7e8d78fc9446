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
from typing import Any, NamedTuple

import numpy as np

from attsvm.datasets.attention_data import BoolArray, FloatArray
from attsvm.solvers.programme import DualPoint, Programme


class IntegerOptions(NamedTuple):
    """Limits of the computations in integers."""

    rows: int = 200  # of a programme, at most; untuned
    work: float = 2e8  # products of all steps times bits of their factors: half a second at most
    weights: int = 16  # entries of weights that are rounded together, at most; untuned
    bits: int = 52  # of these
    headroom: int = 16  # bits of large entries beyond what rounding may take; untuned
    negligible: float = 2.0**-20  # entries below this share of the largest may as well be zero


OPTIONS = IntegerOptions()


def solve_in_integers(
    p: Programme, deadline: float, options: IntegerOptions = OPTIONS
) -> DualPoint | None:
    """The solution, rounded once, or a contradiction, which is a proof; ``None`` where rows are too
    many or numbers too long.

    1. Write rows, right-hand sides and the Gram matrix as integers times powers of two. Of two
       opposite rows the first stands for both, with a multiplier of any sign.
    2. Solve by active sets.
    3. Round multipliers and weights to float64, and give opposite rows their multipliers.
    """
    # 1. Integers.
    numbers = np.arange(p.m)
    opposite = -np.ones(p.m, np.int64) if p.opposite is None else p.opposite
    rows = np.flatnonzero((opposite < 0) | (numbers < opposite))
    if len(rows) > options.rows:
        return None
    (D, D_power), (Z, Z_power) = to_integers(p.D[rows]), to_integers(p.Z)
    b, b_power = to_integers(p.b[rows])
    Z, power = Z[p.sequence[rows]], b_power - 2 * (D_power + Z_power)
    # The Gram matrix of outer products is the product of theirs, entry by entry.
    G = (D @ D.T) * (Z @ Z.T)
    caps = [
        _shift_fraction(Fraction(cap), -power) if cap < math.inf else None
        for cap in p.cap[rows].tolist()
    ]
    # 2. Active sets.
    method = _IntegerActiveSet(G, b, caps, opposite[rows] >= 0, options.work)
    contradiction = method.run(deadline)
    if contradiction is None:
        return None
    numerators, denominator = method.numerators, method.denominator
    if contradiction:  # has no scale
        denominator, power = int(np.abs(numerators).max()), 0
    # 3. Round.
    dual = np.zeros(p.m)
    try:
        dual[rows] = to_floats(numerators, denominator, power)
        W = to_floats((D * numerators[:, None]).T @ Z, denominator, power + D_power + Z_power)
    except OverflowError:
        return None
    # A negative multiplier belongs to the opposite row.
    negative = np.flatnonzero(dual < 0.0)
    dual[opposite[negative]], dual[negative] = -dual[negative], 0.0
    return DualPoint(dual, W, not contradiction, contradiction)


def round_weights(
    p: Programme,
    point: DualPoint,
    share: float,
    deadline: float,
    options: IntegerOptions = OPTIONS,
) -> FloatArray | None:
    r"""Weights of float64 numbers near a solution, whose margins of tight rows are their right-hand
    sides to a ``share``; ``None`` where there are many entries, or no time.

    What each entry loses when it is rounded may move a margin by more than there is of it. So all
    are rounded together, to a point near the solution in the lattice of these margins; across the
    rows the weights may change by the root of the share, which changes their norm by the share.

    1. Round each entry to a grid of its own, fine enough for float64.
    2. Compute in integers what tight rows then miss.
    3. Span a lattice of the moves of margins and weights by one unit of each entry, scaled by how
       far each may move.
    4. Add the combination of moves that is nearest to what is missed.
    """
    from attsvm.solvers.lattice import nearest_combination

    rows, W = np.flatnonzero(point.dual > 0.0), point.W.reshape(-1)
    if p.dof > options.weights or len(rows) > p.dof:
        return None
    # 1. Grid.
    top = float(np.abs(W).max())
    exponent = np.frexp(np.maximum(np.abs(W), options.negligible * top))[1] - options.bits
    lowest = int(exponent.min())
    # Entries in common units, so that a margin is one integer sum.
    unit_of_entry = np.array([1 << int(e) - lowest for e in exponent], dtype=object)
    start = np.array([int(x) for x in np.rint(np.ldexp(W, -exponent))], dtype=object)
    # 2. What is missed.
    (D, D_power), (Z, Z_power) = to_integers(p.D[rows]), to_integers(p.Z)
    b, b_power = to_integers(p.b[rows])
    written = (D[:, :, None] * Z[p.sequence[rows]][:, None, :]).reshape(len(rows), p.dof)
    moves, power = written * unit_of_entry, D_power + Z_power + lowest
    rhs = [
        _shift_fraction(Fraction(side) * Fraction(1.0 + 0.5 * share), b_power - power)
        for side in b.tolist()
    ]
    missed = [math.floor(x) - int(y) for x, y in zip(rhs, moves @ start, strict=True)]
    # 3. Lattice.
    bits = [
        options.headroom - (math.floor(side * Fraction(0.25 * share)) or 1).bit_length()
        for side in rhs
    ]
    shift = max(0, -min(bits))
    scale = np.array([1 << count + shift for count in bits], dtype=object)
    along = Fraction(1 << options.headroom + shift) / Fraction(0.25 * math.sqrt(share) * top)
    across = np.diag([math.ceil(along * Fraction(2) ** int(e)) for e in exponent])
    basis = np.concatenate([(moves * scale[:, None]).T, across.astype(object)], axis=1)
    target = np.concatenate([np.array(missed, dtype=object) * scale, np.zeros(p.dof, object)])
    # 4. Nearest combination.
    equal_sizes = np.zeros(len(target), np.int64)
    steps = nearest_combination(basis, target, deadline, heavy=equal_sizes)
    if steps is None:
        return None
    rounded = np.ldexp((start + steps).astype(np.float64), exponent)
    return rounded.reshape(point.W.shape)


class _IntegerActiveSet:
    """Multipliers ``numerators / denominator`` of a quadratic programme in integers; :meth:`run`
    makes them those of its solution.

    1. Choose the row that misses its right-hand side most; end where none does.
    2. Move its multiplier, and those of the free rows such that these stay tight, until the row is
       tight, or a multiplier is at an end of its box and leaves the free rows.
    3. Where nothing ends the step, the direction is a contradiction.

    Args:
        G: ``(m, m)`` Gram matrix.
        b: ``(m,)`` right-hand sides.
        caps: ``(m,)`` upper bounds of the multipliers, or ``None``.
        signed: ``(m,)`` whether a multiplier may have any sign.
        work: limit of the work, see :class:`IntegerOptions`.
    """

    def __init__(
        self, G: Any, b: Any, caps: list[Fraction | None], signed: BoolArray, work: float
    ) -> None:
        self._G, self._b, self._caps, self._signed, self._work = G, b, caps, signed, work
        self.numerators, self.denominator = np.zeros(len(b), dtype=object), 1
        self._free: list[int] = []  # rows that are tight, and independent
        self._factor = np.zeros((0, 0), dtype=object)  # of these rows, lower triangle
        self._capped = np.zeros(len(b), dtype=np.bool_)

    def run(self, deadline: float) -> bool | None:
        """Whether the rows contradict each other; ``None`` when the time is over, or the work is
        done.
        """
        work = 0.0
        while True:
            # 1. The row that is missed most.
            shortfall = self._b * self.denominator - self._G @ self.numerators
            missed = np.where(self._capped, -shortfall, shortfall)
            missed = np.where(self._signed, np.abs(shortfall), missed)
            # Free rows are tight by construction, and rows of zeros cannot be helped.
            missed[self._free] = 0
            missed[np.diag(self._G) == 0] = 0
            row = int(np.argmax(missed))
            if missed[row] <= 0:
                return False
            # 2. Steps with its multiplier.
            entered: bool | None = False
            while not entered:
                count = len(self._free) + 1
                work += count * (count + len(shortfall)) * self.denominator.bit_length()
                if work > self._work or time.monotonic() > deadline:
                    return None
                entered = self._step(row, 1 if shortfall[row] > 0 else -1)
                if entered is None:  # 3. Nothing ends the step.
                    return True

    def _step(self, row: int, sign: int) -> bool | None:
        """Whether this step with the multiplier of a row was the last one; ``None`` where nothing
        ends the step, and the multipliers become a contradiction.
        """
        caps, line = self._caps, self._eliminate(row)
        direction = self._direction(row, sign, line)
        # How far each multiplier may move, and how far until the row is tight.
        ends = [
            (self._room(i, direction[i] > 0) / abs(direction[i]), i)
            for i in (*self._free, row)
            if not self._signed[i]
            and (direction[i] < 0 or (direction[i] > 0 and caps[i] is not None))
        ]
        if line[-1] > 0:
            shortfall = abs(
                int(self._b[row]) * self.denominator - int(self._G[row] @ self.numerators)
            )
            ends.append((Fraction(shortfall, self.denominator * line[-1]), -1))
        if not ends:
            self.numerators, self.denominator = direction, 1
            return None
        length, end = min(ends)
        numerators = self.numerators * length.denominator
        numerators = numerators + direction * (length.numerator * self.denominator)
        denominator = self.denominator * length.denominator
        # Without common factors numbers stay as short as they can.
        common = math.gcd(denominator, *numerators.tolist())
        self.numerators, self.denominator = numerators // common, denominator // common
        if end == -1:
            self._append(row, line)
            return True
        self._capped[end] = direction[end] > 0
        if end == row:
            return True
        # A free row leaves; those after it are eliminated anew.
        position = self._free.index(end)
        later, self._free = self._free[position + 1 :], self._free[:position]
        self._factor = self._factor[:position, :position]
        for free_row in later:
            self._append(free_row, self._eliminate(free_row))
        return False

    def _append(self, row: int, line: Any) -> None:
        """Make a row free, with its line of the factor."""
        count = len(self._free)
        factor = np.zeros((count + 1, count + 1), dtype=object)
        factor[:count, :count] = self._factor
        factor[count] = line
        self._factor = factor
        self._free.append(row)

    def _eliminate(self, row: int) -> Any:
        """The line of a row in the factor, by Bareiss' elimination: its entries of the Gram matrix
        in the columns of the free rows, and last the determinant with this row.
        """
        line, pivot_before = self._G[row, [*self._free, row]], 1
        for i in range(len(self._free)):
            pivot, below = self._factor[i, i], np.append(self._factor[i + 1 :, i], line[i])
            line[i + 1 :] = (line[i + 1 :] * pivot - line[i] * below) // pivot_before
            pivot_before = pivot
        return line

    def _direction(self, row: int, sign: int, line: Any) -> Any:
        """``(m,)``: how the multipliers move with that of a row, as integers, while free rows stay
        tight.
        """
        count, direction = len(self._free), np.zeros(len(self._b), dtype=object)
        direction[row] = sign * (self._factor[-1, -1] if count else 1)
        for i in range(count - 1, -1, -1):
            rest = self._factor[i + 1 : count, i] @ direction[self._free[i + 1 :]]
            direction[self._free[i]] = -(rest + line[i] * direction[row]) // self._factor[i, i]
        return direction

    def _room(self, row: int, upwards: bool) -> Fraction:
        """How far a multiplier is from the end of its box."""
        multiplier, cap = Fraction(self.numerators[row], self.denominator), self._caps[row]
        return cap - multiplier if upwards and cap is not None else multiplier


def _shift_fraction(number: Fraction, power: int) -> Fraction:
    """``number * 2**power``."""
    return number * 2**power if power >= 0 else number / 2**-power


def to_floats(numbers: Any, unit: int, power: int) -> FloatArray:
    """``2**power * numbers / unit`` in float64, rounded once."""
    denominator, shift = unit << max(-power, 0), max(power, 0)
    quotients = [(int(x) << shift) / denominator for x in numbers.reshape(-1)]
    return np.array(quotients, dtype=np.float64).reshape(numbers.shape)


def to_integers(values: FloatArray) -> tuple[Any, int]:
    """The numbers as integers in units of the largest power of two that divides all, and its
    exponent.
    """
    mantissa, exponent = np.frexp(values)
    nonzero = values != 0.0
    lowest = int(exponent.min(where=nonzero, initial=10000))
    shift = np.where(nonzero, exponent - lowest, 0)
    numbers = np.ldexp(mantissa, 53).astype(np.int64).astype(object) << shift.astype(object)
    bits = int(np.bitwise_or.reduce(numbers.reshape(-1))) if numbers.size else 0
    if not bits:
        return numbers, 0
    unit = bits & -bits
    return numbers // unit, lowest - 53 + unit.bit_length() - 1
