"""L-BFGS on many small problems at once: their losses and gradients are columns of one pass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from attsvm.datasets.attention_data import BoolArray, FloatArray, IntArray

ColumnLoss = Callable[[FloatArray, IntArray], tuple[FloatArray, FloatArray]]
"""From ``(D, c)`` points and the ``(c,)`` problems that they belong to, to ``(c,)`` values and
``(D, c)`` gradients."""


@dataclass(frozen=True)
class DescentOptions:
    """When a descent ends.

    Attributes:
        iterations: most evaluations.
        tolerance: the fall that the quadratic model still promises, relative to the value.
        memory: pairs of steps and changes of the gradient that are kept, of which the quadratic
            model is made.
        noise: relative error of values, by which a step may seem to rise.
    """

    iterations: int = 300
    tolerance: float = 1e-9
    memory: int = 20
    noise: float = 1e-8


def descend_columns(
    loss: ColumnLoss, start: FloatArray, options: DescentOptions
) -> tuple[FloatArray, FloatArray, int]:
    """Points of small loss ``(D, C)``, their values ``(C,)``, and the evaluations it took.

    Every problem has its own model and its own length of step; one that is done leaves the pass.

    1. Those that have moved get the direction of the two-loop recursion over the last steps.
    2. A problem whose model promises no further fall, or that refused a step too often, is done.
    3. Steps are taken together; each problem takes its own only where its value falls enough
       (Armijo).
    4. Where it does not, the next step is where a parabola has its least.
    """
    size, count = start.shape
    ends, least = start.copy(), np.empty(count)
    running, points = np.arange(count), start.copy()
    values, gradients = loss(points, running)
    history = _History(options.memory, size, count)
    directions, lengths = np.zeros((size, count)), np.ones(count)
    moved, refusals = np.ones(count, dtype=np.bool_), np.zeros(count, dtype=np.int64)
    evaluations = 1
    while True:
        stays = refusals <= 12  # steps of 1e-4 to 1e-12
        if moved.any():
            # 1. new directions of those that have moved
            step = history.newton_step(gradients)
            np.copyto(directions, -step, where=moved)
            norms = np.sqrt(np.einsum("dc,dc->c", gradients, gradients))
            first = np.minimum(1.0, 1.0 / np.maximum(norms, 1e-300))
            lengths = np.where(moved, np.where(history.has_pairs, 1.0, first), lengths)
            # 2. those whose model promises no further fall
            promised = 0.5 * np.einsum("dc,dc->c", gradients, step)
            is_flat = history.has_pairs & (promised <= options.tolerance * np.abs(values))
            stays &= ~(moved & (is_flat | (norms == 0)))
        if not stays.all():
            ends[:, running[~stays]], least[running[~stays]] = points[:, ~stays], values[~stays]
            points, gradients, directions = (
                matrix[:, stays] for matrix in (points, gradients, directions)
            )
            values, lengths = values[stays], lengths[stays]
            running, refusals = running[stays], refusals[stays]
            history.keep(stays)
        if not len(running) or evaluations >= options.iterations:
            break
        # 3. one step of all, taken where it pays
        trial = points + lengths * directions
        trial_values, trial_gradients = loss(trial, running)
        evaluations += 1
        slope = np.einsum("dc,dc->c", gradients, directions)
        bound = values + 1e-4 * lengths * slope
        moved = trial_values <= bound + options.noise * np.abs(values)
        history.add(trial - points, trial_gradients - gradients, moved)
        np.copyto(points, trial, where=moved)
        np.copyto(gradients, trial_gradients, where=moved)
        # 4. shorter steps elsewhere
        rise = trial_values - values - slope * lengths
        with np.errstate(divide="ignore", invalid="ignore"):
            parabola = -slope * lengths * lengths / (2.0 * rise)
        shorter = np.minimum(np.fmax(parabola, 0.1 * lengths), 0.5 * lengths)
        lengths = np.where(moved, lengths, shorter)
        values = np.where(moved, trial_values, values)
        refusals = np.where(moved, 0, refusals + 1)
    ends[:, running], least[running] = points, values
    return ends, least, evaluations


class _History:
    """The last steps of every problem and how its gradient changed over them."""

    def __init__(self, memory: int, size: int, count: int) -> None:
        self.steps = np.zeros((memory, size, count), dtype=np.float32)
        self.changes = np.zeros((memory, size, count), dtype=np.float32)
        self.inverse = np.zeros((memory, count))  # of the inner product of both; 0: no pair
        self.scale = np.ones(count)
        self.has_pairs: BoolArray = np.zeros(count, dtype=np.bool_)
        self.newest, self.filled = -1, 0

    def add(self, steps: FloatArray, changes: FloatArray, moved: BoolArray) -> None:
        """Keep a pair of each problem that has moved, unless it has no positive curvature."""
        # a step that was not taken may have led to infinity
        steps, changes = np.where(moved, steps, 0.0), np.where(moved, changes, 0.0)
        curvature = np.einsum("dc,dc->c", steps, changes)
        squares = np.einsum("dc,dc->c", changes, changes)
        sizes = np.sqrt(squares * np.einsum("dc,dc->c", steps, steps))
        usable = curvature > 1e-10 * sizes
        if not usable.any():
            return
        memory = len(self.steps)
        self.newest, self.filled = (self.newest + 1) % memory, min(self.filled + 1, memory)
        self.steps[self.newest], self.changes[self.newest] = steps, changes
        self.inverse[self.newest] = 0.0
        np.divide(1.0, curvature, out=self.inverse[self.newest], where=usable)
        np.divide(curvature, squares, out=self.scale, where=usable)
        self.has_pairs |= usable

    def keep(self, stays: BoolArray) -> None:
        """Forget the problems that do not stay, in the memory that there is."""
        columns = np.flatnonzero(stays)
        count = len(columns)
        for pairs in (self.steps, self.changes):
            for pair in pairs:
                pair[:, :count] = pair.take(columns, axis=1)
        self.steps, self.changes = self.steps[:, :, :count], self.changes[:, :, :count]
        self.inverse, self.scale = self.inverse[:, stays], self.scale[stays]
        self.has_pairs = self.has_pairs[stays]

    def newton_step(self, gradients: FloatArray) -> FloatArray:
        """The two-loop recursion: the inverse of the quadratic model times ``(D, c)`` gradients."""
        slots = [(self.newest - k) % len(self.steps) for k in range(self.filled)]
        newest_first = [k for k in slots if self.inverse[k].any()]
        step = gradients.copy()
        factors = {}
        for k in newest_first:
            factors[k] = self.inverse[k] * np.einsum("dc,dc->c", self.steps[k], step)
            step -= factors[k] * self.changes[k]
        step *= self.scale
        for k in reversed(newest_first):
            along = np.einsum("dc,dc->c", self.changes[k], step)
            step += (factors[k] - self.inverse[k] * along) * self.steps[k]
        return step
