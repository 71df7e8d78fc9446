"""What a fitted model selects, and the max-margin programme of these selections.

A layer that attends goes on alone, its head at unit norm, by the descent that belongs to a norm
(:mod:`attsvm.sklearn.stage`), until each bag selects one instance. A model of witnesses
has selected already. The max-margin programme of the selections is then solved in that norm, with a
certificate.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from attsvm.base.errors import InputError
from attsvm.base.ranges import LONGEST_STEP
from attsvm.datasets.attention_data import AttentionData, FloatArray, IntArray, given_away
from attsvm.margins import Margins, selection_margins
from attsvm.norms import Norm
from attsvm.sklearn.preparation import check_selectable, selection_steps, units
from attsvm.sklearn.stage import (
    Progress,
    StageOptions,
    Weights,
    argmax_tokens,
    check_step,
    descent_kind,
    run_stage,
    selection_descent,
    step_length,
)
from attsvm.solvers import MarginSolution, Status, max_margin

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from attsvm.training import Trajectory


@dataclass(frozen=True)
class Limits:
    """What selection and margin may take.

    Attributes:
        steps: of the selection stage; None for 100 to 8000, at most ten seconds of a core.
        lr: length of such a step in the norm; None for
            :func:`attsvm.sklearn.stage.step_length`.
        slack: penalty C of the soft margin, used only when the hard margin is infeasible.
        tol: relative duality gap asked of the solution; None for the default of
            :func:`~attsvm.max_margin`.
        seconds: time after which the solver hands over the best certified weights it has.

    >>> from attsvm.sklearn import Limits
    >>> Limits(steps=500)
    Limits(steps=500, lr=None, slack=1.0, tol=None, seconds=600.0)
    """

    steps: int | None = None
    lr: float | None = None
    slack: float = 1.0
    tol: float | None = None
    seconds: float = 600.0

    def __post_init__(self) -> None:
        if self.steps is not None and (not isinstance(self.steps, int) or self.steps < 1):
            raise InputError(f"steps is {self.steps!r}; give a whole number of at least 1, or None")
        if self.lr is not None and not 0.0 < self.lr <= LONGEST_STEP:
            raise InputError(f"lr is {self.lr!r}; it must be above 0 and at most {LONGEST_STEP:g}")
        for name in ("slack", "tol", "seconds"):
            value = getattr(self, name)
            if value is not None and not value > 0.0:
                raise InputError(f"{name} is {value!r}; it must be above 0")


@dataclass(frozen=True, eq=False)
class Explanation:
    """What bags select, and the certified margin of it.

    Attributes:
        data: the bags as sequences, repeated instances masked; of witnesses with a null token at
            the end of each, and a constant feature of four times the root-mean-square norm of
            instances.
        selected: ``(n,)``: the position of the selected instance in each bag.
        solution: the :class:`~attsvm.MarginSolution` of the selections, with weights, margin,
            status, gap and multipliers.
        margins: ``(n,)``: how far the selected instance of each bag is ahead of its nearest rival,
            for weights of norm one; ``inf`` for bags without a rival.
        support: ``(k, 2)``: bag and instance of every support constraint, by falling multiplier.
        hard_status: the status of the hard margin. Where it is ``infeasible`` or ``almost
            infeasible``, ``solution`` is of the soft one.
        weights: attention and head at the end of the selection stage; None of witnesses.
        trajectory: records of that stage; None of witnesses.
        lr: length of its steps, in the norm; None of witnesses.

    >>> from attsvm.datasets import planted_witnesses
    >>> from attsvm.sklearn import WitnessSVC
    >>> bags = planted_witnesses("linear", n=40, instances=5, seed=0, d=3)
    >>> found = WitnessSVC(penalty=0.01).fit(bags, bags.labels).explain(bags)
    >>> found.solution.status, found.selected.shape, found.support.shape[1]
    ('optimal', (40,), 2)
    """

    data: AttentionData
    selected: IntArray
    solution: MarginSolution
    margins: FloatArray
    support: IntArray
    hard_status: Status
    weights: Weights | None
    trajectory: Trajectory | None
    lr: float | None = None

    def __repr__(self) -> str:
        return (
            f"Explanation({len(self.selected)} bags, {self.solution.status}, margin"
            f" {self.solution.margin:.4g}, {len(self.support)} support instances)"
        )

    def plot(self, ax: Axes | None = None) -> Axes:
        """How many bags have which margin, the smallest marked; on these axes, or new ones of
        pyplot.

        Raises:
            InputError: no bag has a rival.
        """
        from attsvm.report.plots import axes_of
        from attsvm.report.style import INK, histogram

        margins = self.margins[np.isfinite(self.margins)]
        if not len(margins):
            raise InputError("no bag has a rival to its selected instance, so there is no margin")
        axes, smallest = axes_of(ax), float(margins.min())
        histogram(axes, margins, min(smallest, 0.0), float(np.quantile(margins, 0.98)))
        axes.axvline(smallest, color=INK, linewidth=0.9, linestyle=(0, (3, 2)))
        axes.set(xlabel="margin over the nearest rival, weights of norm one", ylabel="bags")
        axes.set_title(f"{self.solution.status}, smallest margin {smallest:.3g}")
        return axes


def explanation(
    data: AttentionData,
    selected: IntArray,
    certified: tuple[MarginSolution, Status],
    weights: Weights | None = None,
    trajectory: Trajectory | None = None,
    lr: float | None = None,
) -> Explanation:
    """With margins and support read off what :func:`certify` found."""
    solution, hard_status = certified
    margins = smallest_margins(solution.margins, solution.W, solution.geometry)
    support = solution.support_tokens()
    return Explanation(
        data, selected, solution, margins, support, hard_status, weights, trajectory, lr
    )


def explain_attention(
    sequences: Callable[[], AttentionData],
    start: Weights,
    norm: Norm,
    limits: Limits,
    options: StageOptions,
) -> Explanation:
    """What attention selects when it is trained on alone, and the margin of that.

    1. Bring tokens and queries to a root-mean-square norm of one.
    2. Train attention on, its head at unit norm.
    3. Solve for the selected tokens, in the units of the data.

    Args:
        sequences: makes the sequences without repeated tokens. It is called twice, so that memory
            never holds them in both units during the training.
        start: attention and head, in the units of the data.
        norm: the geometry of descent and margin.
        limits: steps, tolerance and time.
        options: records, checkpoints, progress.

    Raises:
        InputError: what :func:`check_explained` refuses.
    """
    data = sequences()
    check_explained(data, norm, limits)
    # 1: both scales
    tokens, z = units(data)
    scaled = AttentionData(
        given_away(data.tokens / tokens), data.labels, data.queries / z, data.mask
    )
    del data
    # 2: selection
    weights, trajectory, lr = select_tokens(
        scaled, start.rescaled(1 / tokens, 1 / z), norm, limits, options
    )
    del scaled
    weights = weights.rescaled(tokens, z)
    # 3: margin
    data = sequences()
    selected = argmax_tokens(data, weights.W)
    certified = certify(data, selected, norm, limits, options.progress)
    return explanation(data, selected, certified, weights, trajectory, lr)


def check_explained(data: AttentionData, norm: Norm, limits: Limits) -> None:
    """Refuse what :func:`select` cannot do.

    Raises:
        InputError: nothing to select, a norm without a descent, or a step that is no number.
    """
    check_selectable(data)
    descent_kind(norm)
    if limits.lr is not None:
        check_step(norm, limits.lr, limits.steps or selection_steps(data))


def select_tokens(
    data: AttentionData, start: Weights, norm: Norm, limits: Limits, options: StageOptions
) -> tuple[Weights, Trajectory, float]:
    """Weights at the end of the selection stage, its records, and the length of its steps; tokens
    and queries have a root-mean-square norm of one.
    """
    length = float(np.linalg.norm(start.head)) or 1.0
    unit = Weights(start.W, start.head / length, start.intercept / length)
    steps = limits.steps or selection_steps(data)
    if options.progress is not None:
        options.progress("selection", 0, steps)
    lr = step_length(norm, data) if limits.lr is None else limits.lr
    descent = selection_descent(norm, data, unit, lr, steps)
    trajectory = run_stage("selection", data, *descent, steps, options)
    return Weights(trajectory.W[-1], unit.head, unit.intercept), trajectory, lr


def certify(
    data: AttentionData,
    selected: IntArray,
    norm: Norm,
    limits: Limits,
    progress: Progress | None = None,
) -> tuple[MarginSolution, Status]:
    """The max-margin programme of these ``(n,)`` selections, soft where no weights make them; and
    the status of the hard one.
    """
    if progress is not None:
        progress("margin", 0, 1)
    margins = selection_margins(data, selected)
    accuracy = {"tol": limits.tol, "max_seconds": limits.seconds}
    solution: MarginSolution = max_margin(margins, norm, **accuracy)
    hard = solution.status
    if hard in ("infeasible", "almost infeasible"):
        solution = max_margin(margins, norm, slack=limits.slack, **accuracy)
    if progress is not None:
        progress("margin", 1, 1)
    return solution, hard


def smallest_margins(margins: Margins, W: FloatArray, norm: Norm) -> FloatArray:
    r"""``(n,)``: the smallest margin of each bag at :math:`W/\|W\|`; ``inf`` for bags
    without constraints.
    """
    size = float(norm.value(W))
    smallest = np.full(margins.n, np.inf)
    np.minimum.at(smallest, margins.sequence, margins(W / size if size > 0 else W))
    return smallest
