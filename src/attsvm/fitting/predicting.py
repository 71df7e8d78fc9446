r"""The predictors of bags: penalty chosen on bags left out, then one fit to all.

Values become probabilities, :math:`\sigma(af+b)`, or :math:`\mathrm{softmax}(af)` of three classes
or more, by the values of bags that the model did not see.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from attsvm.data import FloatArray, IntArray
from attsvm.fitting.layers import Layer, PooledLayer, WitnessLayer
from attsvm.fitting.minimise import ConvexStep, cross_entropy, descend
from attsvm.fitting.penalised import Pooled, attention_heads, mean_head
from attsvm.fitting.preparation import root_mean_square
from attsvm.fitting.witness import (
    CONSTANT,
    FROM,
    Witnesses,
    alternate,
    best_paths,
    guessed_start,
    prototypes,
)

_RANGE = (-7.0, 7.0)  # of the logarithm of the slope


def calibration(values: FloatArray, labels: IntArray, shift: bool) -> tuple[float, float]:
    r"""Slope ``a > 0`` and offset ``b``, which is 0 unless ``shift``.

    Args:
        values: ``(n, C)``, of bags left out.
        labels: ``(n,)``: 0 and 1, or 0 to C - 1.
        shift: whether the values of two classes may move against zero.

    Source: Platt (1999), with his targets :math:`(n_k+1)/(n_k+2)` for two classes, which keep the
    slope finite where values separate the classes; temperature scaling otherwise.
    """
    from scipy.optimize import minimize

    two = values.shape[1] == 1
    if two:
        many = np.bincount(labels, minlength=2)
        targets = np.where(labels > 0, (many[1] + 1) / (many[1] + 2), 1 / (many[0] + 2))

    def loss(at: FloatArray) -> float:
        scaled = np.exp(np.clip(at[0], *_RANGE)) * values
        if two:
            f = scaled[:, 0] + (at[1] if shift else 0.0)
            return float(np.mean(np.logaddexp(0.0, f) - targets * f))
        return float(np.mean(cross_entropy(scaled, labels)[0]))

    found = minimize(loss, np.zeros(2 if shift else 1), method="Nelder-Mead").x
    return float(np.exp(np.clip(found[0], *_RANGE))), float(found[1]) if shift else 0.0


Values = FloatArray
Course = Callable[[FloatArray], Sequence[FloatArray]]
"""From the share of each bag in the loss (zero where it is left out) to the values of all bags,
``(n, columns)``, one array for each candidate."""

FOLDS = 5


@dataclass(frozen=True, eq=False)
class Choice:
    """The candidate with the smallest loss on bags left out.

    Attributes:
        index: which one; the first on ties, so candidates come by falling penalty.
        losses: ``(candidates,)``: mean loss on bags left out.
        values: ``(n, columns)``: what models that did not see a bag say of it, ``nan`` where no
            model left it out.
    """

    index: int
    losses: FloatArray
    values: Values


def left_out(labels: IntArray, folds: int, seed: int, single: bool) -> list[IntArray]:
    """Bags to leave out together, each class spread over the folds; only the first fold when
    ``single``.
    """
    folds = max(min(folds, int(np.bincount(labels).min())), 2)
    generator = np.random.default_rng([seed, 11])
    fold = np.empty(len(labels), dtype=np.int64)
    start = 0
    for label in np.unique(labels):
        members = generator.permutation(np.flatnonzero(labels == label))
        fold[members] = (start + np.arange(len(members))) % folds
        start += len(members)
    return [np.flatnonzero(fold == k) for k in range(1 if single else folds)]


def choose(
    course: Course,
    parts: Sequence[IntArray],
    shares: FloatArray,
    losses: Callable[[Values], FloatArray],
) -> Choice:
    """Fit without each part in turn, and see what each candidate says of it.

    Args:
        course: fits all candidates.
        parts: the bags left out each time.
        shares: ``(n,)`` shares of the bags in the loss.
        losses: the ``(n,)`` losses of values.
    """
    kept: list[Any] = []
    for part in parts:
        without = shares.copy()
        without[part] = 0.0
        without /= without.sum()
        found = course(without)
        if not kept:
            kept = [np.full_like(values, np.nan) for values in found]
        for whole, values in zip(kept, found, strict=True):
            whole[part] = values[part]
    seen = np.concatenate(list(parts))
    weight = shares[seen] / shares[seen].sum()
    mean = np.array([float(weight @ losses(values)[seen]) for values in kept])
    best = int(np.argmin(mean))
    return Choice(best, mean, kept[best])


PENALTIES = 10.0 ** np.arange(-1.0, -5.1, -0.5)
"""Penalties that are tried, for instances of root-mean-square norm one and a loss that is a mean
over bags.
"""
RATIOS = (1.0, 0.1, 0.01)
"""Penalties on attention weights that are tried, relative to that on the head; attention that does
not pay is left out.
"""
GUESSES = 3
"""Guesses of the witnesses that a path starts from, besides small weights."""
_COARSE = 600_000  # numbers in a table from which fewer penalties are tried, in fewer steps
_LARGE, _SAMPLE = 3_000_000, 1_500_000  # from which a sample chooses the penalty; its size
_MANY = 500  # bags from which leaving one part out is enough where descents are coarse
_FEWEST = 200  # bags of a sample
_TOLD = 0.95  # the loss of a sample's fit, relative to that of constant values
_ITERATIONS, _FEW = 100, 40


@dataclass(frozen=True, eq=False)
class Predictor:
    """A fitted model of bags.

    Attributes:
        layer: the model, in the units of the data.
        penalty: the penalty that was used, relative to the mean loss of a bag.
        ratio: the penalty on attention weights relative to it; ``inf`` where attention is uniform,
            None where it follows the scores.
        losses: ``(candidates,)`` mean losses on bags left out.
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

    @property
    def iterations(self) -> int:
        """Steps of one descent."""
        return _FEW if self.coarse else _ITERATIONS

    def sample(self) -> tuple[IntArray, Table] | None:
        """Some bags, the same share of each class, of a table in which a fit to all is slow: they
        choose penalty and start. None for other tables.
        """
        size = max(_FEWEST, int(len(self.labels) * _SAMPLE / self.rows.size))
        if self.rows.size <= _LARGE or size >= len(self.labels):
            return None
        folds = len(self.labels) // size
        chosen = left_out(self.labels, folds, self.seed + 1, single=True)[0]
        lengths = np.diff(self.offsets)
        rows = self.rows[np.repeat(np.isin(np.arange(len(lengths)), chosen), lengths)]
        shares = self.shares[chosen] / self.shares[chosen].sum()
        return chosen, replace(
            self,
            rows=rows,
            offsets=np.concatenate([[0], np.cumsum(lengths[chosen])]),
            queries=self.queries[chosen],
            labels=self.labels[chosen],
            shares=shares,
        )

    def told_by(self, some: Predictor) -> bool:
        """Whether a fit to a sample tells bags left out better than the classes' shares do, by
        :data:`_TOLD`: where witnesses are rare, a sample may hold too few of them.
        """
        share = np.bincount(self.labels, weights=self.shares, minlength=self.classes)
        return bool(some.losses.min() < -_TOLD * share @ np.log(share))

    def scattered(self, chosen: IntArray, values: FloatArray) -> FloatArray:
        """``(n, C)`` from the values of some bags, ``nan`` elsewhere."""
        whole = np.full((len(self.labels), values.shape[1]), np.nan)
        whole[chosen] = values
        return whole

    def scaled(self) -> tuple[FloatArray, float]:
        """Instances of root-mean-square norm one with the constant feature, and their unit."""
        unit = root_mean_square(self.rows)
        rows = np.empty((len(self.rows), self.rows.shape[1] + 1))
        np.divide(self.rows, unit, out=rows[:, :-1])
        rows[:, -1] = CONSTANT
        return rows, unit

    def penalties(self, asked: float | None) -> FloatArray:
        """What is tried, falling; only the last is a candidate when one was asked for."""
        if asked is None:
            return PENALTIES[1:8:2] if self.coarse else PENALTIES
        return np.append(PENALTIES[asked < PENALTIES], asked)


