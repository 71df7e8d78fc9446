"""Requests to a solver, and the solutions that are made of its certificates."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol, overload

import numpy as np

from attsvm.datasets.attention_data import BoolArray, FloatArray, IntArray
from attsvm.margins import Margins
from attsvm.norms import Norm
from attsvm.solvers.farkas import prove_infeasible
from attsvm.solvers.proofs import NO_MATTER, Certificate, farkas_residual
from attsvm.solvers.scaling import Scaling
from attsvm.solvers.solution import MarginSolution, Status


class StatusOptions(NamedTuple):
    """Limits that decide about supports and statuses; untuned.

    Attributes:
        support: relative distance to equality at which a constraint counts as supporting.
        cancelled_roundings: roundings over the tolerance to which terms may cancel in weights that
            float64 holds.
        small_residual: of a certificate of ``almost infeasible``, whatever the tolerance.
        hopeless: gap of ``almost infeasible`` Frobenius weights from which no other norm is tried.
    """

    support: float = 1e-5
    cancelled_roundings: float = 4.0
    small_residual: float = 1e-6
    hopeless: float = 1e-3


STATUS = StatusOptions()


def _now() -> float:
    return time.monotonic()


@dataclass(frozen=True, eq=False, repr=False)
class Request:
    """A checked request to a solver.

    Attributes:
        tol: largest gap and violation of an ``optimal`` solution.
        rough: no more than that is needed, however cheap.
        slack: penalty C of the soft margin, ``None`` for the hard one.
        warm_start: ``(m,)`` multipliers to start from, or ``None``.
        warm_weights: ``(d_x, d_z)`` weights that belong to them, or ``None``.
        max_seconds: wall-clock limit, or ``None``.
        opposite: ``(m,)`` for programmes with equalities written as pairs of opposite rows: the
            other row of the pair, -1 for rows without one. A solver may use it; the programme means
            the same without.
        started: when the time began, of :func:`time.monotonic`.
        reserve: seconds of the limit that are for the last certificate.
    """

    tol: float
    slack: float | None
    warm_start: FloatArray | None
    max_seconds: float | None
    opposite: IntArray | None = None
    warm_weights: FloatArray | None = None
    rough: bool = False
    started: float = field(default_factory=_now)
    reserve: float = 0.0

    @property
    def deadline(self) -> float:
        """When the time is used up, of :func:`time.monotonic`; infinite without a limit."""
        if self.max_seconds is None:
            return math.inf
        return self.started + self.max_seconds - self.reserve

    @property
    def left(self) -> float:
        """Seconds until the time is used up; infinite without a limit."""
        return max(self.deadline - time.monotonic(), 0.0)

    @property
    def late(self) -> bool:
        """Whether the time is used up."""
        return self.left == 0.0

    def after_certificate(self, began: float) -> Request:
        """The request with as much time in reserve as the certificate took that began then."""
        if self.max_seconds is None:
            return self
        return replace(self, reserve=max(self.reserve, time.monotonic() - began))


class Solver(Protocol):
    """The protocol of ``solve`` in a solver's module."""

    def __call__(self, margins: Margins, norm: Norm, request: Request) -> MarginSolution:
        """The solution in ``norm``, certified from ``margins``."""


def certified_solution(
    margins: Margins,
    certificate: Certificate,
    request: Request,
    solver: str,
    iterations: int,
    constraints: int | None = None,
    options: StatusOptions = STATUS,
) -> MarginSolution:
    """The solution of a certificate in the Frobenius norm, whose solutions are unique.

    ``optimal`` when gap and violation are within the tolerance; ``almost infeasible`` when the
    multipliers are near a contradiction, so that weights may be beyond float64; else
    ``inaccurate``. ``constraints`` is the number of all rows where ``margins`` are a working set.
    """
    rhs = margins.rhs
    slacks = (
        np.zeros(margins.m) if request.slack is None else np.maximum(rhs - certificate.values, 0.0)
    )
    is_met = certificate.values <= np.where(rhs > 0, (1.0 + options.support) * rhs, options.support)
    supporting: IntArray = (
        is_met if margins.equality is None else is_met | margins.equalities
    ).nonzero()[0]
    status: Status = (
        "optimal"
        if is_within_tolerance(certificate.error, certificate.rounding, request.tol)
        else "inaccurate"
    )
    residual = math.inf
    if status != "optimal" and request.slack is None and certificate.dual.any():
        residual = farkas_residual(margins, certificate.dual)
        # Weights in which terms cancel to so few roundings over the tolerance leave float64.
        cancelled = options.cancelled_roundings * float(np.finfo(np.float64).eps) / request.tol
        if residual <= min(cancelled, options.small_residual):
            status = "almost infeasible"
    # By position, in the order of the fields: keywords take as long again. The norm is that of the
    # Frobenius solver; callers of other norms replace it.
    return MarginSolution(
        margins,
        status,
        certificate.W,
        certificate.norm,
        certificate.dual,
        certificate.gap,
        certificate.violation,
        supporting,
        request.tol,
        request.slack,
        slacks,
        solver,
        iterations,
        unique=True if status == "optimal" else None,
        constraints=constraints,
        out_of_time=status == "inaccurate" and request.late,
    )


