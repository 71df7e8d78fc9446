"""What a training of a next-token model leaves: weights at the records, and what is read off
them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from attsvm.data import FloatArray, IntArray
from attsvm.dynamics.next_token.problem import Problem
from attsvm.dynamics.trajectory import direction_gap
from attsvm.geometry import Frobenius
from attsvm.printable import Compact

if TYPE_CHECKING:
    from attsvm.solvers.solution import MarginSolution


@dataclass(frozen=True, eq=False, repr=False)
class Course(Compact):
    r"""The recorded course of one matrix. ``R`` records.

    Attributes:
        steps: ``(R,)``, steps taken when the record was made; the first is 0.
        W: ``(R, runs, rows, d)``, the weights.
        stopped_at: ``(runs,)``, the step whose gradient was exactly zero, or so small beside the
            loss that Polyak's step is beyond all numbers (where the loss is not convex); the run
            stayed there. -1 if there was none.
        rises: ``(runs,)``, steps at which the loss had risen, or None when it was not watched.
        last_rise: ``(runs,)``, the last such step, -1 if there was none; None when the loss was not
            watched.
    """

    steps: IntArray
    W: FloatArray
    stopped_at: IntArray
    rises: IntArray | None = None
    last_rise: IntArray | None = None

    @property
    def norm(self) -> FloatArray:
        """``(R, runs)``, Frobenius norms."""
        return Frobenius().value(self.W)

    def direction_error(
        self, target: ArrayLike | MarginSolution | Sequence[MarginSolution]
    ) -> FloatArray:
        r""":math:`\|W/\|W\|-W^\star/\|W^\star\|\|_F`, ``(R, runs)``; :math:`\sqrt2` where either is
        zero. See :func:`direction_gap`.
        """
        return np.sqrt(2.0 * direction_gap(self.W, target))

    def cosine(self, target: ArrayLike | MarginSolution | Sequence[MarginSolution]) -> FloatArray:
        """Cosine to a target, ``(R, runs)``; 0 where either is zero."""
        return 1.0 - direction_gap(self.W, target)


@dataclass(frozen=True, eq=False, repr=False)
class AttentionCourse(Course):
    """The course of the query-key matrix, with the problem that it was trained on.

    Attributes:
        problem: sentences, values and loss.
        values: ``(R, runs, K, classes)`` where the value table was trained too, None where it was
            the problem's own.
        factors: the trained factors by name, ``(R, runs, ...)``, where W is a product.
    """

    problem: Problem = field(kw_only=True)
    values: FloatArray | None = field(default=None, kw_only=True)
    factors: dict[str, FloatArray] = field(default_factory=dict, kw_only=True)

    @cached_property
    def log_gap(self) -> FloatArray:
        """``(R, runs)``, logarithm of the loss over its floor; NaN below it. See
        :meth:`Problem.log_gap`.
        """
        return self.problem.log_gap(self.W, self.values)

    @property
    def loss(self) -> FloatArray:
        """``(R, runs)``; differences of it round, so ask :attr:`log_gap` about rates."""
        sign, log = self.problem.gap(self.W, self.values)
        return self.problem.floor(self.values) + sign * np.exp(log)

    @cached_property
    def log_missing(self) -> FloatArray:
        r"""``(R, runs)``, logarithm of the largest :math:`1-\varphi_{x_\star}` over the sentences
        of a run.
        """
        return np.maximum.reduceat(
            self.problem.log_missing(self.W), self.problem.run_start[:-1], axis=-1
        )

    def alignment(self, targets: Sequence[MarginSolution] | ArrayLike) -> FloatArray:
        r"""Cosine of :math:`-\nabla L` and the target, ``(R, runs)``; NaN where the gradient is
        exactly zero.
        """
        W: Any = targets
        if not isinstance(W, np.ndarray):
            W = np.stack([one.W for one in W])
        G, _ = self.problem.gradient(self.W, self.values)
        size = Frobenius().value(G) * Frobenius().value(W)
        with np.errstate(invalid="ignore", divide="ignore"):
            found: FloatArray = -np.sum(G * W, axis=(-2, -1)) / size
        return found


@dataclass(frozen=True, eq=False, repr=False)
class OutputCourse(Course):
    r"""The course of the output matrix; ``W`` is ``(R, runs, classes, d)``.

    Attributes:
        loss: ``(R, runs)``, cross-entropy of the single tokens, exact to a relative 1e-15 at any
            size (:math:`\log1p` of odds).
    """

    loss: FloatArray = field(kw_only=True)
