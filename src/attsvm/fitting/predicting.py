r"""The predictors of bags: penalties chosen on bags left out, then one fit to all.

Values become probabilities, :math:`\sigma(af+b)`, or :math:`\mathrm{softmax}(af)` of three classes
or more, by the values of bags that the model did not see. Attention pooling chooses its penalty and
the ratio of attention together, by the losses of bags left out after that slope: before it, a
strong penalty is charged for small values, not for wrong ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from attsvm.data import FloatArray, IntArray
from attsvm.fitting.layers import Layer, PooledLayer, WitnessLayer
from attsvm.fitting.minimise import ConvexStep, cross_entropy
from attsvm.fitting.penalised import Pooled, attention_heads, losses, mean_head
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
    from sklearn.model_selection import StratifiedKFold

    count = max(min(folds, int(np.bincount(labels).min())), 2)
    parts = StratifiedKFold(count, shuffle=True, random_state=seed).split(labels, labels)
    return [part for _, part in parts][: 1 if single else count]


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
RISES = 2
"""How often a loss may rise above its least before smaller penalties are left out."""
GUESSES = 3
"""Guesses of the witnesses that a path starts from, besides small weights."""
_COARSE = 600_000  # numbers in a table from which fewer penalties are tried, in fewer steps
_MANY = 500  # bags from which leaving one part out is enough where descents are coarse
_ITERATIONS, _FEW = 100, 40


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
        told = calibration(chosen.values[seen], table.labels[seen], shift=True)
        fitted = replace(fitted, threshold=-told.offset / told.slope)
    return Predictor(
        fitted, penalty, None, chosen.losses, chosen.values - fitted.threshold, steps, False
    )


def fit_pooled(table: Table, heads: int, hard: bool, asked: float | None) -> Predictor:
    """Attention pooling with penalties; see :mod:`attsvm.fitting.penalised`.

    The mean and the first ratio go down the penalties until the loss of bags left out rises. Every
    other ratio begins one penalty above the best one of the ratio before, for less is asked of its
    attention, and goes where the loss falls. Ties go to the mean, then to the stronger penalty.
    """
    rows, unit = table.scaled()
    z = root_mean_square(table.queries)
    columns = 1 if table.classes == 2 else table.classes
    problem = Pooled(rows, table.offsets, table.queries / z, table.labels, columns)
    penalties = [asked] if asked is not None else table.penalties(None).tolist()
    search = _Search(problem, table, heads, penalties)
    search.down(np.inf)
    if heads:
        place = search.down(RATIOS[0])
        for ratio in RATIOS[1:]:
            place = search.climb(ratio, max(place - 1, 0))
    ratio, place = min(search.found, key=lambda at: search.found[at].loss)
    chosen, penalty = search.found[ratio, place], penalties[place]
    whole = _Fit(problem, table.shares)
    step = whole.pool(penalty)
    W, V = whole.weights(penalty, ratio, heads, table)
    table.progress(search.total, search.total)
    uniform = ratio == np.inf  # is the mean whatever `hard` says: there is no largest logit
    layer = PooledLayer(
        W / (unit * z),
        V[:, :-1] / unit,
        CONSTANT * V[:, -1].sum(axis=0),
        hard and not uniform,
    )
    told = np.array([one.loss for one in search.found.values()])
    return Predictor(layer, penalty, ratio, told, chosen.values, [step], uniform)


@dataclass(frozen=True, eq=False)
class _Candidate:
    """The loss and the values of bags left out."""

    loss: float
    values: FloatArray


class _Search:
    """Candidates by ratio and place among the falling penalties, fitted when they are asked for."""

    def __init__(self, problem: Pooled, table: Table, heads: int, penalties: list[float]) -> None:
        self.problem, self.table, self.heads, self.penalties = problem, table, heads, penalties
        self.parts = table.parts
        self.seen = np.concatenate(self.parts)
        self.folds = [_Fit(problem, _without(table.shares, part)) for part in self.parts]
        self.tested = [problem.take(part) for part in self.parts]
        self.total = len(penalties) * (2 if heads else 1) + 6
        self.found: dict[tuple[float, int], _Candidate] = {}

    def down(self, ratio: float) -> int:
        """The place of the least loss, from the strongest penalty on, until the loss has risen once
        where attention pays, or else :data:`RISES` times.
        """
        mean = min((one.loss for one in self.found.values()), default=-np.inf)
        best, rises = 0, 0
        for place in range(len(self.penalties)):
            loss, least = self.loss(ratio, place), self.loss(ratio, best)
            best, rises = (place, 0) if loss < least else (best, rises + (place > 0))
            if rises >= RISES or (rises and least < mean):
                break
        return best

    def climb(self, ratio: float, place: int) -> int:
        """The place of a least loss near ``place``."""
        for way in (-1, 1):
            moved = False
            while 0 <= place + way < len(self.penalties) and self.loss(
                ratio, place + way
            ) < self.loss(ratio, place):
                place, moved = place + way, True
            if moved:
                break
        return place

    def loss(self, ratio: float, place: int) -> float:
        """The loss of a candidate."""
        if (ratio, place) not in self.found:
            self.table.progress(min(len(self.found), self.total - 1), self.total)
            table, penalty = self.table, self.penalties[place]
            values = np.full((len(table.labels), self.problem.columns), np.nan)
            for part, fold, tested in zip(self.parts, self.folds, self.tested, strict=True):
                fold.pool(penalty)
                values[part] = tested.values(*fold.weights(penalty, ratio, self.heads, table))
            known, shares = table.labels[self.seen], table.shares[self.seen]
            loss = calibration(values[self.seen], known, False, shares).loss
            self.found[ratio, place] = _Candidate(loss, values)
        return self.found[ratio, place].loss


def _without(shares: FloatArray, part: IntArray) -> FloatArray:
    left = shares.copy()
    left[part] = 0.0
    return left


class _Fit:
    """Fits to the bags with a positive share, of one penalty after the other."""

    def __init__(self, problem: Pooled, shares: FloatArray) -> None:
        used = np.flatnonzero(shares > 0)
        self.problem = problem.take(used)
        self.shares = shares[used] / shares[used].sum()
        U, S, back = np.linalg.svd(self.problem.means(), full_matrices=False)
        kept = 1e-12 * S[0] < S  # means have no part beyond, and neither has a penalised head
        self.means, self.back = U[:, kept] * S[kept], back[kept].T
        self.last: FloatArray | None = None
        self.heads: dict[float, tuple[FloatArray, ConvexStep]] = {}

    def pool(self, penalty: float) -> ConvexStep:
        """Mean pooling of this penalty, from the last one."""
        if penalty not in self.heads:
            self.heads[penalty] = mean_head(
                self.problem, self.means, self.shares, penalty, self.last
            )
            self.last = self.heads[penalty][0]
        return self.heads[penalty][1]

    def weights(
        self, penalty: float, ratio: float, heads: int, table: Table
    ) -> tuple[FloatArray, FloatArray]:
        """Attention and head weights, from mean pooling of this penalty."""
        head = self.back @ self.heads[penalty][0]
        if ratio == np.inf:
            d, d_z = len(head) - 1, self.problem.queries.shape[1]
            return np.zeros((1, d, d_z)), head[None]
        settings = heads, table.seed, table.iterations
        return attention_heads(self.problem, self.shares, penalty, ratio, head, *settings)


def _losses(values: FloatArray, table: Table) -> FloatArray:
    """``(n,)`` losses of values; ``nan`` stays."""
    found, seen = np.full(len(values), np.nan), ~np.isnan(values[:, 0])
    found[seen] = losses(values[seen], table.labels[seen])[0]
    return found


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
