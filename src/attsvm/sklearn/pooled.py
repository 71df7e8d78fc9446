"""Attention pooling, its penalty and the ratio of attention chosen together.

Candidates are compared by the losses of bags left out after the slope of their probabilities:
before it, a strong penalty is charged for small values, not for wrong ones.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attsvm.datasets.attention_data import FloatArray
from attsvm.sklearn.choosing import CONSTANT, Fold, Predictor, TrainingBags, calibration
from attsvm.sklearn.layers import PooledLayer
from attsvm.sklearn.minimise import ConvexStep
from attsvm.sklearn.penalised import Pooled, attention_heads, mean_head

RATIOS = (1.0, 0.1, 0.01)
"""Penalties on attention weights that are tried, relative to that on the head; attention that does
not pay is left out.
"""
RISES = 2
"""How often a loss may rise above its least before smaller penalties are left out."""


def fit_pooled(table: TrainingBags, heads: int, hard: bool, asked: float | None) -> Predictor:
    """Attention pooling with penalties; see :mod:`attsvm.sklearn.penalised`.

    The mean and the first ratio go down the penalties until the loss of bags left out rises. Every
    other ratio begins one penalty above the best one of the ratio before, for less is asked of its
    attention, and goes where the loss falls. Ties go to the mean, then to the stronger penalty.
    """
    rows, unit = table.scaled()
    z = float(np.sqrt(table.shares @ np.sum(table.queries**2, axis=1))) or 1.0
    columns = 1 if table.classes == 2 else table.classes
    problem = Pooled(rows, table.bags.offsets, table.queries / z, table.labels, columns)
    penalties = [asked] if asked is not None else table.penalties.tolist()
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

    def __init__(
        self, problem: Pooled, table: TrainingBags, heads: int, penalties: list[float]
    ) -> None:
        self.problem, self.table, self.heads, self.penalties = problem, table, heads, penalties
        self.parts: list[Fold] = table.few_folds
        self.seen = np.unique(np.concatenate([fold.test for fold in self.parts]))
        self.folds = [_Fit(problem, table.fold_shares(fold)) for fold in self.parts]
        self.tested = [problem.take(fold.test) for fold in self.parts]
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
                values[part.test] = tested.values(*fold.weights(penalty, ratio, self.heads, table))
            known, weights = table.labels[self.seen], table.weights[self.seen]
            loss = calibration(values[self.seen], known, False, weights).loss
            self.found[ratio, place] = _Candidate(loss, values)
        return self.found[ratio, place].loss


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
        self, penalty: float, ratio: float, heads: int, table: TrainingBags
    ) -> tuple[FloatArray, FloatArray]:
        """Attention and head weights, from mean pooling of this penalty."""
        head = self.back @ self.heads[penalty][0]
        if ratio == np.inf:
            d, d_z = len(head) - 1, self.problem.queries.shape[1]
            return np.zeros((1, d, d_z)), head[None]
        settings = heads, table.seed, table.iterations
        return attention_heads(self.problem, self.shares, penalty, ratio, head, *settings)