def fit_witnesses(table: Table, heads: int, hard: bool, asked: float | None) -> Predictor:
    """The standard assumption; see :mod:`attsvm.fitting.witness`."""
    rows, unit = table.scaled()
    null = table.classes == 2
    problem = Witnesses(rows, table.offsets, table.labels, heads if null else table.classes, null)
    penalties, first = table.penalties(asked), problem.start(table.seed)
    sample = table.sample()

    def layer(theta: FloatArray) -> WitnessLayer:
        return WitnessLayer(theta[:, :-1] / unit, CONSTANT * theta[:, -1], null, hard)

    def paths(shares: FloatArray, tried: FloatArray) -> list[FloatArray]:
        tick()
        starts = [first]
        if problem.columns == 1:
            starts += [
                guessed_start(problem, shares, guess, FROM, table.iterations)
                for guess in prototypes(problem, shares, GUESSES, table.seed)
            ]
        return list(best_paths(problem, shares, tried, starts, table.iterations))

    def course(shares: FloatArray) -> list[FloatArray]:
        return [
            layer(theta).read(table.rows, table.offsets, table.queries).values
            for theta in paths(shares, penalties)
        ][0 if asked is None else -1 :]

    if sample and table.told_by(some := fit_witnesses(sample[1], heads, hard, asked)):
        near = cast(WitnessLayer, some.layer)
        start = np.column_stack([near.w * unit, near.intercept / CONSTANT])
        theta = descend(lambda at: problem.loss(at, table.shares), start, some.penalty, _ITERATIONS)
        theta, steps = alternate(problem, table.shares, some.penalty, theta, hard)
        found = replace(layer(theta), threshold=near.threshold)
        left = table.scattered(sample[0], some.left_out)
        return replace(some, layer=found, left_out=left, steps=steps)
    parts = table.parts
    tick = _Ticks(table.progress, len(parts) + 2)
    chosen = choose(course, parts, table.shares, lambda values: _losses(values, table))
    stop = chosen.index if asked is None else len(penalties) - 1
    penalty = float(penalties[stop])
    start = paths(table.shares, penalties[: stop + 1])[-1]
    tick()
    theta, steps = alternate(problem, table.shares, penalty, start, hard)
    fitted = layer(theta)
    if hard and null:  # the largest score is less than the sum that the loss knows
        seen = ~np.isnan(chosen.values[:, 0])
        slope, shift = calibration(chosen.values[seen], table.labels[seen], shift=True)
        fitted = replace(fitted, threshold=-shift / slope)
    return Predictor(
        fitted, penalty, None, chosen.losses, chosen.values - fitted.threshold, steps, False
    )


