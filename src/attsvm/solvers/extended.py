r"""The Frobenius programme of few rows with as many digits as it needs.

Where rows nearly contradict each other, or their sizes differ by hundreds of powers of ten, sixteen
digits decide neither which rows are active nor whether any weights exist. Here numbers are integers
in units of :math:`2^{-B}`, products are exact before they are cut to :math:`B` bits, and the dual
method of Goldfarb and Idnani (*A numerically stable dual method for solving strictly convex
quadratic programs*, 1983) goes from zero weights through rows that are missed most: it ends at the
solution, or at a row that is a combination of active rows with signs that make a contradiction. It
needs inner products of rows alone,
:math:`(\delta_c^\top\delta_{c'})(z_{i(c)}^\top z_{i(c')})`.

Weights and multipliers come back as float64, so weights that only more digits hold lose what this
won. :meth:`DualActiveSet.rounded` therefore asks every row for as much more as the rounding of the
weights can take away, and tries less.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from attsvm.data import FloatArray, IntArray
from attsvm.solvers.dependence import spanned
from attsvm.solvers.programme import Programme

_BITS = 320
_MARGIN = 120  # bits of the computation that are left to rounding
_DEEPEST = 1100  # exponents of entries that are kept
_MOST_STEPS = 40  # per row


@dataclass(frozen=True, eq=False)
class Contradiction:
    """Rows with positive multipliers, ``dual`` zero elsewhere, whose combination is exactly zero."""

    dual: FloatArray


class DualActiveSet:
    """One programme: the active rows, their multipliers and the values of all rows."""

    def __init__(self, programme: Programme, deadline: float) -> None:
        p = self.programme = programme
        self.deadline = deadline
        smallest = float(p.b[p.b > 0.0].min(initial=1.0))
        self.bits = _BITS - int(np.frexp(smallest)[1])
        self.zero = self.bits - _MARGIN - (_BITS - _MARGIN) // 4
        self.D, self._d_bits = _whole(p.D)
        self.Z, self._z_bits = _whole(p.Z)
        self.inner = self.Z @ self.Z.T
        self.b = _fixed(p.b, self.bits)
        self.sides = self.b
        self.active: list[int] = []
        self.dual: list[int] = []
        self.values = np.array([0] * p.m, dtype=object)
        self._gram: dict[int, Any] = {}
        self._lower: list[list[int]] = []
        self._pivots: list[int] = []
        self.steps = 0

    def solve(self) -> bool | Contradiction:
        """True at the solution, False where it was not reached in time."""
        slack = 1 << (self.bits - self.zero // 2)
        while True:
            short = self.sides - self.values
            p = int(np.argmax(short))
            if short[p] <= slack:
                return True
            found = self._enter(p)
            if found is not True:
                return found

    def _enter(self, p: int) -> bool | Contradiction:
        """Row ``p`` made active, others leaving on the way."""
        bits = self.bits
        own = 0
        while True:
            self.steps += 1
            if self.steps > _MOST_STEPS * len(self.b) or time.monotonic() > self.deadline:
                return False
            row = self._row(p)
            mixture, rest, forward = self._combination(p)
            dependent = rest <= (int(row[p]) >> self.zero)
            largest, leaving = None, -1
            for k, share in enumerate(mixture):
                if share > 0:
                    step = (self.dual[k] << bits) // share
                    if largest is None or step < largest:
                        largest, leaving = step, k
            if dependent:
                if largest is None:
                    return self._contradiction(p, mixture)
                step, full = largest, False
            else:
                step, full = ((int(self.sides[p]) - int(self.values[p])) << bits) // rest, True
                if largest is not None and largest < step:
                    step, full = largest, False
                along = row
                for k, share in enumerate(mixture):
                    along = along - (self._row(self.active[k]) * share >> bits)
                self.values = self.values + (along * step >> bits)
            for k, share in enumerate(mixture):
                self.dual[k] -= step * share >> bits
            own += step
            if full:
                self._append(p, own, forward, rest)
                return True
            self._remove(leaving)

    def _row(self, c: int) -> Any:
        """Inner products of row ``c`` with all rows."""
        if c not in self._gram:
            p = self.programme
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

    def _append(self, p: int, own: int, forward: list[int], rest: int) -> None:
        self.active.append(p)
        self.dual.append(own)
        self._lower.append(forward)
        self._pivots.append(rest)

    def _remove(self, k: int) -> None:
        tail = self.active[k + 1 :]
        multipliers = self.dual[k + 1 :]
        for part in (self.active, self.dual, self._lower, self._pivots):
            del part[k:]
        for c, multiplier in zip(tail, multipliers, strict=True):
            _, rest, forward = self._combination(c)
            self._append(c, multiplier, forward, rest)

    def _contradiction(self, p: int, mixture: list[int]) -> bool | Contradiction:
        """The active rows whose combination row ``p`` is, where exact arithmetic confirms it."""
        least = 1 << (self.bits - self.zero // 2)
        kept = [k for k, share in enumerate(mixture) if -share > least]
        rows = np.array([*(self.active[k] for k in kept), p])
        gain = int(self.b[p]) + sum(
            -mixture[k] * int(self.b[self.active[k]]) >> self.bits for k in kept
        )
        if gain <= least >> (self.bits - _BITS) or not self._dependent(rows):
            return False
        dual = np.zeros(self.programme.m)
        dual[rows] = [*(_float(-mixture[k], self.bits) for k in kept), 1.0]
        return Contradiction(dual)

    def _dependent(self, rows: IntArray) -> bool:
        """Whether these rows have one rank less than their number, which makes the combination that
        was computed the only one.
        """
        p = self.programme
        if len(rows) == 1:
            return not (p.D[rows[0]].any() and p.Z[p.sequence[rows[0]]].any())
        from scipy.linalg import qr

        used, owner = np.unique(p.sequence[rows], return_inverse=True)
        D, Z = p.D[rows], p.Z[used]
        written = (D[:, :, None] * Z[owner][:, None, :]).reshape(len(rows), -1)
        some = np.flatnonzero(written.any(axis=0))
        size = np.exp2(np.frexp(np.abs(written[:, some]).max(axis=0))[1])
        _, order = qr(written[:, some] / size, mode="r", pivoting=True, check_finite=False)
        return spanned(D, Z, owner.reshape(-1), some[order[: len(rows) - 1]])

    def demand(self, more: FloatArray) -> bool | Contradiction:
        """The same programme with right-hand sides ``b + more``, from where this one ended."""
        self.sides = self.b + _fixed(more, self.bits)
        while True:
            count = len(self.active)
            self.dual = self._multipliers()
            if count == 0 or min(self.dual) >= 0:
                break
            self._remove(int(np.argmin(np.array(self.dual, dtype=object))))
        self.values = np.array([0] * len(self.b), dtype=object)
        for c, multiplier in zip(self.active, self.dual, strict=True):
            self.values = self.values + (self._row(c) * multiplier >> self.bits)
        return self.solve()

    def _multipliers(self) -> list[int]:
        """Those with which the active rows are met exactly."""
        bits, count = self.bits, len(self.active)
        forward: list[int] = []
        for i in range(count):
            total = int(self.sides[self.active[i]]) << bits
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
        total = np.array([[0] * shape[1] for _ in range(shape[0])], dtype=object)
        dual = np.zeros(p.m)
        for c, multiplier in zip(self.active, self.dual, strict=True):
            total = total + np.outer(self.D[c] * multiplier, self.Z[p.sequence[c]])
            dual[c] = _float(multiplier, self.bits)
        scale = self.bits + self._d_bits + self._z_bits
        W = np.array([_float(int(each), scale) for each in total.reshape(-1)]).reshape(shape)
        return W, dual


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
    rounded = float(np.ldexp(float(head), 0))
    with np.errstate(under="ignore", over="ignore"):
        return float(np.copysign(np.ldexp(rounded, drop - bits), value))
