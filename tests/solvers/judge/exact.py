r"""The judge: whether what a solver says of a programme is true, in exact arithmetic.

It knows the programme (differences, queries, right-hand sides, which rows are equalities, the
penalty), the norm by its name, and what came back. It shares no code with :mod:`attsvm.solvers` and
takes nothing of theirs on trust but the numbers of the solution itself, which it reads as the
dyadic rationals that they are.

What is asked of each status is what the documentation promises (``MarginSolution``,
``docs/norms.md``, ``docs/tour.md``):

``optimal``
    * every row short by at most ``tol`` in units of the power of two at or below the largest
      right-hand side;
    * for inequalities with positive sides also in each row's own scale:
      :math:`\min_c\langle A_c,W\rangle/b_c\ge1-\text{tol}`, because the tour bounds the optimum by
      :math:`\|W\|/\min_c\langle A_c,W\rangle/b_c`;
    * multipliers of the right signs, for the soft margin within C, whose gap is at most ``tol``.
``infeasible``
    no weights meet the margins, decided by :mod:`farkas`, and the multipliers that came back are a
    certificate up to rounding, entry by entry, see :func:`certificate_residual`.
anything else
    promises nothing; it is counted, with the truth about feasibility.

Whatever the status, a reported norm is that of the weights, and a reported gap is not below the
true one: ``MarginSolution.gap`` is documented as rigorous. What breaks this is ``misreported``.

Tolerances, fixed before any result was seen:

* ``ROUNDING`` = 1e-13 beyond ``tol`` is allowed to gap and shortness: the solution's own numbers
  went through float64 sums of at most some hundred terms (the bound of ``tests/solvers/extended``).
* ``REPORT`` = 1e-12 plus 1e-6 of itself: how far the true gap may exceed the reported one, and the
  true norm the reported one (relative); also of ``extended``.
* ``CERTIFICATE`` = 1e-12: largest Farkas residual of an ``infeasible``; also of ``extended``.
  Multipliers are float64, so that an exact certificate rounded has some 1e-16.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np

from .dyadic import Dyadic, dyadic, scaled
from .farkas import Decision, decide, written_out
from .lengths import Bounds, Gauge, as_float, gauge

ROUNDING = Fraction(1, 10**13)
REPORT = Fraction(1, 10**12)
REPORT_SHARE = Fraction(1, 10**6)
CERTIFICATE = Fraction(1, 10**12)


@dataclass(frozen=True)
class Claim:
    """What a solver says: the fields of its solution that promise something."""

    status: str
    W: Any
    dual: Any
    norm: float
    gap: float
    tol: float

    @classmethod
    def of(cls, solution: Any) -> Claim:
        """Of a ``MarginSolution``."""
        return cls(
            str(solution.status),
            np.array(solution.W),
            np.array(solution.dual),
            float(solution.norm),
            float(solution.gap),
            float(solution.tol),
        )


@dataclass(frozen=True)
class Verdict:
    """What is wrong with a claim (nothing when ``wrong`` is empty), and the true numbers.

    Attributes:
        status: what was claimed.
        wrong: one sentence for each broken promise of the status.
        misreported: one sentence for each number of the solution that is not true.
        feasible: whether weights exist, exactly; ``None`` when that was not decided. What is called
            ``optimal`` need not: weights may meet equalities within the tolerance only.
        gap: an upper bound of the true relative gap.
        short: the largest shortness, in the documented unit.
        own: the largest shortness of an inequality in units of its own side.
        residual: of the certificate of an ``infeasible``.
    """

    status: str
    wrong: list[str] = field(default_factory=list)
    misreported: list[str] = field(default_factory=list)
    feasible: bool | None = None
    gap: float | None = None
    short: float | None = None
    own: float | None = None
    residual: float | None = None


class Question:
    """A programme in integers."""

    def __init__(self, margins: Any, norm: str, slack: float | None = None) -> None:
        offsets = np.asarray(margins.offsets)
        self.m = len(margins.differences)
        self.sequence = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
        self.equal = (
            np.zeros(self.m, dtype=bool)
            if margins.equality is None
            else np.asarray(margins.equality, dtype=bool)
        )
        self.D, self.Z = dyadic(margins.differences), dyadic(margins.queries)
        self.b = dyadic(margins.rhs)
        self.gauge: Gauge = gauge(norm)
        self.slack = None if slack is None else Fraction(slack)

    @cached_property
    def sides(self) -> list[Fraction]:
        """:math:`b_c`."""
        return self.b.fractions()

    @cached_property
    def unit(self) -> Fraction:
        """The power of two at or below the largest right-hand side; one when all are zero."""
        largest = max((abs(each) for each in self.sides), default=Fraction(0))
        if largest == 0:
            return Fraction(1)
        power = largest.numerator.bit_length() - largest.denominator.bit_length()
        return scaled(1, power if scaled(1, power) <= largest else power - 1)

    def values(self, W: Dyadic) -> list[Fraction]:
        r""":math:`\langle A_c,W\rangle`."""
        moved = Dyadic((W.integers @ self.Z.integers.T).T, W.exponent + self.Z.exponent)
        products = self.D.integers * moved.integers[self.sequence]
        exponent = self.D.exponent + moved.exponent
        return [scaled(sum(row), exponent) for row in products]

    def adjoint(self, dual: Dyadic) -> Dyadic:
        r""":math:`\sum_c\lambda_cA_c`."""
        pulled = (self.D.integers * dual.integers[:, None]).T @ self.Z.integers[self.sequence]
        return Dyadic(pulled, self.D.exponent + self.Z.exponent + dual.exponent)

    @cached_property
    def written(self) -> Any:
        """Rows as vectors of integers, in units of ``2**exponent`` of ``D`` and ``Z``."""
        return written_out(self.D.integers, self.Z.integers, self.sequence)

    def feasibility(self, claim: Claim | None = None) -> Decision:
        """Whether weights meet the margins. A claim is asked for a hint first: its weights, or the
        rows of its certificate, may prove it at little cost.
        """
        if all(side <= 0 and not (strict and side) for side, strict in self._rows):
            return Decision(True, W=[Fraction(0)] * self.written.shape[1])
        if claim is not None and not self.equal.any() and _finite(claim.W) and np.any(claim.W):
            values = self.values(dyadic(claim.W))
            if all(v > 0 if b > 0 else v >= 0 for v, b in zip(values, self.sides, strict=True)):
                scale = max(b / v for v, b in zip(values, self.sides, strict=True) if b > 0)
                return Decision(True, W=[scale * w for w in dyadic(claim.W).fractions()])
        if claim is not None and claim.status == "infeasible" and _finite(claim.dual):
            rows = np.flatnonzero(claim.dual)
            if 0 < len(rows) < self.m:
                part = self._decided(rows)
                if part.feasible is False and part.dual is not None:
                    dual = [0] * self.m
                    for c, x in zip(rows, part.dual, strict=True):
                        dual[c] = x
                    return Decision(False, dual=dual, pivots=part.pivots)
        return self._decided(np.arange(self.m))

    @property
    def _rows(self) -> Any:
        return zip(self.sides, self.equal, strict=True)

    def _decided(self, rows: Any) -> Decision:
        exponent = self.D.exponent + self.Z.exponent
        return decide(
            [list(self.written[c]) for c in rows],
            [self.sides[c] / scaled(1, exponent) for c in rows],
            [bool(self.equal[c]) for c in rows],
        )


def judge(margins: Any, norm: str, slack: float | None, claim: Claim) -> Verdict:
    """What is wrong with this claim about this programme."""
    question = Question(margins, norm, slack)
    if claim.status == "infeasible":
        return _infeasible(question, claim)
    feasible = True if slack is not None else question.feasibility(claim).feasible
    unusable = _unusable(question, claim)
    if claim.status != "optimal":
        # nothing is promised, but a gap below one is a proof of something
        told = [] if unusable or claim.gap >= 1.0 else _weighed(question, claim).misreported
        return Verdict(claim.status, misreported=told, feasible=feasible)
    if unusable:
        return Verdict("optimal", [unusable], feasible=feasible)
    return replace(_weighed(question, claim), feasible=feasible)


def _unusable(q: Question, claim: Claim) -> str | None:
    """Why nothing can be computed from weights and multipliers."""
    shape = (q.D.integers.shape[1], q.Z.integers.shape[1])
    if np.shape(claim.W) != shape or np.shape(claim.dual) != (q.m,):
        return "weights or multipliers have the wrong shape"
    if not all(_finite(each) for each in (claim.W, claim.dual, claim.norm, claim.gap)):
        return "weights, multipliers, norm or gap are not finite"
    return None


def _weighed(q: Question, claim: Claim) -> Verdict:
    """Weights and multipliers against what ``optimal`` promises."""
    W, dual = dyadic(claim.W), dyadic(claim.dual)
    tol = Fraction(claim.tol) + ROUNDING
    values = q.values(W)
    wrong, misreported = _signs(q, claim), []
    low, high = q.gauge.bounds(W)
    if not low * (1 - REPORT) <= Fraction(claim.norm) <= high * (1 + REPORT):
        misreported.append(f"the norm is {as_float(high)!r}, reported {claim.norm!r}")
    if q.slack is None:
        short, own = shortness(q, values)
        if short > tol:
            wrong.append(f"a row is short by {as_float(short):.2e} in the documented unit")
        if own is not None and own > tol:
            wrong.append(f"an inequality is short by {as_float(own):.2e} of its own side")
        gap = _hard_gap(q, dual, low, high)
    else:
        short, own = Fraction(0), None
        gap = _soft_gap(q, values, dual, low, high)
    if gap[0] > tol:
        wrong.append(f"the gap is {as_float(gap[0]):.2e}")
    if gap[0] > Fraction(claim.gap) * (1 + REPORT_SHARE) + REPORT:
        misreported.append(f"the gap is {as_float(gap[0]):.2e}, reported {claim.gap:.2e}")
    if gap[0] <= tol < gap[1]:
        wrong.append("undecided: the bounds of the gap enclose the tolerance")
    return Verdict(
        claim.status,
        wrong,
        misreported,
        gap=as_float(gap[1]),
        short=as_float(short),
        own=None if own is None else as_float(own),
    )


def _signs(q: Question, claim: Claim) -> list[str]:
    wrong = []
    if (claim.dual[~q.equal] < 0).any():
        wrong.append("a multiplier of an inequality is negative")
    if q.slack is not None and any(Fraction(float(x)) > q.slack for x in claim.dual):
        wrong.append("a multiplier is above C")
    return wrong


def shortness(q: Question, values: Sequence[Fraction]) -> tuple[Fraction, Fraction | None]:
    """In the documented unit, and in each inequality's own side (``None`` where equalities take
    part: they fix the scale of the weights).
    """
    short = Fraction(0)
    own: Fraction | None = None
    for value, side, strict in zip(values, q.sides, q.equal, strict=True):
        missed = abs(side - value) if strict else side - value
        short = max(short, missed)
        if not strict and side > 0:
            own = max(own or Fraction(0), missed / side)
    return short / q.unit, None if q.equal.any() else own


def _hard_gap(q: Question, dual: Dyadic, low: Fraction, high: Fraction) -> Bounds:
    """Bounds of ``1 - lower / ||W||``."""
    top = sum((b * x for b, x in zip(q.sides, dual.fractions(), strict=True)), Fraction(0))
    if high == 0:
        nothing = all(b <= 0 and not (e and b) for b, e in q._rows)
        return (Fraction(0),) * 2 if nothing else (Fraction(1),) * 2
    if top <= 0:
        return Fraction(1), Fraction(1)
    least, most = q.gauge.dual_bounds(q.adjoint(dual))
    if least == 0:  # nothing bounds the norm from above then: the multipliers refute the programme
        return (Fraction(-1), Fraction(1)) if most else (Fraction(-1),) * 2
    return 1 - top / (least * low), 1 - top / (most * high)


def _soft_gap(
    q: Question, values: Sequence[Fraction], dual: Dyadic, low: Fraction, high: Fraction
) -> Bounds:
    """Bounds of ``(primal - dual) / primal``."""
    assert q.slack is not None
    missed = sum(
        (max(b - v, Fraction(0)) for b, v in zip(q.sides, values, strict=True)), Fraction(0)
    )
    top = sum((b * x for b, x in zip(q.sides, dual.fractions(), strict=True)), Fraction(0))
    least, most = q.gauge.dual_bounds(q.adjoint(dual))
    primal = (low * low / 2 + q.slack * missed, high * high / 2 + q.slack * missed)
    bound = (top - most * most / 2, top - least * least / 2)
    if primal[0] == 0:
        return (Fraction(0),) * 2 if primal[1] == 0 and bound[0] >= 0 else (Fraction(1),) * 2
    return 1 - max(bound[1] / primal[0], bound[1] / primal[1]), 1 - min(
        bound[0] / primal[0], bound[0] / primal[1]
    )


def _infeasible(q: Question, claim: Claim) -> Verdict:
    if q.slack is not None:
        return Verdict("infeasible", ["a soft margin always has a solution"], feasible=True)
    truth = q.feasibility(claim).feasible
    wrong = []
    if truth:
        wrong.append("weights that meet every margin exist")
    elif truth is None:
        wrong.append("undecided: neither weights nor a contradiction was proved")
    residual = certificate_residual(q, claim)
    if residual is None:
        wrong.append("the multipliers are no certificate: a sign or the side is wrong")
    elif residual > CERTIFICATE:
        wrong.append(f"the certificate has residual {as_float(residual):.2e}")
    return Verdict(
        "infeasible",
        wrong,
        feasible=truth,
        residual=None if residual is None else as_float(residual),
    )


def certificate_residual(q: Question, claim: Claim) -> Fraction | None:
    r"""The largest :math:`|\sum_c\lambda_cA_{c,ae}|/\sum_c|\lambda_cA_{c,ae}|`; ``None`` when the
    multipliers are no certificate.

    Every entry of the weights is measured by its own terms: no row, however long, hides another.
    """
    if not _finite(claim.dual) or np.shape(claim.dual) != (q.m,) or _signs(q, claim):
        return None
    dual = dyadic(claim.dual)
    if sum((b * x for b, x in zip(q.sides, dual.fractions(), strict=True)), Fraction(0)) <= 0:
        return None
    terms = q.written * dual.integers[:, None]
    worst = Fraction(0)
    for column in terms.T:
        size = sum(abs(term) for term in column)
        if size:
            worst = max(worst, Fraction(abs(sum(column)), size))
    return worst


def _finite(array: Any) -> bool:
    return bool(np.isfinite(np.asarray(array, dtype=np.float64)).all())