def fit_pooled(table: Table, heads: int, hard: bool, asked: float | None) -> Predictor:
    """Attention pooling with penalties; see :mod:`attsvm.fitting.penalised`."""
    rows, unit = table.scaled()
    z = root_mean_square(table.queries)
    columns = 1 if table.classes == 2 else table.classes
    problem = Pooled(rows, table.offsets, table.queries / z, table.labels, columns)
    U, S, back = np.linalg.svd(problem.means(), full_matrices=False)
    kept = 1e-12 * S[0] < S
    means, back = U[:, kept] * S[kept], back[kept].T
    penalties = table.penalties(asked)
    nothing = np.zeros((1, rows.shape[1] - 1, table.queries.shape[1]))

    def uniform(shares: FloatArray) -> list[FloatArray]:
        tick()
        head, values = None, []
        for penalty in penalties:
            head, _ = mean_head(problem, means, shares, float(penalty), head)
            values.append(means @ head)
        return values[0 if asked is None else -1 :]

    def attending(shares: FloatArray) -> list[FloatArray]:
        tick()
        head, _ = mean_head(problem, means, shares, penalty, None)
        return [
            layer(*attend(shares, back @ head, ratio))
            .read(table.rows, table.offsets, table.queries)
            .values
            for ratio in RATIOS
        ]

    def attend(shares: FloatArray, head: FloatArray, ratio: float) -> tuple[FloatArray, FloatArray]:
        return attention_heads(
            problem, shares, penalty, ratio, head, heads, table.seed, table.iterations
        )

    def layer(W: FloatArray, V: FloatArray) -> PooledLayer:
        return PooledLayer(W / (unit * z), V[:, :-1] / unit, CONSTANT * V[:, -1].sum(axis=0), hard)

    sample = table.sample()
    if sample and table.told_by(some := fit_pooled(sample[1], heads, hard, asked)):
        penalty, ratio = some.penalty, cast(float, some.ratio)
        head, step = mean_head(problem, means, table.shares, penalty, None)
        left = table.scattered(sample[0], some.left_out)
        found = layer(nothing, (back @ head)[None])
        if some.convex:
            found = replace(found, hard=False)
        else:
            found = layer(*attend(table.shares, back @ head, ratio))
        return replace(some, layer=found, left_out=left, steps=[step])
    parts = table.parts
    tick = _Ticks(table.progress, 2 * len(parts) + 1)
    chosen = choose(uniform, parts, table.shares, lambda values: _losses(values, table))
    penalty = float(penalties[chosen.index if asked is None else -1])
    head, step = mean_head(problem, means, table.shares, penalty, None)
    losses = chosen.losses
    if heads > 0:
        attended = choose(attending, parts, table.shares, lambda values: _losses(values, table))
        losses = np.concatenate([losses, attended.losses])
        if attended.losses.min() < chosen.losses[chosen.index]:
            tick()
            ratio = RATIOS[attended.index]
            weights = attend(table.shares, back @ head, ratio)
            return Predictor(
                layer(*weights), penalty, ratio, losses, attended.values, [step], False
            )
    # Uniform attention is the mean whatever `hard` says: there is no largest logit.
    fitted = replace(layer(nothing, (back @ head)[None]), hard=False)
    return Predictor(fitted, penalty, np.inf, losses, chosen.values, [step], True)


def _losses(values: FloatArray, table: Table) -> FloatArray:
    """``(n,)`` losses of values; ``nan`` stays."""
    losses, seen = np.full(len(values), np.nan), ~np.isnan(values[:, 0])
    empty: Any = np.empty((0, 0))
    some = Pooled(empty, table.offsets, empty, table.labels[seen], values.shape[1])
    losses[seen] = some.losses(values[seen])[0]
    return losses


class _Ticks:
    """Counts the steps of a predictor."""

    def __init__(self, progress: Callable[[int, int], None], total: int) -> None:
        self.progress, self.total, self.done = progress, total, 0

    def __call__(self) -> None:
        self.progress(self.done, self.total)
        self.done += 1


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
