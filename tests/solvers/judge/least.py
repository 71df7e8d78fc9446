r"""The exact solution of the hard margin in the Frobenius norm, in fractions.

Lawson and Hanson's non-negative least squares on :math:`\min\|[A^\top;b^\top]u-e\|` over
:math:`u\ge0`: with :math:`\rho=1-b^\top u>0` the multipliers are :math:`\lambda=u/\rho` and
:math:`W=\sum_c\lambda_cA_c`; with :math:`\rho=0` no weights exist. In exact arithmetic it ends, and
every column that enters is independent of those inside.

It serves two ends: a second decision of feasibility that shares nothing with :mod:`farkas`, and
:func:`answerable`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np

from .dyadic import dyadic, scaled
from .exact import ROUNDING, Question, shortness
from .farkas import solve_integers
from .lengths import as_float

_NORMAL = float(np.finfo(np.float64).tiny)
_ENTRIES = 500  # columns that enter: far above the number of rows here


@dataclass(frozen=True)
class Least:
    r"""``W`` (flat fractions) of least Frobenius norm, or ``None`` when no weights exist, and
    multipliers with :math:`W=\sum_c\lambda_cA_c`.
    """

    W: list[Fraction] | None
    dual: list[Fraction] = field(default_factory=list)


def least(q: Question) -> Least | None:
    """The exact solution; ``None`` when it took too long."""
    exponent = q.D.exponent + q.Z.exponent
    m = q.m
    rows = [[int(a) for a in row] for row in q.written]
    sides = [side / scaled(1, exponent) for side in q.sides]
    # columns (A_c, b_c) as integers; each may have a length of its own
    whole = []
    for row, side in zip(rows, sides, strict=True):
        whole.append([a * side.denominator for a in row] + [side.numerator])
    lengths = [max((abs(a) for a in column), default=0).bit_length() for column in whole]
    columns = [
        [Fraction(a, 1 << bits) for a in column] if bits else [Fraction(0)] * len(column)
        for column, bits in zip(whole, lengths, strict=True)
    ]
    gram = _gram(columns)
    target = [column[-1] for column in columns]
    inside: list[int] = []
    u = [Fraction(0)] * m
    for c in range(m):
        if q.equal[c]:  # one that follows from others asks for nothing more
            solved = _solve(gram, target, [*inside, c])
            if solved is not None:
                inside.append(c)
                for k, x in zip(inside, solved, strict=True):
                    u[k] = x
    for _ in range(_ENTRIES):
        slope = [
            target[c] - sum((gram[c][k] * u[k] for k in inside), Fraction(0)) for c in range(m)
        ]
        outside = [c for c in range(m) if c not in inside and slope[c] > 0]
        if not outside:
            break
        inside.append(max(outside, key=lambda c: slope[c] * slope[c] / gram[c][c]))
        while True:
            solved = _solve(gram, target, inside)
            if solved is None:
                return None
            goal = dict(zip(inside, solved, strict=True))
            low = [c for c in inside if not q.equal[c] and goal[c] <= 0]
            if not low:
                for c in inside:
                    u[c] = goal[c]
                break
            step = min(u[c] / (u[c] - goal[c]) if u[c] != goal[c] else Fraction(0) for c in low)
            for c in inside:
                u[c] += step * (goal[c] - u[c])
            inside = [c for c in inside if q.equal[c] or u[c] > 0]
            for c in range(m):
                if c not in inside:
                    u[c] = Fraction(0)
    else:
        return None
    rest = 1 - sum((t * x for t, x in zip(target, u, strict=True)), Fraction(0))
    if rest == 0:
        return Least(None)
    width = q.written.shape[1]
    pulled = [
        sum((columns[c][k] * u[c] for c in range(m) if u[c]), Fraction(0)) for k in range(width)
    ]
    stretch = [
        Fraction(side.denominator, 1 << bits) / scaled(1, exponent)
        for side, bits in zip(sides, lengths, strict=True)
    ]
    dual = [x * by / rest for x, by in zip(u, stretch, strict=True)]
    return Least([w / rest for w in pulled], dual)


def answerable(q: Question, found: Least, tol: float) -> bool:
    """Whether the solution, rounded to float64, keeps the promise of ``optimal``: every margin met
    to ``tol`` in the documented unit and in its own scale, and multipliers that are normal numbers
    and bound the norm from below up to ``tol``.

    It is lengthened by half of ``tol`` first, which the gap allows. Where this fails, margins of
    weights that large drown in the rounding of the weights themselves, or what is left of terms
    that cancel in that of the multipliers, and no solver can hand back float64 weights that are
    proved optimal, unless by luck of the grid.
    """
    grown = 1 + Fraction(tol) / 2
    assert found.W is not None
    rounded = np.array([as_float(each * grown) for each in found.W])
    sizes = [abs(as_float(each)) for each in found.dual if each]
    if not np.isfinite(rounded).all() or not all(_NORMAL <= each < np.inf for each in sizes):
        return False
    shape = (q.D.integers.shape[1], q.Z.integers.shape[1])
    values = q.values(dyadic(rounded.reshape(shape)))
    short, own = shortness(q, values)
    if max(short, own or Fraction(0)) > Fraction(tol) + ROUNDING:
        return False
    dual = [Fraction(as_float(each)) for each in found.dual]
    rows = q.written * scaled(1, q.D.exponent + q.Z.exponent)
    pulled = sum(x * row for x, row in zip(dual, rows, strict=True))
    top = sum((x * side for x, side in zip(dual, q.sides, strict=True)), Fraction(0))
    least_square = sum(each * each for each in found.W) * (1 - Fraction(tol)) ** 2
    return top > 0 and top * top >= least_square * sum(each * each for each in pulled)


def _gram(columns: list[list[Fraction]]) -> list[list[Fraction]]:
    m = len(columns)
    gram = [[Fraction(0)] * m for _ in range(m)]
    for i in range(m):
        for j in range(i + 1):
            gram[i][j] = gram[j][i] = sum(
                (a * b for a, b in zip(columns[i], columns[j], strict=True) if a and b),
                Fraction(0),
            )
    return gram


def _solve(
    gram: list[list[Fraction]], target: list[Fraction], inside: Sequence[int]
) -> list[Fraction] | None:
    system = []
    for c in inside:
        line = [gram[c][k] for k in inside] + [target[c]]
        unit = max(each.denominator for each in line)
        system.append([int(each * unit) for each in line])
    return solve_integers(system)