def restore_scale(solution: MarginSolution, margins: Margins, scaling: Scaling) -> MarginSolution:
    """The solution of ``near.margins`` as the solution of ``margins``: gap and status are those of
    both.

    Raises:
        InputError: weights or multipliers that are not float64 numbers at the scale of ``margins``.
    """
    slack = None if solution.slack is None else math.ldexp(solution.slack, scaling.multipliers)
    if not solution.has_weights:  # a certificate has no scale
        return replace(
            solution, margins=margins, slack=slack, violation=float(np.abs(margins.rhs).max())
        )
    W, dual = scaling.restored(solution.W, solution.dual)
    return replace(
        solution,
        margins=margins,
        W=W,
        norm=math.ldexp(solution.norm, scaling.weights),
        dual=dual,
        violation=math.ldexp(solution.violation, scaling.sides),
        slack=slack,
        slacks=np.ldexp(solution.slacks, scaling.sides),
    )


@overload
def is_within_tolerance(error: float, rounding: float, tol: float) -> bool: ...


@overload
def is_within_tolerance(error: FloatArray, rounding: FloatArray, tol: float) -> BoolArray: ...


def is_within_tolerance(
    error: float | FloatArray, rounding: float | FloatArray, tol: float
) -> bool | BoolArray:
    """Whether the promise of ``optimal`` holds: gap and violation are within the tolerance, and no
    rounding in them matters.
    """
    return (error <= tol) & (rounding <= NO_MATTER)


def zero_solution(
    margins: Margins, norm: Norm, request: Request, options: StatusOptions = STATUS
) -> MarginSolution:
    """Zero weights, optimal because no right-hand side is positive."""
    W = np.zeros(margins.shape)
    supporting = np.flatnonzero(margins.rhs <= options.support)
    return MarginSolution(
        margins=margins,
        status="optimal",
        W=W,
        norm=float(norm.value(W)),
        dual=np.zeros(margins.m),
        gap=0.0,
        violation=0.0,
        support=supporting,
        tol=request.tol,
        slack=request.slack,
        slacks=np.zeros(margins.m),
        solver="inspection",
        iterations=0,
        unique=True,
    )


def infeasible_solution(
    margins: Margins,
    dual: FloatArray,
    request: Request,
    solver: str,
    iterations: int,
    *,
    exact: bool = False,
    options: StatusOptions = STATUS,
) -> MarginSolution:
    """The verdict that no weights meet the margins, with its certificate (scaled to a largest entry
    of one): ``infeasible`` where :func:`attsvm.solvers.farkas.prove_infeasible` proves it, ``almost
    infeasible`` where it does not.

    An ``exact`` certificate is a proof.
    """
    dual = dual / np.abs(dual).max()
    proof = dual if exact else prove_infeasible(margins, dual)
    status: Status = "infeasible"
    if proof is not None:
        dual = proof / np.abs(proof).max()
    else:
        small = farkas_residual(margins, dual) <= options.small_residual
        status = "almost infeasible" if small else "inaccurate"
    return MarginSolution(
        margins=margins,
        status=status,
        W=np.zeros(margins.shape),
        norm=float("inf"),
        dual=dual,
        gap=1.0,
        violation=float(np.abs(margins.rhs).max()),
        support=np.flatnonzero(dual),
        tol=request.tol,
        slack=request.slack,
        slacks=np.zeros(margins.m),
        solver=solver,
        iterations=iterations,
        out_of_time=status == "inaccurate" and request.late,
    )


def out_of_range_solution(
    margins: Margins, tol: float, slack: float | None, reason: str
) -> MarginSolution:
    """No answer for a programme whose solution leaves float64: no weights, and the reason."""
    return MarginSolution(
        margins=margins,
        status="inaccurate",
        W=np.zeros(margins.shape),
        norm=float("inf"),
        dual=np.zeros(margins.m),
        gap=1.0,
        violation=float(np.abs(margins.rhs).max(initial=0.0)),
        support=np.zeros(0, dtype=np.int64),
        tol=tol,
        slack=slack,
        slacks=np.zeros(margins.m),
        solver="none",
        iterations=0,
        reason=reason,
    )
