"""Attention pooling, its penalty and the ratio of attention chosen together.

Candidates are compared by the losses of bags left out after the slope of their probabilities:
before it, a strong penalty is charged for small values, not for wrong ones.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from attsvm.datasets.attention_data import FloatArray
from attsvm.sklearn.choosing import (
    CONSTANT,
    Predictor,
    TrainingBags,
    calibration,
    left_out_values,
)
from attsvm.sklearn.layers import PooledLayer
from attsvm.sklearn.lockstep import DescentOptions
from attsvm.sklearn.minimise import ConvexStep
from attsvm.sklearn.penalised import (
    Pooled,
    attention_heads,
    attention_start,
    certified_head,
    mean_heads,
    objectives,
)
from attsvm.sklearn.witness_starts import (
    WITNESSES,
    StartOptions,
    thinned,
    weights_at_witnesses,
    witness_starts,
)

FOLDS = DescentOptions(iterations=60, tolerance=1e-6, memory=5, noise=2e-7)
"""How candidates of folds are descended to, with products in single precision."""


@dataclass(frozen=True)
class PooledOptions:
    """How attention pooling is fitted.

    Attributes:
        ratios: penalties on attention weights that are tried, relative to that on the head.
        drawn_ratios: the same where one instance has to decide, to which attention must grow.
        drawn_penalties: on the head, where one instance has to decide.
        rises: how often a loss may rise above its least before smaller penalties are left out.
        folds: descents of folds; a fall by a millionth of the loss tells nothing of bags left out.
        precision: of the descent to the final weights, likewise.
        first_penalty, first_ratio: of the candidate whose optimum all others of a fold begin at.
        starts: of that candidate in short bags or with several heads or classes, one with the
            shares of the fold, the others with changed ones.
        bags: whose starts are one: as many bags as there are fewer, as many more starts.
        numbers: that descents may keep, by which candidates are cut into groups.
        short: instances of a mean bag that hide no witness: of longer ones attention of two
            classes begins at witnesses where bags are few.
        long: the same where bags are many: more than texts have words.
        witnesses: how those are found.
        last: fits to all bags that are finished, those of the least objective.
        evaluations: of the loss of all rows, after a descent on thinned bags.
    """

    ratios: tuple[float, ...] = (1.0, 0.1, 0.01)
    drawn_ratios: tuple[float, ...] = (0.01,)
    drawn_penalties: tuple[float, ...] = (10**-2.0, 10**-2.75, 10**-3.5)
    rises: int = 2
    folds: DescentOptions = FOLDS
    precision: float = 1e-6
    first_penalty: float = 10**-3.5
    first_ratio: float = 1.0
    starts: int = 10
    bags: int = 600
    numbers: int = 2**26
    short: int = 64
    long: int = 1000
    witnesses: StartOptions = WITNESSES
    last: int = 2
    evaluations: int = 12


DEFAULT = PooledOptions()


def fit_pooled(
    training: TrainingBags,
    heads: int,
    hard: bool,
    penalty: float | None,
    options: PooledOptions = DEFAULT,
) -> Predictor:
    """Attention pooling with penalties; see :mod:`attsvm.sklearn.penalised`.

    1. Mean pooling of all penalties and folds, which reads the means of the bags alone.
    2. Attention of all ratios, penalties and folds. A loss of few bags has many optima, so that of
       one candidate is searched from several starts, and the others of its fold begin there; so do
       those of a head that has to decide by one instance, for from uniform attention every instance
       looks alike.
    3. The choice, by the losses of bags left out (:func:`_least`), with the mean among the
       candidates unless one instance has to decide.
    4. The best candidate is fitted to all bags, from where each fold ended and, unless one instance
       has to decide, from the mean; the least objective counts.

    Args:
        training: the bags.
        heads: of attention; 0 is mean pooling.
        hard: whether a head looks at the instance with the largest logit alone.
        penalty: the only one; None for those of the bags.
        options: of the search.
    """
    unit = training.moments.unit
    z = float(np.sqrt(training.shares @ np.sum(training.queries**2, axis=1))) or 1.0
    columns = 1 if training.classes == 2 else training.classes
    drawn = hard and heads == 1
    ratios = options.drawn_ratios if drawn else options.ratios
    penalties = np.array(options.drawn_penalties) if drawn else training.penalties
    if penalty is not None:
        penalties = np.array([penalty])
    few = penalties[1:8:2] if len(penalties) > 4 else penalties
    problem = Pooled(
        training.bags, unit, training.queries / z, training.labels, columns, drawn=drawn
    )
    fits = _Fits(problem, training, heads, options)
    # 1. the means
    training.progress(0, 4)
    rows, ratio_of_row = [fits.means_left_out(penalties)], [np.inf]
    # 2. attention
    if heads:
        rows += fits.attention_left_out(few, ratios, fits.first_optima(few))
        ratio_of_row += ratios
    # 3. the choice
    if drawn:
        rows, ratio_of_row = rows[1:], ratio_of_row[1:]
    losses = [np.array([_loss(training, values) for values in of_row]) for of_row in rows]
    row, position = _least(losses, options.rises)
    ratio = ratio_of_row[row]
    is_mean = ratio == np.inf
    best = float((penalties if is_mean else few)[position])
    # 4. all bags
    training.progress(3, 4)
    head, step = fits.head(training.shares, best)
    W, V = np.zeros((1, training.bags.d, problem.queries.shape[1])), head[None]
    if not is_mean:
        W, V = fits.attention(best, ratio, ratios.index(ratio) * len(few) + position, head)
    training.progress(4, 4)
    layer = PooledLayer(
        W / (unit * z),
        V[:, :-1] / unit,
        CONSTANT * V[:, -1].sum(axis=0),
        hard and not is_mean,
    )
    chosen = rows[row][position]
    return Predictor(layer, best, ratio, np.concatenate(losses), chosen, [step], is_mean)


class _Fits:
    """Fits of all folds beside each other, and to all bags.

    Args:
        problem: all bags, with products in single precision; ``drawn`` where one instance has to
            decide.
        training: the bags.
        heads: of attention.
        options: of the search.
    """

    def __init__(
        self, problem: Pooled, training: TrainingBags, heads: int, options: PooledOptions
    ) -> None:
        self.problem, self.training, self.options = problem, training, options
        self.thin = problem
        self.shape = heads, problem.bags.d, problem.queries.shape[1]
        self.folds = training.few_folds
        self.shares = np.column_stack([training.fold_shares(fold) for fold in self.folds])
        U, S, back = np.linalg.svd(problem.means(), full_matrices=False)
        spans = 1e-12 * S[0] < S  # means have no part beyond, and neither has a penalised head
        self.means, self.back = U[:, spans] * S[spans], back[spans].T
        self.mean_heads: dict[float, FloatArray] = {}  # (k, K, folds) by penalty
        self.weights: tuple[FloatArray, FloatArray] = (np.empty(0), np.empty(0))

    def means_left_out(self, penalties: FloatArray) -> list[FloatArray]:
        """For each penalty ``(n, K)`` values of bags left out of mean pooling."""
        wide = np.repeat(penalties, len(self.folds))
        shares = np.tile(self.shares, (1, len(penalties)))
        heads = mean_heads(self.problem, self.means, shares, wide)
        by_penalty = np.split(heads, len(penalties), axis=-1)
        self.mean_heads = dict(zip(penalties.tolist(), by_penalty, strict=True))
        return self._left_out(np.tensordot(self.means, heads, 1))

    def attention_left_out(
        self,
        penalties: FloatArray,
        ratios: tuple[float, ...],
        start: tuple[FloatArray, FloatArray],
    ) -> list[list[FloatArray]]:
        """For each ratio and each penalty ``(n, K)`` values of bags left out, from the weights of
        each fold at which its descents ``start``.
        """
        count = len(self.folds)
        copies = len(penalties) * len(ratios)
        self.training.progress(2, 4)
        W, V = (np.tile(weights, copies) for weights in start)
        wide = np.tile(np.repeat(penalties, count), len(ratios))
        wide_ratios = np.repeat(ratios, len(penalties) * count)
        shares = np.tile(self.shares, (1, copies))
        W, V = self.weights = self._descended(self.thin, shares, wide, wide_ratios, W, V)
        values = self._left_out(self.problem.values(W, V))
        return [values[k : k + len(penalties)] for k in range(0, copies, len(penalties))]

    def head(self, shares: FloatArray, penalty: float) -> tuple[FloatArray, ConvexStep]:
        """The head ``(d + 1, K)`` of mean pooling for ``(n,)`` shares, and its certificate."""
        coordinates, step = certified_head(self.problem, self.means, shares, penalty)
        return self.back @ coordinates, step

    def attention(
        self, penalty: float, ratio: float, candidate: int, head: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """Attention and heads ``(H, d, d_z)``, ``(H, d + 1, K)`` fitted to all bags.

        Args:
            penalty: on the weights.
            ratio: of the penalty on attention.
            candidate: its position among all ratios and penalties.
            head: of mean pooling.
        """
        at = slice(candidate * len(self.folds), (candidate + 1) * len(self.folds))
        W, V = (folds[..., at] for folds in self.weights)
        # from uniform attention an instance that decides is fitted to poorer optima
        if not self.problem.drawn:
            mean = attention_start(head[..., None], self.shape, self.training.seed)
            W, V = (
                np.concatenate([first, folds], axis=-1)
                for first, folds in zip(mean, (W, V), strict=True)
            )
        shares = self.training.shares[:, None]
        reached = objectives(self.problem, shares, penalty, ratio, W, V)
        best = np.argsort(reached, kind="stable")[: self.options.last]
        W, V, one = W[..., best], V[..., best], np.ones(len(best))
        shares = shares * one
        dtype = np.float32 if self.training.is_coarse else np.float64
        descent = replace(
            self.options.folds,
            iterations=self.training.iterations,
            tolerance=self.options.precision,
        )
        objective = shares, penalty * one, ratio * one
        if self.thin is not self.problem:
            W, V, _ = attention_heads(self.thin, *objective, W, V, descent)
            descent = replace(descent, iterations=self.options.evaluations)
        problem = replace(self.problem, dtype=dtype)
        W, V, reached = attention_heads(problem, *objective, W, V, descent)
        least = int(np.argmin(reached))
        return W[..., least], V[..., least]

    def first_optima(self, penalties: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Weights of each fold, from which all its candidates descend: an optimum of the loss of
        the values of bags, for which attention need not decide yet.

        1. Descents from the mean with changed shares; or, where a mean hides what a few instances
           say, from the mean and from witnesses of both classes.
        2. The one whose objective with the shares of the fold is the least.
        """
        self.training.progress(1, 4)
        options, count = self.options, len(self.folds)
        distances = np.abs(np.log(penalties / options.first_penalty))
        penalty = penalties[np.argmin(distances)]
        # 1. descents
        bag_count = self.training.weights.sum()  # a bag of weight two is two bags
        several = int(np.clip(np.ceil(options.bags / bag_count), 1, options.starts))
        mean_length = self.problem.bags.lengths.mean()
        visible = options.short if several > 1 else options.long
        if mean_length > visible and self.shape[0] == self.problem.columns == 1:
            shares, W, V = self._begun_at_witnesses(penalty)
        else:
            shares, W, V = self._begun_at_means(penalty, several)
        several = W.shape[-1] // count
        one = np.ones(several * count)
        thin = replace(self.thin, drawn=False)
        W, V = self._descended(thin, shares, penalty * one, options.first_ratio * one, W, V)
        # 2. the least objective
        reached = objectives(
            thin, np.tile(self.shares, (1, several)), penalty, options.first_ratio, W, V
        )
        best = np.argmin(reached.reshape(several, count), axis=0) * count + np.arange(count)
        return W[..., best], V[..., best]

    def _begun_at_means(
        self, penalty: float, several: int
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Shares ``(n, several * folds)`` and weights of as many starts: the mean with other shares
        of the bags, larger, the farther a bag's mean lies in a random direction.
        """
        # equal bags have equal factors, so that a repeated one is one of weight two
        generator = np.random.default_rng([self.training.seed, 7])
        means = self.means @ self.back.T
        positions = (means - self.training.shares @ means) @ generator.normal(
            size=(means.shape[1], several)
        )
        spread = np.sqrt(self.training.shares @ positions**2)
        factors = np.exp(positions / np.where(spread > 0, spread, 1.0))
        factors[:, 0] = 1.0
        shares = (factors[:, :, None] * self.shares[:, None]).reshape(len(factors), -1)
        shares /= shares.sum(axis=0)
        head = np.tensordot(self.back, self.mean_heads[penalty], 1)
        start = attention_start(np.tile(head, several), self.shape, self.training.seed)
        return shares, *start

    def _begun_at_witnesses(self, penalty: float) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Shares and weights of the mean and of witnesses, whose likeliest rows are kept of long
        bags.
        """
        options, seed = self.options.witnesses, self.training.seed
        witnesses = witness_starts(self.problem, self.training, self.shares, options)
        self.thin = thinned(self.problem, witnesses.weights, seed, options)
        starts = [
            self._begun_at_means(penalty, 1)[1:],
            weights_at_witnesses(witnesses, self.problem.queries),
        ]
        W, V = (np.concatenate(weights, axis=-1) for weights in zip(*starts, strict=True))
        return np.tile(self.shares, (1, W.shape[-1] // len(self.folds))), W, V

    def _descended(
        self,
        problem: Pooled,
        shares: FloatArray,
        penalty: FloatArray,
        ratio: FloatArray,
        W: FloatArray,
        V: FloatArray,
    ) -> tuple[FloatArray, FloatArray]:
        """Weights of candidates of folds, of which as many go together as have room."""
        size, descent = W[..., 0].size + V[..., 0].size, self.options.folds
        step = max(self.options.numbers // (2 * descent.memory * size), 1)
        fitted = []
        for start in range(0, len(penalty), step):
            at = slice(start, start + step)
            objective = shares[:, at], penalty[at], ratio[at]
            *weights, _ = attention_heads(problem, *objective, W[..., at], V[..., at], descent)
            fitted.append(weights)
        W, V = (np.concatenate(groups, axis=-1) for groups in zip(*fitted, strict=True))
        return W, V

    def _left_out(self, values: FloatArray) -> list[FloatArray]:
        """``(n, K)`` values of bags left out of each candidate, of ``(n, K, C * folds)``."""
        count = len(self.folds)
        by_fold = values.swapaxes(1, 2)
        return [
            left_out_values(by_fold[:, start : start + count], self.folds)
            for start in range(0, by_fold.shape[1], count)
        ]


def _loss(training: TrainingBags, values: FloatArray) -> float:
    """The loss of ``(n, K)`` values of bags left out after their slope."""
    judged = np.flatnonzero(~np.isnan(values[:, 0]))
    labels, weights = training.labels[judged], training.weights[judged]
    return calibration(values[judged], labels, False, weights).loss


def _least(losses: list[FloatArray], rises: int) -> tuple[int, int]:
    """Row and position of the chosen candidate, whose loss is not always the least one.

    The more candidates are compared, the more of them are good by chance. 1. Of the mean (the first
    row) and of attention with the first ratio, smaller penalties are left out once the loss has
    risen so many times above its least; once where attention pays. 2. Each other ratio begins one
    penalty above the best of the ratio before, for less is asked of its attention, and goes where
    the loss falls. Ties go to the mean, then to the stronger penalty.

    Args:
        losses: of the mean, and of attention with each ratio, by falling penalty.
        rises: see above.
    """
    compared: dict[tuple[int, int], float] = {}
    position = 0
    for row, of_row in enumerate(losses):
        if row < 2:
            # 1. down
            mean, best, risen = min(compared.values(), default=-np.inf), 0, 0
            for at, loss in enumerate(of_row):
                compared[row, at] = loss
                best, risen = (at, 0) if loss < of_row[best] else (best, risen + (at > 0))
                if risen >= rises or (risen and of_row[best] < mean):
                    break
            position = best
            continue
        # 2. where it falls
        position = max(position - 1, 0)
        compared[row, position] = of_row[position]
        for way in (-1, 1):
            start = position
            while 0 <= position + way < len(of_row):
                compared[row, position + way] = of_row[position + way]
                if of_row[position + way] >= of_row[position]:
                    break
                position += way
            if position != start:
                break
    return min(compared, key=lambda at: compared[at])
