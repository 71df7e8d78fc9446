"""Trajectories of the training of next-token models: weights at the records, norms, cosines and
losses there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from attsvm.base.printable import Compact
from attsvm.datasets.attention_data import FloatArray, IntArray
from attsvm.norms import Frobenius
from attsvm.theory.next_token.problem import Problem
from attsvm.training.trajectory import direction_gap

if TYPE_CHECKING:
    from attsvm.solvers.solution import MarginSolution


@dataclass(frozen=True, eq=False, repr=False)
class WeightTrajectory(Compact):
    r"""The recorded weights of one matrix. ``R`` records.

    Attributes:
        steps: ``(R,)``, steps taken when the record was made; the first is 0.
        W: ``(R, runs, rows, d)``, the weights.
        stopped_at: ``(runs,)``, the step whose gradient was exactly zero, or so small beside the
            loss that Polyak's step is beyond all numbers (where the loss is not convex); the run
            stayed there. -1 if there was none.
        rises: ``(runs,)``, steps at which the loss had risen, or None when it was not watched.

    Example:
        >>> import attsvm
        >>> from attsvm.theory.sentences import priority_graph
        >>> from attsvm.theory.next_token import Problem, StepRule, WeightTrajectory
        >>> from attsvm.theory.next_token import attention_stage
        >>> data = priority_graph(n=4, T=3, K=5, d=6, seed=0, cyclic=False)
        >>> trajectory = attention_stage(Problem.of(data, "log_mass"), StepRule(0.05), steps=200)
        >>> isinstance(trajectory, WeightTrajectory)
        True
        >>> bool(trajectory.norm[-1, 0] > trajectory.norm[0, 0])
        True
    """

    steps: IntArray
    W: FloatArray
    stopped_at: IntArray
    rises: IntArray | None = None

    @property
    def norm(self) -> FloatArray:
        """Frobenius norms ``(R, runs)``."""
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
class AttentionTrajectory(WeightTrajectory):
    """The trajectory of the query-key matrix, with the problem that it was trained on.

    Attributes:
        problem: sentences, values and loss.
        values: ``(R, runs, K, classes)`` where the value table was trained too, None where it was
            the problem's own.
        factors: the trained factors by name, ``(R, runs, ...)``, where W is a product.

    Example:
        >>> import attsvm
        >>> from attsvm.theory.sentences import priority_graph
        >>> from attsvm.theory.next_token import Problem, StepRule, attention_stage
        >>> data = priority_graph(n=4, T=3, K=5, d=6, seed=0, cyclic=False)
        >>> trajectory = attention_stage(Problem.of(data, "log_mass"), StepRule(0.05), steps=200)
        >>> trajectory.W.shape[1:], bool(trajectory.loss[-1, 0] < trajectory.loss[0, 0])
        ((1, 6, 6), True)
    """

    problem: Problem = field(kw_only=True)
    values: FloatArray | None = field(default=None, kw_only=True)
    factors: dict[str, FloatArray] = field(default_factory=dict, kw_only=True)

    @cached_property
    def log_gap(self) -> FloatArray:
        """Logarithm of the loss over its floor ``(R, runs)``; NaN below it. See
        :meth:`Problem.log_gap`.
        """
        return self.problem.log_gap(self.W, self.values)

    @property
    def loss(self) -> FloatArray:
        """The loss ``(R, runs)``; its differences round, so ask :attr:`log_gap` about rates."""
        sign, log = self.problem.gap(self.W, self.values)
        return self.problem.floor(self.values) + sign * np.exp(log)

    @cached_property
    def log_missing(self) -> FloatArray:
        r"""Logarithm of the largest :math:`1-\varphi_{x_\star}` over the sentences of a run ``(R,
        runs)``.
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
            W = np.stack([solution.W for solution in W])
        G, _ = self.problem.gradient(self.W, self.values)
        size = Frobenius().value(G) * Frobenius().value(W)
        with np.errstate(invalid="ignore", divide="ignore"):
            cosine: FloatArray = -np.sum(G * W, axis=(-2, -1)) / size
        return cosine


@dataclass(frozen=True, eq=False, repr=False)
class OutputTrajectory(WeightTrajectory):
    r"""The trajectory of the output matrix; ``W`` is ``(R, runs, classes, d)``.

    Attributes:
        loss: ``(R, runs)``, cross-entropy of the single tokens, exact to a relative 1e-15 at any
            size (:math:`\log1p` of odds).
        factors: the trained factors by name, ``(R, runs, ...)``, where W is a product.

    Example:
        >>> from attsvm.theory.sentences import NextTokenData
        >>> from attsvm.theory.next_token import StepRule, output_stage
        >>> data = NextTokenData.from_words(
        ...     ["fox", "hen", "eats", "hen fox eats"], ["runs", "clucks", "much", "runs"]
        ... )
        >>> import attsvm
        >>> trajectory = output_stage(data, StepRule(0.05), steps=2000)
        >>> best = attsvm.max_margin(attsvm.output_margins(data.embeddings, data.following))
        >>> bool(trajectory.cosine(best)[-1, 0] > 0.99)
        True
    """

    loss: FloatArray = field(kw_only=True)
    factors: dict[str, FloatArray] = field(default_factory=dict, kw_only=True)
