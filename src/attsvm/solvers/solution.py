"""What a solver hands back: the weights together with everything needed to check them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from attsvm.base.presentation import html_cell, plot
from attsvm.datasets.attention_data import FloatArray, IntArray
from attsvm.margins import Margins
from attsvm.norms import Frobenius, Norm
from attsvm.solvers.optimality_checks import Residuals, residuals_of
from attsvm.solvers.proofs import farkas_residual, lower_bound
from attsvm.solvers.scaling import scaled

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Status = Literal["optimal", "infeasible", "almost infeasible", "inaccurate"]


@dataclass(frozen=True, eq=False)
class MarginSolution:
    r"""The solution of ``minimise ||W|| subject to <A_c, W> >= b_c`` with its proof.

    Attributes:
        margins: the programme that was solved.
        status: ``optimal`` promises ``gap`` and ``violation`` within ``tol``; ``infeasible``
            promises that no weights exist, which is proved exactly (see
            :mod:`attsvm.solvers.farkas`), and ``dual`` is that proof up to rounding;
            ``almost infeasible`` promises that weights that meet the margins, if any exist, hold
            terms so much larger than a margin that rounding them to float64 may cost more than
            ``tol``: one over :meth:`farkas_residual` times as large; ``inaccurate`` promises
            nothing beyond the numbers shown.
        W: ``(d_x, d_z)``, scaled so that the smallest margin meets its right-hand side; zeros when
            there are none (:attr:`has_weights`).
        norm: :math:`\|W\|` in the norm of the programme; ``inf`` when there are no weights.
        dual: ``(m,)``, :math:`\lambda\ge 0`, of any sign on equalities. For the Frobenius norm
            :math:`W=\sum_c\lambda_c A_c` at the optimum.
        gap: rigorous relative duality gap, computed from ``W`` and ``dual`` and the original data;
            1 proves nothing. Hard margin: ``1 - lower / ||W||`` with the lower bound of
            :func:`attsvm.solvers.proofs.lower_bound`. Soft margin:
            ``(primal - dual) / primal`` of the objective.
        violation: largest :math:`b_c - \langle A_c, W\rangle - \xi_c` (0 when none is positive).
            ``optimal`` promises that it is within ``tol`` times the largest power of two that is
            not above the largest :math:`b_c`.
        support: sorted positions of the constraints that hold with equality (to ``1e-5`` relative),
            zero dual included; for the soft margin also those that are missed; when infeasible,
            those of the certificate.
        tol: the tolerance that was asked for.
        slack: the penalty C of the soft margin, ``None`` for the hard margin.
        slacks: ``(m,)`` how far each constraint is missed; zeros for the hard margin.
        solver: which algorithm produced it.
        iterations: epochs or iterations it took.
        rank: numerical rank of ``W`` at relative tolerance 1e-3 (norms of singular values only,
            else ``None``).
        rank_bound: nuclear norm only: proved from gap and multipliers that *every* solution has
            numerical rank at most this, see
            :mod:`attsvm.solvers.optimality_checks`; ``None`` when nothing is proved.
        unique: True when ``W`` is the only solution, False when it is shown not to be, ``None``
            when that was not decided.
        geometry: the norm that was minimised.
        constraints: of a programme of blocks, whose ``margins``, ``dual`` and ``support`` are
            those of the last working set: how many rows ``gap`` and ``violation`` speak of;
            ``None`` for all other programmes.
        passes: how often the blocks were made or read.
        out_of_time: whether ``max_seconds`` ended an ``inaccurate`` solution; where it is False,
            more time changes nothing.
        blocks: how many blocks the programme had.
        reason: why nothing was computed, where the solution leaves float64.

    Example:
        >>> import attsvm
        >>> toy = attsvm.datasets.toy("plane")
        >>> margins = attsvm.selection_margins(toy.data, attsvm.optimal_tokens(toy.data, toy.head))
        >>> solution = attsvm.max_margin(margins)
        >>> solution.W.round(3).tolist()
        [[2.854, -2.703], [5.371, 5.581]]
        >>> solution.status, bool(solution.gap < 1e-9), bool(solution.violation < 1e-9)
        ('optimal', True, True)
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
    rank: int | None = None
    rank_bound: int | None = None
    unique: bool | None = None
    geometry: Norm = Frobenius()  # noqa: RUF009 - norms are immutable
    constraints: int | None = None
    passes: int | None = None
    out_of_time: bool = False
    blocks: int | None = None
    reason: str | None = None

    def __repr__(self) -> str:
        constraints, sequences = self.constraints or self.margins.m, self.margins.n
        return (
            f"MarginSolution({self.status}, norm={self.norm:.6g}, geometry={self.geometry!r},"
            f" W {self.W.shape[0]} x {self.W.shape[1]}, {constraints} constraints of {sequences}"
            f" sequences, {len(self.support)} support, gap={self.gap:.1e},"
            f" violation={self.violation:.1e})"
        )

    def _repr_html_(self) -> str:
        return html_cell(self)

    def plot(self, ax: Axes | None = None) -> Axes:
        """A picture: the half-planes of a prompt in the plane, weights ``(2, 1)``; of other weights
        the smallest margin of every sequence.

        Args:
            ax: where to draw; new axes of pyplot when left out.

        Raises:
            InputError: an infeasible programme outside of the plane.
        """
        return plot("solution", self, ax)

    def save(self, path: str | Path) -> None:
        """Write the solution and its programme to ``.npz`` or ``.safetensors``; :meth:`load` gives
        the same bits back.

        Raises:
            InputError: another suffix, or a file that cannot be written.
        """
        from attsvm.solvers.saving import save_solution

        save_solution(self, path)

    @classmethod
    def load(cls, path: str | Path) -> MarginSolution:
        """The solution of a file that :meth:`save` wrote.

        Raises:
            InputError: no such file, or one that holds no solution.
        """
        from attsvm.solvers.saving import load_solution

        return load_solution(path, cls)

    @property
    def message(self) -> str:
        """One sentence for a person: status, norm, gap, violation and support, or what contradicts
        what, as the other fields have it.
        """
        from attsvm.solvers.messages import describe_solution

        return describe_solution(self)

    @property
    def has_weights(self) -> bool:
        """False when :attr:`W` is zeros because no weights were found: ``infeasible``, and ``almost
        infeasible`` without any.
        """
        return not math.isinf(self.norm)

    @property
    def margin(self) -> float:
        r"""The margin :math:`1/\|W\|` of the unit-norm direction (for right-hand sides of one); 0
        when infeasible.
        """
        return 0.0 if self.norm == np.inf or self.norm == 0.0 else 1.0 / self.norm

    def support_tokens(self) -> IntArray:
        """Sequence and token of each constraint in :attr:`support`, ``(k, 2)``, by falling
        multiplier.
        """
        order = self.support[np.argsort(-np.abs(self.dual[self.support]), kind="stable")]
        sequence = self._numbers[self.margins.sequence[order]]
        return np.stack([sequence, self.margins.token[order]], axis=1).astype(np.int64)

    @property
    def _numbers(self) -> IntArray:
        """Numbers of the sequences, ``(n,)``."""
        numbers = self.margins.numbers
        return np.arange(self.margins.n) if numbers is None else numbers

    def angle_bound(self) -> float:
        r"""An upper bound, in radians, on the angle between :attr:`W` and the exact Frobenius
        solution :math:`W^\star`.

        Hard margin: :math:`W^\star` is the point of least norm of a convex set that holds :math:`W`
        (or, when a margin falls short by rounding, a multiple of it), so
        :math:`\langle W^\star, W-W^\star\rangle\ge0` and
        :math:`\cos\angle\ge\|W^\star\|/\|W\|\ge\text{lower}/\|W\|=1-\text{gap}` (all in the
        Frobenius norm, whatever norm was minimised); with :math:`1-\cos\theta=2\sin^2(\theta/2)`
        the angle is at most :math:`2\arcsin\sqrt{\text{gap}/2}`. Soft margin: the objective is
        1-strongly convex, so
        :math:`\|W-W^\star\|\le\sqrt{2(\text{primal}-\text{dual})}` and the sine of the angle is at
        most that over :math:`\|W\|`. The gap is taken no smaller than the rounding of its own
        evaluation, so the bound never falls below about 1e-7. Equalities and right-hand sides of
        zero that are missed by rounding are taken as met. Returns pi when nothing is proved.
        """
        if not self.has_weights or self.norm == 0.0:
            return math.pi
        near, rounding = self.near(), 16.0 * float(np.finfo(np.float64).eps)
        if near.slack is not None:
            primal = 0.5 * near.norm**2 + near.slack * float(near.slacks.sum())
            sine = math.sqrt(2.0 * max(self.gap, rounding) * primal) / near.norm
            return math.asin(sine) if sine < 1.0 else math.pi
        positive = (near.margins.rhs > 0) & ~near.margins.equalities
        ratio = float(
            (near.margins(near.W)[positive] / near.margins.rhs[positive]).min(initial=1.0)
        )
        if not ratio > 0.0:
            return math.pi
        # For another norm the gap says nothing about angles; the Frobenius gap of the same weights
        # and multipliers does.
        lower = lower_bound(near.margins, Frobenius(), near.dual) / float(Frobenius().value(near.W))
        gap = 1.0 - lower * min(ratio, 1.0)
        return 2.0 * math.asin(math.sqrt(min(max(gap, rounding), 2.0) / 2.0))

    def kkt(self) -> Residuals:
        """Residuals of the optimality conditions in the norm that was minimised; all ``inf`` when
        infeasible.
        """
        if not self.has_weights:
            return Residuals(np.inf, np.inf, np.inf, np.inf)
        near = self.near()
        return residuals_of(near.margins, near.geometry, near.W, near.dual, near.slack, near.slacks)

    def near(self) -> MarginSolution:
        """The solution at a scale near one, where squares and products stay within float64;
        see :mod:`attsvm.solvers.scaling`.
        """
        near = scaled(self.margins)
        if near.margins is self.margins:
            return self
        W, dual = np.ldexp(self.W, -near.weights), np.ldexp(self.dual, -near.multipliers)
        slack = None if self.slack is None else near.penalty(self.slack)
        norm = math.ldexp(self.norm, -near.weights)
        return replace(
            self,
            margins=near.margins,
            W=W,
            norm=norm,
            dual=dual,
            violation=math.ldexp(self.violation, -near.sides),
            slack=slack,
            slacks=np.ldexp(self.slacks, -near.sides),
        )

    def farkas_residual(self) -> float:
        """How far ``dual`` is from a contradiction, relative to its own terms; at rounding level
        when ``infeasible``. See :func:`attsvm.solvers.proofs.farkas_residual`.
        """
        return farkas_residual(self.margins, self.dual)

    def conflict(self) -> IntArray:
        """Sequence, its selected token and the rival token of every constraint in the
        contradiction, ``(k, 3)``, by falling multiplier.

        At most ``d_x d_z + 1`` rows. Empty when the status is neither ``infeasible`` nor ``almost
        infeasible``.
        """
        if self.status not in ("infeasible", "almost infeasible"):
            return np.zeros((0, 3), dtype=np.int64)
        rows = np.flatnonzero(self.dual)
        rows = rows[np.argsort(-np.abs(self.dual[rows]), kind="stable")]
        sequence = self.margins.sequence[rows]
        return np.stack(
            [self._numbers[sequence], self.margins.selected[sequence], self.margins.token[rows]],
            axis=1,
        ).astype(np.int64)
