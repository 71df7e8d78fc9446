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

    1. The direction is that of the two-loop recursion over the last steps.
    2. A problem whose model promises no further fall is done.
    3. Steps are taken together; each problem takes its own only where its value falls enough
       (Armijo), else its next step is where a parabola has its least.
    """
    points = start.copy()
    size, count = points.shape
    running = np.arange(count)
    values, gradients = loss(points, running)
    history = _History(options.memory, size, count)
    directions, lengths = np.zeros((size, count)), np.ones(count)
    needs_direction, refusals = np.ones(count, dtype=np.bool_), np.zeros(count, dtype=np.int64)
    evaluations = 1
    while len(running) and evaluations < options.iterations:
        # 1. new directions of those that have moved
        fresh = running[needs_direction[running]]
        if len(fresh):
            step = history.newton_step(gradients[:, fresh], fresh)
            directions[:, fresh] = -step
            norms = np.linalg.norm(gradients[:, fresh], axis=0)
            first = np.minimum(1.0, 1.0 / np.maximum(norms, 1e-300))
            lengths[fresh] = np.where(history.has_pairs[fresh], 1.0, first)
            # 2. the promised fall
            promised = 0.5 * np.einsum("dc,dc->c", gradients[:, fresh], step)
            is_done = history.has_pairs[fresh] & (
                promised <= options.tolerance * np.abs(values[fresh])
            )
            refusals[fresh] = 0
            running = np.setdiff1d(running, fresh[is_done | (norms == 0)])
            if not len(running):
                break
        # 3. one step of all, taken where it pays
        trial = points[:, running] + lengths[running] * directions[:, running]
        trial_values, trial_gradients = loss(trial, running)
        evaluations += 1
        slope = np.einsum("dc,dc->c", gradients[:, running], directions[:, running])
        bound = values[running] + 1e-4 * lengths[running] * slope
        takes = trial_values <= bound + options.noise * np.abs(values[running])
        moved, stayed = running[takes], running[~takes]
        history.add(
            trial[:, takes] - points[:, moved],
            trial_gradients[:, takes] - gradients[:, moved],
            moved,
        )
        points[:, moved], gradients[:, moved] = trial[:, takes], trial_gradients[:, takes]
        values[moved] = trial_values[takes]
        needs_direction[:] = False
        needs_direction[moved] = True
        t, down = lengths[stayed], slope[~takes]
        rise = trial_values[~takes] - values[stayed] - down * t
        with np.errstate(divide="ignore", invalid="ignore"):
            parabola = -down * t * t / (2.0 * rise)
        lengths[stayed] = np.clip(np.nan_to_num(parabola), 0.1 * t, 0.5 * t)
        refusals[stayed] += 1
        running = np.setdiff1d(running, stayed[refusals[stayed] > 12])  # steps of 1e-4 to 1e-12
    return points, values, evaluations


class _History:
    """The last steps of every problem and how its gradient changed over them."""

    def __init__(self, memory: int, size: int, count: int) -> None:
        self.steps = np.zeros((memory, size, count), dtype=np.float32)
        self.changes = np.zeros((memory, size, count), dtype=np.float32)
        self.inverse = np.zeros((memory, count))  # of the inner product of both; 0: no pair
        self.scale = np.ones(count)
        self.has_pairs: BoolArray = np.zeros(count, dtype=np.bool_)
        self.newest = -1

    def add(self, steps: FloatArray, changes: FloatArray, columns: IntArray) -> None:
        """Keep a pair of each of these problems, unless it has no positive curvature."""
        memory = len(self.steps)
        self.newest = (self.newest + 1) % memory
        curvature = np.einsum("dc,dc->c", steps, changes)
        squares = np.einsum("dc,dc->c", changes, changes)
        sizes = np.sqrt(squares * np.einsum("dc,dc->c", steps, steps))
        usable = curvature > 1e-10 * sizes
        self.inverse[self.newest] = 0.0
        self.steps[self.newest][:, columns] = steps
        self.changes[self.newest][:, columns] = changes
        self.inverse[self.newest, columns[usable]] = 1.0 / curvature[usable]
        self.scale[columns[usable]] = curvature[usable] / squares[usable]
        self.has_pairs[columns[usable]] = True

    def newton_step(self, gradients: FloatArray, columns: IntArray) -> FloatArray:
        """The two-loop recursion: the inverse of the quadratic model times ``(D, c)`` gradients."""
        memory = len(self.steps)
        at = slice(None) if len(columns) == len(self.scale) else columns  # a view of all
        inverse = self.inverse[:, at]
        step = gradients.copy()
        order = [(self.newest - k) % memory for k in range(memory)]
        order = [k for k in order if inverse[k].any()]
        factors = {}
        for k in order:
            factors[k] = inverse[k] * np.einsum("dc,dc->c", self.steps[k][:, at], step)
            step -= factors[k] * self.changes[k][:, at]
        step *= self.scale[at]
        for k in reversed(order):
            along = np.einsum("dc,dc->c", self.changes[k][:, at], step)
            step += (factors[k] - inverse[k] * along) * self.steps[k][:, at]
        return step
