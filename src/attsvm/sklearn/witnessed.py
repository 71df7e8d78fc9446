"""Fits of the standard assumption: penalties are chosen by bags left out, and the end is certified.

1. One pass gives unit, mean and deviation of the features.
2. All folds, penalties and starts go through the same batches of bags
   (:mod:`attsvm.sklearn.stochastic`).
3. One pass gives their losses. Each fold goes on from its best start, or from that of another fold
   which found more: its objective on the bags of this fold is less, and on the bags that it left
   out itself it is beyond doubt better than chance. Several heads or classes, among which noise
   finds optima that fit a few bags by chance, follow a path instead: all folds together, finished
   at each of the falling penalties from where they were at the one before.
4. The penalty is chosen by the loss of bags left out. Unfinished weak penalties look better than
   they are, so the folds of the best one are finished (:mod:`attsvm.sklearn.compressed`) before it
   is believed, until the best is a finished one. Where even that is not beyond doubt better than
   chance, all are finished; folds that are finished share starts once more, as in step 3.
5. The candidate that was fitted to all bags is finished and certified; where pooling is hard, its
   selection and convex steps alternate.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from attsvm.datasets.attention_data import FloatArray, IntArray
from attsvm.sklearn.choosing import (
    CONSTANT,
    PENALTIES,
    Predictor,
    TrainingBags,
    calibration,
    left_out_values,
)
from attsvm.sklearn.compressed import Objective, Polished, PolishOptions, polish
from attsvm.sklearn.layers import WitnessLayer
from attsvm.sklearn.lockstep import DescentOptions
from attsvm.sklearn.minimise import TOLERANCE, ConvexStep
from attsvm.sklearn.stochastic import (
    AdamOptions,
    Candidates,
    start_weights,
    stochastic_descent,
)
from attsvm.sklearn.witness import Witnesses


@dataclass(frozen=True)
class WitnessOptions:
    """How a fit of the standard assumption goes.

    Attributes:
        adam: of the candidates.
        folds: where the folds of a candidate are finished.
        path: where they are at each penalty of a path of several heads or classes.
        spread: of the random first weights of several heads, which must differ; of 0.1, 0.3 and 1
            the one with which most of eight sets of two concepts were told apart.
        end: where the final weights are.
        alternations: most convex steps of hard pooling.
        doubt: most probability with which folds go on from the weights of others in noise.
    """

    adam: AdamOptions
    folds: PolishOptions
    path: PolishOptions
    end: PolishOptions
    spread: float = 1.0
    alternations: int = 20
    doubt: float = 0.1


DEFAULT = WitnessOptions(
    AdamOptions(),
    PolishOptions(gap=1e-2, passes=8, descent=DescentOptions(100, 1e-6, noise=2e-7), heavy=32),
    PolishOptions(gap=1e-5, passes=20),
    PolishOptions(),
)


def fit_witnesses(
    training: TrainingBags,
    heads: int,
    hard: bool,
    penalty: float | None,
    options: WitnessOptions = DEFAULT,
) -> Predictor:
    """The predictor of the standard assumption; see :mod:`attsvm.sklearn.witness`.

    Args:
        training: the bags.
        heads: witnesses that a positive bag of two classes needs.
        hard: whether the value of a bag is that of its best instance.
        penalty: the only candidate; None for those of the bags.
        options: of the descents.
    """
    search = _Search(training, heads, penalty, options)
    if search.problem.columns == 1:
        search.descend()
    else:
        search.follow_path()
    chosen = search.choose()
    theta, steps = search.finish(chosen, hard)
    problem, fold_weights = search.problem, search.weights[chosen]
    layer = WitnessLayer(
        theta[:-1].T / problem.unit, CONSTANT * theta[-1], problem.null, hard, threshold=0.0
    )
    left_out = layer.joined(search.left_out[chosen])
    if hard:
        largest = problem.log_sums(fold_weights, largest=True)
        left_out = layer.joined(left_out_values(largest, search.folds))
    if hard and problem.null:  # the largest score is less than the sum that the loss knows
        judged = np.flatnonzero(~np.isnan(left_out[:, 0]))
        values, labels = left_out[judged], training.labels[judged]
        line = calibration(values, labels, shift=True, weights=training.weights[judged])
        layer = replace(layer, threshold=line.crossing)
        left_out = left_out - layer.threshold
    search.tick(search.total)
    best = float(search.penalties[chosen])
    return Predictor(layer, best, None, search.losses, left_out, steps, convex=False)


class _Search:
    """Candidates of all penalties, their folds beside each other.

    Attributes:
        weights: for each penalty ``(d + 1, F * G)``, of which the last fold leaves nothing out.
        left_out: for each penalty ``(n, G)`` of bags by the folds that left them out.
        losses: ``(P,)``: by which penalties were compared at last.
        chance: ``(n,)``: the loss of each bag by the shares of the classes.
        candidates: number of weights that are compared with it.
    """

    def __init__(
        self, training: TrainingBags, heads: int, penalty: float | None, options: WitnessOptions
    ) -> None:
        null = training.classes == 2
        columns = heads if null else training.classes
        unit = training.moments.unit
        self.problem = Witnesses(training.bags, training.labels, unit, columns, null)
        self.training, self.options, self.folds = training, options, training.folds
        self.penalties = training.penalties if penalty is None else np.array([penalty])
        shares = [*map(training.fold_shares, self.folds), training.shares]
        self.shares = np.column_stack(shares)
        labels, weights = training.labels, training.weights
        self.chance = -np.log(np.bincount(labels, weights) / weights.sum())[labels]
        # of all starts, and once more where they are finished
        self.candidates = (len(options.adam.rates) + 1) * len(self.penalties) * self.shares.shape[1]
        self.losses = np.zeros(len(self.penalties))
        self.is_finished = np.zeros(len(self.penalties), dtype=np.bool_)
        self.weights: list[FloatArray] = []
        self.left_out: list[FloatArray] = []
        self.total = options.adam.steps + len(self.penalties) + 1

    def tick(self, done: int) -> None:
        """Tell the progress."""
        self.training.progress(done, self.total)

    def descend(self) -> None:
        """Steps 2 and 3: the best start of every penalty and fold."""
        adam, problem = self.options.adam, self.problem
        starts, penalties, folds = len(adam.rates), len(self.penalties), self.shares.shape[1]
        per_start = penalties * folds
        candidates = Candidates(
            np.tile(self.shares, (1, starts * penalties)),
            np.tile(np.repeat(self.penalties, folds), starts),
            np.repeat(adam.rates, per_start),
            np.repeat(adam.falls, per_start),
        )

        def tick(step: int) -> None:
            if step % 50 == 0:
                self.tick(step)

        moments, seed = self.training.moments, self.training.seed
        weights = stochastic_descent(problem, candidates, moments, seed, adam, tick)
        sums = problem.log_sums(weights)
        losses, _ = problem.losses(sums, self.training.labels)
        squares = (weights * weights).sum(axis=0).reshape(starts * per_start, -1).sum(axis=1)
        best = self._best_starts(losses, squares, self.penalties).ravel()
        size, groups = len(weights), problem.columns
        weights = weights.reshape(size, -1, groups)[:, best].reshape(size, penalties, -1)
        sums = sums[:, best].reshape(len(sums), penalties, folds, groups)
        self.weights = [np.ascontiguousarray(weights[:, p]) for p in range(penalties)]
        self.left_out = [left_out_values(sums[:, p], self.folds) for p in range(penalties)]

    def _best_starts(
        self, losses: FloatArray, squares: FloatArray, penalty: FloatArray
    ) -> IntArray:
        r"""``(P, F)``: the candidate that each fold of each penalty goes on from.

        1. The objective of every fold at the candidates of all folds.
        2. Those of other folds count only where they beat chance on the bags that they left out.
           In noise the likelihood ratio of bags not seen is 1 on average, so any of ``C``
           candidates has one above :math:`C/\delta` with probability :math:`\delta` at most
           (Markov). Bags of a group are not independent: their mean counts as one bag.
        3. The least objective.

        Args:
            losses: ``(n, C)`` of the bags under all starts, penalties and folds.
            squares: ``(C,)`` of their weights.
            penalty: ``(P,)``.
        """
        labels, weights, groups = self.training.labels, self.training.weights, self.training.groups
        penalties, folds = len(penalty), self.shares.shape[1]
        shape = (-1, penalties, folds)
        # 1. objectives
        objective = (self.shares.T @ losses).reshape(folds, *shape)
        objective += 0.5 * penalty[:, None] * squares.reshape(shape)
        # 2. candidates of other folds
        group = np.arange(len(labels))
        if groups is not None:
            group = np.unique(groups, return_inverse=True)[1]
        counts = weights / np.bincount(group, weights)[group]
        left_out = np.zeros_like(self.shares)
        for k, fold in enumerate(self.folds):
            left_out[fold.test, k] = counts[fold.test]
        gains = (self.chance[:, None] - losses).reshape(len(labels), *shape)
        log_ratios = np.einsum("nf,nspf->spf", left_out, gains)
        is_better = log_ratios > np.log(self.candidates / self.options.doubt)
        is_own = np.eye(folds, dtype=np.bool_)[:, None, None, :]
        objective[~(is_own | is_better)] = np.inf
        # 3. the least
        by_penalty = objective.transpose(2, 0, 1, 3).reshape(penalties, folds, -1)
        start, fold = np.divmod(np.argmin(by_penalty, axis=2), folds)
        candidate: IntArray = (start * penalties + np.arange(penalties)[:, None]) * folds + fold
        return candidate

    def follow_path(self) -> None:
        """Step 3 of several heads or classes."""
        path = self.penalties
        if len(path) == 1:
            path = np.append(PENALTIES[path[0] < PENALTIES], path)
        weights = start_weights(self.problem, self.shares, self.training.seed, self.options.spread)
        for k, penalty in enumerate(path):
            self.tick(self.options.adam.steps * k // len(path))
            polished = self._finished_folds(float(penalty), weights, self.options.path)
            weights = polished.weights
            if penalty in self.penalties:
                self.weights.append(weights)
                self.left_out.append(left_out_values(polished.sums, self.folds))
        self.is_finished[:] = True

    def choose(self) -> int:
        """Step 4: the position of the penalty with the least loss of bags left out."""
        while True:
            self.losses = self._compared()
            chosen = int(np.argmin(self.losses))
            if self.is_finished[chosen]:
                if self.is_finished.all() or self._beats_chance(self.losses[chosen]):
                    return chosen
                chosen = int(np.argmin(np.where(self.is_finished, np.inf, self.losses)))
            penalty, options = float(self.penalties[chosen]), self.options.folds
            polished = self._finished_folds(penalty, self.weights[chosen], options)
            losses, _ = self.problem.losses(polished.sums, self.training.labels)
            squares = (polished.weights * polished.weights).sum(axis=0)
            best = self._best_starts(losses, squares, np.array([penalty]))[0]
            if not np.array_equal(best, np.arange(len(best))):
                polished = self._finished_folds(penalty, polished.weights[:, best], options)
            self.weights[chosen] = polished.weights
            self.left_out[chosen] = left_out_values(polished.sums, self.folds)
            self.is_finished[chosen] = True
            self.tick(self.options.adam.steps + int(self.is_finished.sum()))

    def _beats_chance(self, loss: float) -> bool:
        """Whether the least loss of all penalties is beyond doubt; see :meth:`_best_starts`."""
        weights = self.training.weights
        bags = weights.sum() ** 2 / np.sum(weights**2)  # the effective size of a weighted sample
        gain = bags * (self.training.shares @ self.chance - loss)
        return bool(gain > np.log(len(self.penalties) / self.options.doubt))

    def _compared(self) -> FloatArray:
        """``(P,)``: the losses of bags left out; after the slope of probabilities where even the
        least is above that of knowing nothing, so that a penalty is not charged for values that are
        too large.
        """
        judged = np.flatnonzero(~np.isnan(self.left_out[0][:, 0]))
        labels, weights = self.training.labels[judged], self.training.weights[judged]
        values = [left_out[judged] for left_out in self.left_out]
        raw = np.array(
            [
                np.average(self.problem.losses(sums[:, None], labels)[0][:, 0], weights=weights)
                for sums in values
            ]
        )
        layer = WitnessLayer(np.empty((0, 0)), np.empty(0), self.problem.null, hard=False)
        lines = [calibration(layer.joined(sums), labels, False, weights) for sums in values]
        if raw.min() <= lines[0].chance:
            return raw
        return np.array([line.loss for line in lines])

    def finish(self, chosen: int, hard: bool) -> tuple[FloatArray, list[ConvexStep]]:
        """Step 5: weights ``(d + 1, G)`` fitted to all bags, and their certified convex steps."""
        penalty, shares = float(self.penalties[chosen]), self.shares[:, -1:]
        weights = self.weights[chosen][:, -self.problem.columns :]
        if not hard:
            polished = self._finished(penalty, weights, None)
            return polished.weights, [_certified(polished)]
        steps, before = [], None
        for _ in range(self.options.alternations):
            selected, gain = self.problem.selection_gain(weights, shares)
            if before is not None and np.array_equal(selected, before):
                break
            polished = self._finished(penalty, weights, gain)
            weights, before = polished.weights, selected
            steps.append(_certified(polished))
        return weights, steps

    def _finished_folds(
        self, penalty: float, weights: FloatArray, options: PolishOptions
    ) -> Polished:
        """All folds of a penalty, near their optima."""
        penalties = np.full(self.shares.shape[1], penalty)
        objective = Objective(self.problem, self.problem.losses, self.shares, penalties)
        return polish(objective, weights, np.float32, self._fewer_rows(options))

    def _finished(self, penalty: float, weights: FloatArray, gain: FloatArray | None) -> Polished:
        """The last fold of a penalty at its optimum; or its convex step, whose selection has this
        gain.
        """
        loss = self.problem.losses if gain is None else self.problem.convex_losses
        objective = Objective(self.problem, loss, self.shares[:, -1:], np.array([penalty]), gain)
        return polish(objective, weights, np.float64, self._fewer_rows(self.options.end))

    def _fewer_rows(self, options: PolishOptions) -> PolishOptions:
        """A pass keeps fewer heavy rows of shorter bags."""
        quarter = self.problem.bags.offsets[-1] / self.problem.bags.n / 4
        return replace(options, heavy=int(np.clip(quarter, 16, options.heavy)))


def _certified(polished: Polished) -> ConvexStep:
    """The certificate of the only column."""
    gap = float(polished.gap[0])
    return ConvexStep(
        "optimal" if gap <= TOLERANCE else "inaccurate",
        float(polished.objective[0]),
        gap,
        float(polished.violation[0]),
        polished.iterations,
    )
