"""What a solver hands back: the weights together with everything needed to check them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal, overload

import numpy as np

from attsvm.data import BoolArray, FloatArray, IntArray
from attsvm.geometry import Frobenius, Norm
from attsvm.margins import Margins
from attsvm.solvers.certificates import Certificate, farkas_residual, lower_bound
from attsvm.solvers.contradiction import contradiction
from attsvm.solvers.residuals import Residuals, residuals_of
from attsvm.solvers.scaling import Scaling, scaled
from attsvm.solvers.verification import SecondOpinion

Status = Literal["optimal", "infeasible", "inaccurate"]

_SUPPORT = 1e-5  # relative distance to equality at which a constraint counts as supporting
_CHEAP_REDUCTION = 200  # rows of a certificate that are reduced at once, so that the message can name them
_BLUR = 1e-9  # rounding error of the margins beyond which no tolerance can be promised


@dataclass(frozen=True, eq=False)
class Request:
    """What the caller asked a solver for, after checking.

    Attributes:
        tol: largest gap and violation of an ``optimal`` solution.
        slack: penalty C of the soft margin, ``None`` for the hard one.
        warm_start: ``(m,)`` multipliers to start from, or ``None``.
        warm_weights: ``(d_x, d_z)`` weights that belong to them, or ``None``.
        warm_step: step of the splitting that found them, or ``None``.
        max_seconds: wall-clock limit, or ``None``.
        opposite: ``(m,)`` for programmes with equalities written as pairs of opposite rows: the other row of the pair, -1 for rows
            without one. A solver may use it; the programme means the same without.
        method: one method of the family on its own, a name of :mod:`attsvm.solvers.choice`; ``None`` for the whole cascade.
    """

    tol: float
    slack: float | None
    warm_start: FloatArray | None
    max_seconds: float | None
    opposite: IntArray | None = None
    method: str | None = None
    warm_weights: FloatArray | None = None
    warm_step: float | None = None


@dataclass(frozen=True, eq=False)
class MarginSolution:
    r"""The solution of ``minimise ||W|| subject to <A_c, W> >= b_c`` with its proof.

    Attributes:
        margins: the programme that was solved.
        status: ``optimal`` promises ``gap`` and ``violation`` within ``tol``; ``infeasible`` promises that ``dual`` is a
            Farkas certificate (see :meth:`farkas_residual`); ``inaccurate`` promises nothing beyond the numbers shown
            (also when the margins of such large weights drown in rounding, whatever the numbers show).
        W: ``(d_x, d_z)``, scaled so that the smallest margin meets its right-hand side; zeros when infeasible.
        norm: :math:`\|W\|` in the norm of the programme; ``inf`` when infeasible.
        dual: ``(m,)``, :math:`\lambda\ge 0`, of any sign on equalities. For the Frobenius norm
            :math:`W=\sum_c\lambda_c A_c` at the optimum.
        gap: rigorous relative duality gap, computed from ``W`` and ``dual`` and the original data; 1 proves nothing.
            Hard margin: ``1 - lower / ||W||`` with the lower bound of :func:`attsvm.solvers.certificates.lower_bound`.
            Soft margin: ``(primal - dual) / primal`` of the objective.
        violation: largest :math:`b_c - \langle A_c, W\rangle - \xi_c` (0 when none is positive). ``optimal`` promises that it is within
            ``tol`` times the largest power of two that is not above the largest :math:`b_c`.
        support: sorted positions of the constraints that hold with equality (to ``1e-5`` relative), zero dual included;
            for the soft margin also those that are missed; when infeasible, those of the certificate.
        tol: the tolerance that was asked for.
        slack: the penalty C of the soft margin, ``None`` for the hard margin.
        slacks: ``(m,)`` how far each constraint is missed; zeros for the hard margin.
        solver: which algorithm produced it.
        iterations: epochs or iterations it took.
        message: one sentence for a person.
        rank: numerical rank of ``W`` at relative tolerance 1e-3 (norms of singular values only, else ``None``).
        rank_bound: nuclear norm only: proved from gap and multipliers that *every* solution has numerical rank at most this, see
            :mod:`attsvm.solvers.rank`; ``None`` when nothing is proved.
        rank_proved: nuclear norm only: *every* solution has exactly this numerical rank, because its singular values lie in intervals
            on one side of the threshold, see :mod:`attsvm.solvers.isolated`; ``None`` when that is not proved.
        unique: True when ``W`` is the only solution, False when it is shown not to be, ``None`` when that was not decided.
        geometry: the norm that was minimised.
        second_opinion: what another solver says, when ``verify`` asked for it. A disagreement makes the status ``inaccurate``.
        step: step with which the splitting of the Schatten norms ended; a warm start goes on with it.
    """

    margins: Margins
    status: Status
    W: FloatArray
    norm: float
    dual: FloatArray
    gap: float
    violation: float
    support: IntArray
    tol: float
    slack: float | None
    slacks: FloatArray
    solver: str
    iterations: int
    message: str
    rank: int | None = None
    rank_bound: int | None = None
    rank_proved: int | None = None
    unique: bool | None = None
    geometry: Norm = Frobenius()  # noqa: RUF009 - norms are immutable
    second_opinion: SecondOpinion | None = None
    step: float | None = None

    @property
    def margin(self) -> float:
        r"""The margin :math:`1/\|W\|` of the unit-norm direction (for right-hand sides of one); 0 when infeasible."""
        return 0.0 if self.norm == np.inf or self.norm == 0.0 else 1.0 / self.norm

    def support_tokens(self) -> IntArray:
        """``(k, 2)``: sequence and token of each constraint in :attr:`support`, by falling multiplier."""
        order = self.support[np.argsort(-np.abs(self.dual[self.support]), kind="stable")]
        return np.stack([self.margins.sequence[order], self.margins.token[order]], axis=1).astype(np.int64)

    def angle_bound(self) -> float:
        r"""An upper bound, in radians, on the angle between :attr:`W` and the exact Frobenius solution :math:`W^\star`.

        Hard margin: :math:`W^\star` is the point of least norm of a convex set that holds :math:`W` (or, when a margin falls short
        by rounding, a multiple of it), so :math:`\langle W^\star, W-W^\star\rangle\ge0` and
        :math:`\cos\angle\ge\|W^\star\|/\|W\|\ge\text{lower}/\|W\|=1-\text{gap}` (all in the Frobenius norm, whatever
        norm was minimised); with :math:`1-\cos\theta=2\sin^2(\theta/2)` the angle is at most :math:`2\arcsin\sqrt{\text{gap}/2}`.
        Soft margin: the objective is 1-strongly convex, so
        :math:`\|W-W^\star\|\le\sqrt{2(\text{primal}-\text{dual})}` and the sine of the angle is at most that over :math:`\|W\|`.
        The gap is taken no smaller than the rounding of its own evaluation, so the bound never falls below about 1e-7.
        Equalities and right-hand sides of zero that are missed by rounding are taken as met. Returns pi when nothing is proved.
        """
        if self.status == "infeasible" or self.norm == 0.0:
            return math.pi
        near, rounding = self.near(), 16.0 * float(np.finfo(np.float64).eps)
        if near.slack is not None:
            primal = 0.5 * near.norm**2 + near.slack * float(near.slacks.sum())
            sine = math.sqrt(2.0 * max(self.gap, rounding) * primal) / near.norm
            return math.asin(sine) if sine < 1.0 else math.pi
        positive = (near.margins.rhs > 0) & ~near.margins.equalities
        ratio = float((near.margins(near.W)[positive] / near.margins.rhs[positive]).min(initial=1.0))
        if not ratio > 0.0:
            return math.pi
        # For another norm the gap says nothing about angles; the Frobenius gap of the same weights and multipliers does.
        lower = lower_bound(near.margins, Frobenius(), near.dual) / float(Frobenius().value(near.W))
        gap = 1.0 - lower * min(ratio, 1.0)
        return 2.0 * math.asin(math.sqrt(min(max(gap, rounding), 2.0) / 2.0))

    def kkt(self) -> Residuals:
        """Residuals of the optimality conditions in the norm that was minimised; all ``inf`` when infeasible."""
        return residuals_of(self)

    def near(self) -> MarginSolution:
        """The same solution at a scale near one, where squares and products stay within float64; see :mod:`attsvm.solvers.scaling`."""
        near = scaled(self.margins)
        if near.margins is self.margins:
            return self
        W, dual = np.ldexp(self.W, -near.weights), np.ldexp(self.dual, -near.multipliers)
        slack = None if self.slack is None else near.penalty(self.slack)
        norm = math.ldexp(self.norm, -near.weights)
        return replace(self, margins=near.margins, W=W, norm=norm, dual=dual, slack=slack, slacks=np.ldexp(self.slacks, -near.sides))

    def farkas_residual(self) -> float:
        """See :func:`attsvm.solvers.certificates.farkas_residual`: at rounding level exactly when ``dual`` proves that no weights exist."""
        return farkas_residual(self.margins, self.dual)

    def conflict(self) -> IntArray:
        """``(k, 3)``: sequence, its selected token and the rival token of every constraint in the contradiction, by falling multiplier.

        At most ``d_x d_z + 1`` rows unless the programme is too large to reduce. Empty when the status is not ``infeasible``.
        """
        if self.status != "infeasible":
            return np.zeros((0, 3), dtype=np.int64)
        dual = _few_rows(scaled(self.margins).margins, self.dual)
        rows = np.flatnonzero(dual)
        rows = rows[np.argsort(-np.abs(dual[rows]), kind="stable")]
        sequence = self.margins.sequence[rows]
        return np.stack([sequence, self.margins.selected[sequence], self.margins.token[rows]], axis=1).astype(np.int64)


def solved(margins: Margins, found: Certificate, request: Request, solver: str, iterations: int) -> MarginSolution:
    """The solution of a certificate: ``optimal`` when gap and violation are within the tolerance, else ``inaccurate``."""
    short = np.maximum(margins.rhs - found.values, 0.0)
    slacks = short if request.slack is not None else np.zeros(margins.m)
    close = (found.values <= margins.rhs + _SUPPORT * np.where(margins.rhs > 0, margins.rhs, 1.0)) | margins.equalities
    blurred = found.rounding > max(request.tol, _BLUR)
    status: Status = "optimal" if kept(found.error, found.rounding, request.tol) else "inaccurate"
    figures = _figures(found.norm, found.gap, found.violation)
    if status == "optimal":
        message = f"optimal: {figures} ({int(close.sum())} of {margins.m} constraints support it)"
    elif found.gap == 1.0:
        message = f"inaccurate: neither weights that meet every margin nor a contradiction was found (violation {found.violation:.1e})"
    elif blurred:
        message = (
            f"inaccurate: margins of such weights have a rounding error of {found.rounding:.1e} ({figures}); clean or rescale the data"
        )
    else:
        message = f"inaccurate: the tolerance {request.tol:.1e} was not reached ({figures}); allow more time or a larger tol"
    return MarginSolution(
        margins=margins,
        status=status,
        W=found.W,
        norm=found.norm,
        dual=found.dual,
        gap=found.gap,
        violation=found.violation,
        support=np.flatnonzero(close),
        tol=request.tol,
        slack=request.slack,
        slacks=slacks,
        solver=solver,
        iterations=iterations,
        message=message,
    )


def _figures(norm: float, gap: float, violation: float) -> str:
    return f"norm {norm:.6g}, gap {gap:.1e}, violation {violation:.1e}"


def rescaled(found: MarginSolution, margins: Margins, near: Scaling) -> MarginSolution:
    """The solution of ``near.margins`` as the solution of ``margins``: gap and status are those of both.

    Raises:
        InputError: weights or multipliers that are not float64 numbers at the scale of ``margins``.
    """
    slack = None if found.slack is None else math.ldexp(found.slack, near.multipliers)
    if found.status == "infeasible":  # a certificate has no scale
        return replace(found, margins=margins, slack=slack, violation=float(np.abs(margins.rhs).max()))
    W, dual = near.restored(found.W, found.dual)
    norm, violation = math.ldexp(found.norm, near.weights), math.ldexp(found.violation, near.sides)
    message = found.message.replace(_figures(found.norm, found.gap, found.violation), _figures(norm, found.gap, violation))
    return replace(
        found,
        margins=margins,
        W=W,
        norm=norm,
        dual=dual,
        violation=violation,
        slack=slack,
        slacks=np.ldexp(found.slacks, near.sides),
        message=message.replace(f"(violation {found.violation:.1e})", f"(violation {violation:.1e})"),
    )


@overload
def kept(error: float, rounding: float, tol: float) -> bool: ...


@overload
def kept(error: FloatArray, rounding: FloatArray, tol: float) -> BoolArray: ...


def kept(error: float | FloatArray, rounding: float | FloatArray, tol: float) -> bool | BoolArray:
    """Whether the promise of ``optimal`` holds: gap and violation within the tolerance, and margins that do not drown in rounding."""
    return (error <= tol) & (rounding <= max(tol, _BLUR))


def zero_solution(margins: Margins, norm: Norm, request: Request) -> MarginSolution:
    """Zero weights, optimal because no right-hand side is positive."""
    W = np.zeros(margins.shape)
    close = np.flatnonzero(margins.rhs <= _SUPPORT)
    reason = "no sequence has a rival token" if margins.m == 0 else "no right-hand side is positive"
    return MarginSolution(
        margins=margins,
        status="optimal",
        W=W,
        norm=float(norm.value(W)),
        dual=np.zeros(margins.m),
        gap=0.0,
        violation=0.0,
        support=close,
        tol=request.tol,
        slack=request.slack,
        slacks=np.zeros(margins.m),
        solver="inspection",
        iterations=0,
        message=f"optimal: {reason}, so the zero weights are the solution",
    )


def infeasible_solution(
    margins: Margins, dual: FloatArray, request: Request, solver: str, iterations: int, *, minimal: bool = False
) -> MarginSolution:
    """The verdict that no weights meet the margins, with its certificate (scaled to a largest entry of one).

    A ``minimal`` certificate is known to need all of its rows; others are reduced when that is cheap.
    """
    dual = dual / np.abs(dual).max()
    if not minimal and np.count_nonzero(dual) <= _CHEAP_REDUCTION:
        dual = _few_rows(margins, dual)
    return MarginSolution(
        margins=margins,
        status="infeasible",
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
        message=f"infeasible: {contradiction(margins, dual)}",
    )


def _few_rows(margins: Margins, dual: FloatArray) -> FloatArray:
    """The certificate on as few rows as Carathéodory's theorem allows."""
    if np.count_nonzero(dual) <= 2 or margins.equalities.any():
        return dual
    from attsvm.solvers.infeasibility import reduced
    from attsvm.solvers.programme import equilibrate

    programme = equilibrate(margins, None)
    few = programme.restored(np.zeros((1, 1)), reduced(programme, programme.scaled_dual(dual)))[1]
    few = few / few.max()
    return few if farkas_residual(margins, few) <= max(1e-13, farkas_residual(margins, dual)) else dual
