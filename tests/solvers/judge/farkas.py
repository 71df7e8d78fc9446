r"""Whether any weights meet the margins, decided exactly.

By Farkas' lemma exactly one of the two exists: :math:`W` with :math:`\langle A_c,W\rangle\ge b_c`
(with equality where the row asks for it), or :math:`\lambda`, non-negative on the inequalities,
with :math:`\sum_c\lambda_cA_c=0` and :math:`b^\top\lambda>0`. The simplex method in integers on
:math:`\max\{b^\top\lambda: \sum_c\lambda_cA_c=0\}` ends in one of them: in a ray, which is
:math:`\lambda`, or in a basis whose prices are :math:`W`. Whatever it ends in is checked once more
by multiplication, so an error in the method cannot pass.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

_PIVOTS = 20_000  # Bland's rule ends; this only keeps an error from running for ever


@dataclass(frozen=True)
class Decision:
    """``feasible`` with what proves it: ``W`` (flat) or ``dual``; ``None`` with neither."""

    feasible: bool | None
    W: list[Fraction] | None = None
    dual: list[int] | None = None
    pivots: int = 0


def decide(rows: Any, sides: Sequence[int], equal: Sequence[bool]) -> Decision:
    r"""Whether weights exist.

    Args:
        rows: ``(m, k)`` integers, :math:`A_c` written out. Each may be multiplied by its own
            positive number, together with its side.
        sides: ``(m,)`` integers or fractions, :math:`b_c`.
        equal: ``(m,)``, which rows ask for equality.
    """
    sides = [Fraction(each) for each in sides]
    lists, powers = _shortened(rows)
    objective = _integers([side / (1 << power) for side, power in zip(sides, powers, strict=True)])
    outcome = _simplex(lists, objective, equal)
    if outcome.ray is not None:
        # of the shortened rows; in those of the caller lambda_c 2**-power_c
        shares = zip(outcome.ray, powers, strict=True)
        dual = _integers([Fraction(x, 1 << power) for x, power in shares])
        if refutes(rows, sides, equal, dual):
            return Decision(False, dual=dual, pivots=outcome.pivots)
        return Decision(None, pivots=outcome.pivots)
    if outcome.basis is None:
        return Decision(None, pivots=outcome.pivots)
    W = _prices(rows, sides, outcome.basis, outcome.coordinates)
    if W is not None and meets(rows, sides, equal, W):
        return Decision(True, W=W, pivots=outcome.pivots)
    return Decision(None, pivots=outcome.pivots)


def meets(rows: Any, sides: Sequence[Any], equal: Sequence[bool], W: Sequence[Fraction]) -> bool:
    """Whether these weights meet every row, exactly."""
    whole, unit = _common(W)
    for row, side, strict in zip(rows, sides, equal, strict=True):
        value = sum(a * w for a, w in zip(row, whole, strict=True))
        short = side * unit - value
        if short > 0 or (strict and short != 0):
            return False
    return True


def refutes(rows: Any, sides: Sequence[Any], equal: Sequence[bool], dual: Sequence[int]) -> bool:
    """Whether these multipliers prove, exactly, that no weights exist."""
    if any(x < 0 and not free for x, free in zip(dual, equal, strict=True)):
        return False
    if not sum(x * side for x, side in zip(dual, sides, strict=True)) > 0:
        return False
    width = len(rows[0])
    return all(
        sum(x * row[k] for x, row in zip(dual, rows, strict=True)) == 0 for k in range(width)
    )


@dataclass
class _Outcome:
    ray: list[int] | None = None
    basis: list[int] | None = None
    coordinates: list[int] | None = None
    pivots: int = 0


def _simplex(rows: list[list[int]], objective: list[int], equal: Sequence[bool]) -> _Outcome:
    """Integer-preserving pivots (Edmonds) on the tableau whose columns are the rows of the
    programme; every right-hand side is zero, so Bland's rule chooses.
    """
    m, width = len(rows), len(rows[0])
    tableau = [[rows[c][k] for c in range(m)] for k in range(width)]
    prices = list(objective)
    unit = 1
    basic: list[int] = []  # column of each pivoted line
    coordinates: list[int] = []  # the entry of the weights that it was
    lines: list[list[int]] = []
    waiting = list(range(width))

    def pivot(line: list[int], column: int, others: list[list[int]]) -> None:
        nonlocal unit
        head = line[column]
        for other in others:
            tail = other[column]
            if tail:
                other[:] = [(head * a - tail * p) // unit for a, p in zip(other, line, strict=True)]
            elif head != unit:
                other[:] = [head * a // unit for a in other]
        unit = head

    order = [c for c in range(m) if equal[c]] + [c for c in range(m) if not equal[c]]
    for column in order:
        found = next((k for k in waiting if tableau[k][column]), None)
        if found is None:
            continue
        waiting.remove(found)
        line = tableau[found]
        if line[column] < 0:
            line[:] = [-a for a in line]
        pivot(line, column, [*lines, *(tableau[k] for k in waiting), prices])
        lines.append(line)
        basic.append(column)
        coordinates.append(found)
    free = [equal[c] for c in basic]
    pivots = len(basic)

    def ray(column: int, sign: int) -> list[int]:
        out = [0] * m
        out[column] = sign * unit
        for line, c in zip(lines, basic, strict=True):
            out[c] = -sign * line[column]
        return out

    inside = set(basic)
    for c in range(m):
        if equal[c] and c not in inside and prices[c]:
            return _Outcome(ray=ray(c, 1 if prices[c] > 0 else -1), pivots=pivots)
    inequalities = [c for c in range(m) if not equal[c]]
    while pivots < _PIVOTS:
        entering = next((c for c in inequalities if prices[c] > 0), None)
        if entering is None:
            return _Outcome(basis=basic, coordinates=coordinates, pivots=pivots)
        blocking = [k for k, line in enumerate(lines) if not free[k] and line[entering] > 0]
        if not blocking:
            return _Outcome(ray=ray(entering, 1), pivots=pivots)
        leaving = min(blocking, key=lambda k: basic[k])
        line = lines[leaving]
        pivot(line, entering, [*(lines[:leaving]), *(lines[leaving + 1 :]), prices])
        basic[leaving] = entering
        pivots += 1
    return _Outcome(pivots=pivots)


def _prices(
    rows: Any, sides: list[Fraction], basis: list[int], coordinates: list[int] | None
) -> list[Fraction] | None:
    """The weights on these coordinates whose margins in the basis are exactly the sides."""
    assert coordinates is not None
    width = len(rows[0])
    W = [Fraction(0)] * width
    if not basis:
        return W
    system = []
    for c in basis:
        side = sides[c]
        system.append([int(rows[c][k]) * side.denominator for k in coordinates] + [side.numerator])
    solved = solve_integers(system)
    if solved is None:
        return None
    for k, value in zip(coordinates, solved, strict=True):
        W[k] = value
    return W


def solve_integers(system: list[list[int]]) -> list[Fraction] | None:
    """The solution of ``[M | right]``, ``(k, k + 1)`` integers, by Bareiss' elimination; ``None``
    when M is singular.
    """
    k = len(system)
    M = [_primitive(row) for row in system]
    unit = 1
    for j in range(k):
        found = next((i for i in range(j, k) if M[i][j]), None)
        if found is None:
            return None
        M[j], M[found] = M[found], M[j]
        head = M[j]
        for i in range(j + 1, k):
            tail = M[i][j]
            M[i] = [(head[j] * a - tail * p) // unit for a, p in zip(M[i], head, strict=True)]
        unit = head[j]
    # determinant and, backwards, every unknown times the determinant
    whole = [0] * k
    for j in reversed(range(k)):
        rest = M[j][k] * unit - sum(M[j][i] * whole[i] for i in range(j + 1, k))
        whole[j] = rest // M[j][j]
    return [Fraction(each, unit) for each in whole]


def _primitive(row: list[int]) -> list[int]:
    common = math.gcd(*row)
    return [a // common for a in row] if common > 1 else row


def _shortened(rows: Any) -> tuple[list[list[int]], list[int]]:
    """Rows divided by the power of two that divides them, and then every coordinate likewise; the
    exponents of the rows. Both change the length of the numbers only.
    """
    lists, powers = [], []
    for row in rows:
        power = min((_twos(a) for a in row if a), default=0)
        lists.append([int(a) >> power for a in row])
        powers.append(power)
    for k in range(len(lists[0])):
        power = min((_twos(row[k]) for row in lists if row[k]), default=0)
        if power:
            for row in lists:
                row[k] >>= power
    return lists, powers


def _twos(number: int) -> int:
    return (number & -number).bit_length() - 1


def _integers(numbers: Sequence[Fraction]) -> list[int]:
    return _common(numbers)[0]


def _common(numbers: Sequence[Fraction]) -> tuple[list[int], int]:
    """Integers and the denominator that they share."""
    unit = math.lcm(*(each.denominator for each in numbers)) if len(numbers) else 1
    return [each.numerator * (unit // each.denominator) for each in numbers], unit


def written_out(differences: Any, queries: Any, sequence: Any) -> Any:
    """``(m, d_x d_z)`` integers: each row as a vector."""
    Z = queries[sequence]
    products = np.asarray(differences[:, :, None] * Z[:, None, :], dtype=object)
    return products.reshape(len(differences), differences.shape[1] * queries.shape[1])
