r"""The Frobenius programme of few rows with as many digits as it needs.

Where rows nearly contradict each other, or their sizes differ by hundreds of powers of ten, sixteen
digits decide neither which rows are active nor whether any weights exist. Here numbers are integers
in units of :math:`2^{-B}`, products are exact before they are cut to :math:`B` bits, and the dual
method of Goldfarb and Idnani (*A numerically stable dual method for solving strictly convex
quadratic programs*, 1983) goes from zero weights through rows that are missed most: it ends at the
solution, or at a row that is a combination of active rows with signs that make a contradiction. It
needs inner products of rows alone,
:math:`(\delta_c^\top\delta_{c'})(z_{i(c)}^\top z_{i(c')})`.

Multipliers of a soft margin stop at their bound as well. Weights and multipliers come back as
float64, so weights that only more digits hold lose what this won; :meth:`DualActiveSet.demand` asks
rows for as much more as that rounding can take away.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from attsvm.data import FloatArray, IntArray
from attsvm.solvers.programme.programme import Programme
from attsvm.solvers.proofs.dependence import rank

_LADDER = (320, 1200, 4000)  # bits, tried one after the other
_MARGIN = 120  # bits of the computation that are left to rounding
_DEEPEST = 1100  # exponents of entries that are kept
_MOST_STEPS = 40  # per row
# products of numbers of 500 bits, some three seconds: no clock decides whether digits are found
_MOST_WORK = 10_000_000


@dataclass(frozen=True, eq=False)
class Contradiction:
    """Rows with positive multipliers, ``dual`` zero elsewhere, that combine exactly to zero."""

    dual: FloatArray


class DualActiveSet:
    """One programme: its multipliers, which rows they make tight, and the values of all rows.

    Multipliers of a soft margin have an upper bound: a row that reaches it stays there, missed,
    until its value says otherwise.
    """

    def __init__(
        self,
        programme: Programme,
        deadline: float,
        start: FloatArray | None = None,
        bits: int = _LADDER[0],
        work: int = 0,
    ) -> None:
        p = self.programme = programme
        self.work = work
        self.deadline, self.start = deadline, start
        smallest = float(p.b[p.b > 0.0].min(initial=1.0))
        least = 1.0 if p.hard else float(p.cap.min(initial=1.0))
        self.bits = bits - int(np.frexp(smallest)[1]) - int(np.frexp(least)[1])
        self.zero = self.bits - _MARGIN - (bits - _MARGIN) // 4
        self.doubtful = False  # whether rows looked dependent that are not
        self.slack = 1 << (self.bits - self.zero // 2)
        self.D, self._d_bits = _whole(p.D)
        self.Z, self._z_bits = _whole(p.Z)
        self.inner = self.Z @ self.Z.T
        self.sides = self.b = _fixed(p.b, self.bits)
        self.cap: list[int] | None = None if p.hard else _fixed(p.cap, self.bits).tolist()
        self.dual = [0] * p.m
        self.active: list[int] = []  # rows that are tight, in the order of the factor
        self.values = self._begun()
        self._gram: dict[int, Any] = {}
        self._lower: list[list[int]] = []
        self._pivots: list[int] = []
        self.steps = 0

    def solve(self) -> bool | Contradiction:
        """True at the solution, False where it was not reached in time."""
        while True:
            short = self.sides - self.values
            if self.cap is not None:
                for c, most in enumerate(self.cap):
                    if self.dual[c] >= most:
                        short[c] = -short[c]
            p = int(np.argmax(short))
            if short[p] <= self.slack:
                return True
            found = self._enter(p)
            if found is not True:
                return found

    def _enter(self, p: int) -> bool | Contradiction:
        """Row ``p`` made tight, or brought to a bound of its multiplier, others leaving on the
        way.
        """
        bits = self.bits
        sign = -1 if self.cap is not None and self.dual[p] >= self.cap[p] else 1
        while True:
            self.steps += 1
            if (
                self.steps > _MOST_STEPS * len(self.b)
                or self.work > _MOST_WORK
                or time.monotonic() > self.deadline
            ):
                return False
            self._worked(len(self.b) * len(self.active))
            row = self._row(p)
            mixture, rest, forward = self._combination(p)
            dependent = rest <= (int(row[p]) >> self.zero)
            step = (
                None
                if dependent
                else (abs(int(self.sides[p]) - int(self.values[p])) << bits) // rest
            )
            leaving = -2  # nobody: the row becomes tight
            if self.cap is not None:
                room = self.dual[p] if sign < 0 else self.cap[p] - self.dual[p]
                if step is None or room < step:
                    step, leaving = room, -1  # the row itself, at a bound
            for k, share in enumerate(mixture):
                c, share = self.active[k], sign * share
                if share > 0:
                    room = self.dual[c]
                elif share < 0 and self.cap is not None:
                    room = self.cap[c] - self.dual[c]
                else:
                    continue
                reach = (room << bits) // abs(share)
                if step is None or reach < step:
                    step, leaving = reach, k
            if step is None:
                return self._contradiction(p, mixture)
            if not dependent:
                along = row
                for k, share in enumerate(mixture):
                    along = along - (self._row(self.active[k]) * share >> bits)
                self.values = self.values + (along * (sign * step) >> bits)
            for k, share in enumerate(mixture):
                self.dual[self.active[k]] -= sign * step * share >> bits
            self.dual[p] += sign * step
            if leaving == -2:
                self._append(p, forward, rest)
                return True
            if leaving == -1:
                self.dual[p] = 0 if sign < 0 else self._most(p)
                return True
            c = self.active[leaving]
            self.dual[c] = 0 if sign * mixture[leaving] > 0 else self._most(c)
            self._remove(leaving)

    def _worked(self, products: int) -> None:
        self.work += products * (1 + self.bits // 500)

    def _most(self, c: int) -> int:
        assert self.cap is not None
        return int(self.cap[c])

    def _begun(self) -> Any:
        """The values of the start."""
        p = self.programme
        if self.start is None:
            return np.array([0] * p.m, dtype=object)
        W, bits = _whole(self.start)
        moved = (self.Z @ W.T)[p.sequence]
        shift = bits + self._d_bits + self._z_bits - self.bits
        exact = (self.D * moved).sum(axis=1)
        return exact >> shift if shift >= 0 else exact << -shift

    def _row(self, c: int) -> Any:
        """Inner products of row ``c`` with all rows."""
        if c not in self._gram:
            p = self.programme
            self._worked(p.D.size)
            shift = 2 * (self._d_bits + self._z_bits) - self.bits
            exact = (self.D @ self.D[c]) * self.inner[p.sequence[c]][p.sequence]
            self._gram[c] = exact >> shift if shift >= 0 else exact << -shift
        return self._gram[c]

    def _combination(self, p: int) -> tuple[list[int], int, list[int]]:
        """The active rows' combination nearest to row ``p``, the squared distance, and the row that
        the triangular factor gets.
        """
        bits, row = self.bits, self._row(p)
        count = len(self.active)
        self._worked(count * count)
        forward: list[int] = []
        for i in range(count):
            lower = self._lower[i]
            total = int(row[self.active[i]]) << bits
            for j in range(i):
                total -= lower[j] * forward[j]
            forward.append(total >> bits)
        scaled = [(forward[i] << bits) // self._pivots[i] for i in range(count)]
        rest = (int(row[p]) << bits) - sum(
            x * y for x, y in zip(scaled, forward, strict=True)
        ) >> bits
        mixture = scaled[:]
        for i in range(count - 1, -1, -1):
            total = mixture[i] << bits
            for k in range(i + 1, count):
                total -= self._lower[k][i] * mixture[k]
            mixture[i] = total >> bits
        return mixture, rest, scaled

    def _append(self, p: int, forward: list[int], rest: int) -> None:
        self.active.append(p)
        self._lower.append(forward)
        self._pivots.append(rest)

    def _remove(self, k: int) -> None:
        tail = self.active[k + 1 :]
        for part in (self.active, self._lower, self._pivots):
            del part[k:]
        for c in tail:
            _, rest, forward = self._combination(c)
            self._append(c, forward, rest)

    def _contradiction(self, p: int, mixture: list[int]) -> bool | Contradiction:
        """The active rows whose combination row ``p`` is, where exact arithmetic confirms it."""
        kept = [k for k, share in enumerate(mixture) if -share > self.slack]
        rows = np.array([*(self.active[k] for k in kept), p])
        gain = int(self.b[p]) + sum(
            -mixture[k] * int(self.b[self.active[k]]) >> self.bits for k in kept
        )
        if gain <= 1 << (_MARGIN + 20) or not self._dependent(rows):
            self.doubtful = True
            return False
        dual = np.zeros(self.programme.m)
        dual[rows] = [*(_float(-mixture[k], self.bits) for k in kept), 1.0]
        return Contradiction(dual)

    def _dependent(self, rows: IntArray) -> bool:
        """Whether these rows have one rank less than their number, which makes the combination that
        was computed the only one.
        """
        p = self.programme
        used, owner = np.unique(p.sequence[rows], return_inverse=True)
        return rank(p.D[rows], p.Z[used], owner.reshape(-1)) == len(rows) - 1

    def demand(self, more: FloatArray) -> bool | Contradiction:
        """The same programme with right-hand sides ``b + more``, from where this one ended. Of a
        soft margin the same rows stay tight.
        """
        self.sides = self.b + _fixed(more, self.bits)
        while True:
            tight = self._multipliers()
            negative = min(tight, default=0) < 0 and self.cap is None
            if negative:
                c = int(np.argmin(np.array(tight, dtype=object)))
                self.dual[self.active[c]] = 0
                self._remove(c)
                continue
            for c, multiplier in zip(self.active, tight, strict=True):
                self.dual[c] = multiplier
            break
        self.values = self._pulled(range(len(self.b)))
        return True if self.cap is not None else self.solve()

    def _pulled(self, rows: Iterable[int]) -> Any:
        """The values that the multipliers of these rows give all rows."""
        total = self._begun()
        for c in rows:
            if self.dual[c]:
                total = total + (self._row(c) * self.dual[c] >> self.bits)
        return total

    def _multipliers(self) -> list[int]:
        """Those with which the tight rows are met exactly."""
        bits, count = self.bits, len(self.active)
        tight = set(self.active)
        fixed = self._pulled(c for c in range(len(self.b)) if c not in tight)
        forward: list[int] = []
        for i in range(count):
            total = int(self.sides[self.active[i]] - fixed[self.active[i]]) << bits
            for j in range(i):
                total -= self._lower[i][j] * forward[j]
            forward.append(total >> bits)
        found = [(forward[i] << bits) // self._pivots[i] for i in range(count)]
        for i in range(count - 1, -1, -1):
            total = found[i] << bits
            for k in range(i + 1, count):
                total -= self._lower[k][i] * found[k]
            found[i] = total >> bits
        return found

    def point(self) -> tuple[FloatArray, FloatArray]:
        """Weights and multipliers, each rounded once."""
        p, shape = self.programme, (self.programme.D.shape[1], self.programme.Z.shape[1])
        scale = self.bits + self._d_bits + self._z_bits
        total = np.array([[0] * shape[1] for _ in range(shape[0])], dtype=object)
        if self.start is not None:
            total = _fixed(self.start, scale)
        for c, multiplier in enumerate(self.dual):
            if multiplier:
                total = total + np.outer(self.D[c] * multiplier, self.Z[p.sequence[c]])
        W = np.array([_float(int(each), scale) for each in total.reshape(-1)]).reshape(shape)
        return W, np.array([_float(each, self.bits) for each in self.dual])


def search(
    programme: Programme, deadline: float, start: FloatArray | None = None
) -> tuple[DualActiveSet, bool | Contradiction]:
    """The solution nearest to ``start`` (zero when left out) or a contradiction, with as many bits
    as that takes; the search, and what its ``solve`` returned.
    """
    work = 0
    for bits in _LADDER:
        state = DualActiveSet(programme, deadline, start, bits, work)
        found = state.solve()
        work = state.work
        if found is not False or not state.doubtful:
            break
    return state, found


def _whole(rows: FloatArray) -> tuple[Any, int]:
    """The entries as integers in units of ``2**-bits``, exact above ``2**-_DEEPEST``."""
    mantissa, exponent = np.frexp(rows)
    some = rows != 0.0
    bits = min(53 - int(exponent[some].min(initial=0)), _DEEPEST) if some.any() else 0
    bits = max(bits, 0)
    return _scaled(mantissa, exponent, bits), bits


def _fixed(values: FloatArray, bits: int) -> Any:
    return _scaled(*np.frexp(values), bits)


def _scaled(mantissa: FloatArray, exponent: Any, bits: int) -> Any:
    whole = np.ldexp(mantissa, 53).astype(np.int64)
    out = np.empty(whole.shape, dtype=object)
    flat = out.reshape(-1)
    for k, (x, e) in enumerate(
        zip(whole.reshape(-1).tolist(), np.asarray(exponent).reshape(-1).tolist(), strict=True)
    ):
        shift = e - 53 + bits
        flat[k] = x << shift if shift >= 0 else x >> -shift
    return out


def _float(value: int, bits: int) -> float:
    """``value / 2**bits``, rounded to nearest."""
    if value == 0:
        return 0.0
    size = abs(value)
    drop = max(size.bit_length() - 64, 0)
    head = size >> drop
    if drop and size & ((1 << drop) - 1):
        head |= 1  # sticky, so that the rounding below is that of the whole number
    with np.errstate(under="ignore", over="ignore"):
        near = float(np.ldexp(float(head), drop - bits))
    return near if value > 0 else -near
