r"""Penalties are chosen by bags left out, and their values make probabilities.

:math:`\sigma(af+b)`, or :math:`\mathrm{softmax}(af)` of three classes or more: slope and offset
are fitted to the values of bags that the model did not see. A bag of weight 2 counts as two bags
everywhere, one of weight 0 is not there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from sklearn.model_selection import StratifiedGroupKFold, StratifiedKFold, check_cv

from attsvm.base.errors import InputError
from attsvm.datasets.attention_data import FloatArray, IntArray
from attsvm.datasets.bags import Bags, Names
from attsvm.sklearn.layers import Layer
from attsvm.sklearn.minimise import ConvexStep, cross_entropy
from attsvm.sklearn.moments import Moments, moments

CONSTANT = 4.0
"""The constant feature beside instances of root-mean-square norm one: it makes the penalty on the
intercept a sixteenth of that on the weights.
"""
PENALTIES = 10.0 ** np.arange(-1.0, -5.1, -0.5)
"""Penalties that are tried, for instances of root-mean-square norm one and a loss that is a mean
over bags.
"""
FOLDS = 5  # of bags left out, the usual number
_COARSE = 600_000  # numbers in a table from which fewer penalties are tried, in fewer steps
_MANY = 500  # bags from which leaving one fold out is enough where descents are coarse
_ITERATIONS = 100  # of the final descent
_COARSE_ITERATIONS = 40  # the same of large tables


@dataclass(frozen=True)
class Calibration:
    """The straight line that makes values logits of probabilities.

    Attributes:
        slope: positive.
        offset: 0 unless it was fitted.
        loss: mean loss of the values with both.
        chance: mean loss of the shares of the classes, which is that of knowing nothing of a bag.
    """

    slope: float
    offset: float
    loss: float
    chance: float

    @property
    def crossing(self) -> float:
        """The value at which the line is zero: there both classes are as likely."""
        return -self.offset / self.slope


def calibration(
    values: FloatArray, labels: IntArray, shift: bool, weights: FloatArray | None = None
) -> Calibration:
    r"""The slope and offset of least loss.

    Args:
        values: ``(n, C)``, of bags left out.
        labels: ``(n,)``: 0 and 1, or 0 to C - 1.
        shift: whether the values of two classes may move against zero.
        weights: ``(n,)``: as how many bags each counts; one each when left out.

    Source: Platt (1999), with his targets :math:`(n_k+1)/(n_k+2)` for two classes, which keep the
    slope finite where values separate the classes; temperature scaling otherwise.
    """
    from scipy.optimize import minimize, minimize_scalar

    two = values.shape[1] == 1
    counts = np.bincount(labels, weights, minlength=2)
    bag_weights = np.ones(len(labels)) if weights is None else weights
    bag_shares = bag_weights / bag_weights.sum()
    if two:
        targets = np.where(labels > 0, (counts[1] + 1) / (counts[1] + 2), 1 / (counts[0] + 2))
        share = bag_shares @ targets
        shares = np.array([share, 1.0 - share])
    else:
        shares = counts[counts > 0] / counts.sum()
    span = (-7.0, 7.0)  # of the logarithm of the slope: probabilities are flat, or steps, beyond

    def slope_within(logarithm: float) -> float:
        return math.exp(min(max(logarithm, span[0]), span[1]))

    def loss(logarithm: float, offset: float) -> float:
        scaled = slope_within(logarithm) * values
        if two:
            f = scaled[:, 0] + offset
            losses = np.logaddexp(0.0, f) - targets * f
        else:
            losses = cross_entropy(scaled, labels)[0]
        return float(bag_shares @ losses)

    if shift:
        precise = {"xatol": 1e-7, "fatol": 1e-12}
        best = minimize(
            lambda line: loss(*line), np.zeros(2), method="Nelder-Mead", options=precise
        )
        logarithm, offset = best.x
    else:
        best = minimize_scalar(lambda slope: loss(slope, 0.0), bounds=span, method="bounded")
        logarithm, offset = best.x, 0.0
    slope = slope_within(logarithm)
    chance = -float(shares @ np.log(shares))
    return Calibration(slope, float(offset), float(best.fun), chance)


def threshold(values: FloatArray, labels: IntArray, weights: FloatArray | None = None) -> float:
    r"""What the values of two classes are counted from: where Platt's line is zero, if it pays.

    A model fitted to a bag has found its witness, while that of a new positive bag may be missed:
    values of negative bags left out crowd, those of positive ones spread down to zero and below.
    The line pays where it raises twice the log-likelihood by more than one, which is what an offset
    of no use does in the mean (Wilks 1938); and 0 is returned where it is not better than chance.

    Args:
        values: ``(n, C)``, of bags left out.
        labels: ``(n,)``: 0 and 1, or 0 to C - 1.
        weights: ``(n,)``: as how many bags each counts; one each when left out.
    """
    if values.shape[1] > 1:
        return 0.0
    bags = len(values) if weights is None else float(weights.sum())
    slope, line = (calibration(values, labels, shift, weights) for shift in (False, True))
    pays = 2.0 * bags * (min(slope.loss, line.chance) - line.loss) > 1.0
    return line.crossing if pays else 0.0


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
class Fold:
    """Positions of the bags that a model is fitted to, and of those that it is judged on."""

    train: IntArray
    test: IntArray


@dataclass(frozen=True, eq=False)
class TrainingBags:
    """Bags with everything that a fit starts from.

    Attributes:
        bags: of positive weight.
        queries: ``(n, d_z)``.
        labels: ``(n,)``: 0 to K - 1.
        classes: K.
        weights: ``(n,)``: as how many bags each counts, positive.
        groups: ``(n,)`` the patient of each bag; None when every bag stands alone.
        cv: how bags are left out; see :func:`left_out_folds`.
        seed: of folds and starts.
        progress: called with steps done and steps in all.
    """

    bags: Bags
    queries: FloatArray
    labels: IntArray
    classes: int
    weights: FloatArray
    groups: Names | None = None
    cv: Any = None
    seed: int = 0
    progress: Callable[[int, int], None] = lambda done, total: None

    @cached_property
    def moments(self) -> Moments:
        """Size and spread of the instances."""
        return moments(self.bags, self.weights)

    @property
    def shares(self) -> FloatArray:
        """``(n,)``: share of each bag in the loss; they sum to one."""
        return self.weights / self.weights.sum()

    @property
    def is_coarse(self) -> bool:
        """Whether descents take long."""
        return self.bags.rows.shape[0] * self.bags.d > _COARSE

    @property
    def folds(self) -> list[Fold]:
        """Bags to fit to and to leave out, in turn."""
        return left_out_folds(self.labels, self.groups, self.cv, self.seed)

    @property
    def few_folds(self) -> list[Fold]:
        """The folds, but only the first of many bags in a large table."""
        single = self.cv is None and self.is_coarse and len(self.labels) >= _MANY
        return self.folds[:1] if single else self.folds

    def fold_shares(self, fold: Fold) -> FloatArray:
        """``(n,)`` shares of sum one, zero for the bags that a fold does not fit to."""
        shares = np.zeros(len(self.weights))
        shares[fold.train] = self.weights[fold.train]
        return shares / shares.sum()

    @property
    def iterations(self) -> int:
        """Steps of one descent."""
        return _COARSE_ITERATIONS if self.is_coarse else _ITERATIONS

    @property
    def penalties(self) -> FloatArray:
        """Candidates, falling."""
        return PENALTIES[1:8:2] if self.is_coarse else PENALTIES


def left_out_folds(
    labels: IntArray, groups: Names | None, cv: Any, seed: int, count: int = FOLDS
) -> list[Fold]:
    """Folds of bags, each class spread over them and no group torn apart.

    Args:
        labels: ``(n,)``: 0 to K - 1.
        groups: ``(n,)`` the patient of each bag, or None.
        cv: None; a number of folds; a splitter of scikit-learn; or pairs of positions to fit to and
            to leave out.
        seed: of the shuffles of folds that are made here.
        count: of folds where ``cv`` is None, fewer where a class has fewer bags or groups.

    Raises:
        InputError: a class that belongs to one group, a fold that fits to bags of fewer classes, or
            what the splitter refuses.
    """
    classes = np.unique(labels)
    if cv is None or isinstance(cv, int | np.integer):
        sizes = [int(np.count_nonzero(labels == k)) for k in classes]
        if groups is not None:
            sizes = [len(np.unique(groups[labels == k])) for k in classes]
            if min(sizes) < 2:
                lonely = groups[labels == classes[np.argmin(sizes)]][0]
                raise InputError(
                    f"all bags of a class belong to the group {lonely}; bags are left out with"
                    " their groups, so give bags of at least two groups of each class"
                )
        number = int(cv) if cv is not None else max(min(count, *sizes), 2)
        splitter = StratifiedKFold if groups is None else StratifiedGroupKFold
        cv = splitter(number, shuffle=True, random_state=seed)
    try:
        pairs: Iterable[Any] = list(check_cv(cv).split(labels, labels, groups))
    except ValueError as error:
        raise InputError(f"cv cannot split these bags: {error}") from error
    folds = [Fold(np.asarray(train), np.asarray(test)) for train, test in pairs if len(test)]
    for k, fold in enumerate(folds):
        if len(np.unique(labels[fold.train])) < len(classes):
            raise InputError(
                f"fold {k} of cv fits to bags of fewer classes than there are; give folds, or"
                " groups, of which every training part holds all classes"
            )
    return folds


def left_out_values(values: FloatArray, folds: list[Fold]) -> FloatArray:
    """``(n, G)`` of ``(n, F, G)``: what each bag has in the folds that left it out, the mean where
    they are several, ``nan`` where there is none.
    """
    total, count = np.zeros((len(values), values.shape[2])), np.zeros(len(values))
    for k, fold in enumerate(folds):
        total[fold.test] += values[fold.test, k]
        count[fold.test] += 1.0
    with np.errstate(invalid="ignore"):
        return total / count[:, None]


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
