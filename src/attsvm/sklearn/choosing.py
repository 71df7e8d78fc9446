r"""Penalties are chosen by bags left out, and their values make probabilities.

:math:`\sigma(af+b)`, or :math:`\mathrm{softmax}(af)` of three classes or more: slope and offset
are fitted to the values of bags that the model did not see.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from sklearn.model_selection import StratifiedKFold

from attsvm.datasets.attention_data import FloatArray, IntArray
from attsvm.sklearn.layers import Layer
from attsvm.sklearn.minimise import ConvexStep, cross_entropy
from attsvm.sklearn.preparation import root_mean_square

CONSTANT = 4.0
"""The constant feature beside instances of root-mean-square norm one: it makes the penalty on the
intercept a sixteenth of that on the weights.
"""
PENALTIES = 10.0 ** np.arange(-1.0, -5.1, -0.5)
"""Penalties that are tried, for instances of root-mean-square norm one and a loss that is a mean
over bags.
"""
FOLDS = 5
_COARSE = 600_000  # numbers in a table from which fewer penalties are tried, in fewer steps
_MANY = 500  # bags from which leaving one part out is enough where descents are coarse
_ITERATIONS, _FEW = 100, 40
_RANGE = (-7.0, 7.0)  # of the logarithm of the slope


@dataclass(frozen=True)
class Calibration:
    """What makes values probabilities.

    Attributes:
        slope: positive.
        offset: 0 unless asked for.
        loss: mean loss of the values with both.
    """

    slope: float
    offset: float
    loss: float


def calibration(
    values: FloatArray, labels: IntArray, shift: bool, weights: FloatArray | None = None
) -> Calibration:
    r"""The slope and offset of least loss.

    Args:
        values: ``(n, C)``, of bags left out.
        labels: ``(n,)``: 0 and 1, or 0 to C - 1.
        shift: whether the values of two classes may move against zero.
        weights: ``(n,)`` of the bags; equal when left out.

    Source: Platt (1999), with his targets :math:`(n_k+1)/(n_k+2)` for two classes, which keep the
    slope finite where values separate the classes; temperature scaling otherwise.
    """
    from scipy.optimize import minimize, minimize_scalar

    two = values.shape[1] == 1
    if two:
        many = np.bincount(labels, minlength=2)
        targets = np.where(labels > 0, (many[1] + 1) / (many[1] + 2), 1 / (many[0] + 2))

    def loss(logarithm: float, offset: float) -> float:
        scaled = np.exp(np.clip(logarithm, *_RANGE)) * values
        if two:
            f = scaled[:, 0] + offset
            each = np.logaddexp(0.0, f) - targets * f
        else:
            each = cross_entropy(scaled, labels)[0]
        return float(np.average(each, weights=weights))

    if shift:
        found = minimize(lambda at: loss(*at), np.zeros(2), method="Nelder-Mead")
        logarithm, offset = found.x
    else:
        found = minimize_scalar(lambda at: loss(at, 0.0), bounds=_RANGE, method="bounded")
        logarithm, offset = found.x, 0.0
    slope = float(np.exp(np.clip(logarithm, *_RANGE)))
    return Calibration(slope, float(offset), float(found.fun))


@dataclass(frozen=True, eq=False)
class Predictor:
    """A fitted model of bags.

    Attributes:
        layer: the model, in the units of the data.
        penalty: the penalty that was used, relative to the mean loss of a bag.
        ratio: the penalty on attention weights relative to it; ``inf`` where attention is uniform,
            None where it follows the scores.
        losses: ``(candidates,)`` mean losses on bags left out, of those that were fitted.
        left_out: ``(n, C)`` values of bags by models that did not see them; ``nan`` for bags that
            were not left out.
        steps: the convex programmes that were solved for the final weights, in this order.
        convex: whether the whole problem is convex, so that the last certificate is for all of it.
    """

    layer: Layer
    penalty: float
    ratio: float | None
    losses: FloatArray
    left_out: FloatArray
    steps: list[ConvexStep]
    convex: bool


@dataclass(frozen=True, eq=False)
class Table:
    """What predictors are fitted to.

    Attributes:
        rows: ``(N, d)`` instances, in the units of the data.
        offsets: ``(n + 1,)``.
        queries: ``(n, d_z)``.
        labels: ``(n,)``: 0 to K - 1.
        classes: K.
        shares: ``(n,)``: share of each bag in the loss; they sum to one.
        seed: of folds and starts.
        progress: called with steps done and steps in all.
    """

    rows: FloatArray
    offsets: IntArray
    queries: FloatArray
    labels: IntArray
    classes: int
    shares: FloatArray
    seed: int
    progress: Callable[[int, int], None]

    @property
    def coarse(self) -> bool:
        """Whether descents take long."""
        return self.rows.size > _COARSE

    @property
    def parts(self) -> list[IntArray]:
        """Bags to leave out together."""
        single = self.coarse and len(self.labels) >= _MANY
        return left_out(self.labels, FOLDS, self.seed, single)

    def without(self, part: IntArray) -> FloatArray:
        """``(n,)`` shares of sum one, zero for the bags of a part."""
        shares = self.shares.copy()
        shares[part] = 0.0
        return shares / shares.sum()

    @property
    def iterations(self) -> int:
        """Steps of one descent."""
        return _FEW if self.coarse else _ITERATIONS

    def scaled(self) -> tuple[FloatArray, float]:
        """Instances of root-mean-square norm one with the constant feature, and their unit."""
        unit = root_mean_square(self.rows)
        rows = np.empty((len(self.rows), self.rows.shape[1] + 1))
        np.divide(self.rows, unit, out=rows[:, :-1])
        rows[:, -1] = CONSTANT
        return rows, unit

    @property
    def penalties(self) -> FloatArray:
        """What is tried, falling."""
        return PENALTIES[1:8:2] if self.coarse else PENALTIES


def left_out(labels: IntArray, folds: int, seed: int, single: bool) -> list[IntArray]:
    """Bags to leave out together, each class spread over the folds; only the first fold when
    ``single``.
    """
    count = max(min(folds, int(np.bincount(labels).min())), 2)
    parts = StratifiedKFold(count, shuffle=True, random_state=seed).split(labels, labels)
    return [part for _, part in parts][: 1 if single else count]


def margin_values(values: FloatArray, labels: IntArray) -> FloatArray:
    """``(n,)``: the value of each bag's own class above that of the others."""
    if values.shape[1] == 1:
        return np.where(labels > 0, values[:, 0], -values[:, 0])
    return against_rest(values, labels)


def against_rest(values: FloatArray, column: IntArray) -> FloatArray:
    """``(n,)``: the value of one class above the best other; ``values`` is ``(n, K)``."""
    rows = np.arange(len(values))
    others = values.copy()
    others[rows, column] = -np.inf
    return values[rows, column] - others.max(axis=1)
