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


def fit_pooled(training: TrainingBags, heads: int, hard: bool, penalty: float | None) -> Predictor:
    """Attention pooling with penalties; see :mod:`attsvm.sklearn.penalised`.

    1. Mean pooling goes down the penalties until the loss of bags left out rises; it reads the
       means of the bags alone.
    2. Attention with the first ratio does.
    3. Every other ratio begins one penalty above the best one of the ratio before, for less is
       asked of its attention, and goes where the loss falls. Ties go to the mean, then to the
       stronger penalty.
    4. The best candidate is fitted to all bags.

    Args:
        training: the bags.
        heads: of attention; 0 is mean pooling.
        hard: whether a head looks at the instance with the largest logit alone.
        penalty: the only one; None for those of the bags.
    """
    unit = training.moments.unit
    z = float(np.sqrt(training.shares @ np.sum(training.queries**2, axis=1))) or 1.0
    columns = 1 if training.classes == 2 else training.classes
    dtype = np.float32 if training.is_coarse else np.float64
    problem = Pooled(training.bags, unit, training.queries / z, training.labels, columns, dtype)
    penalties = [penalty] if penalty is not None else training.penalties.tolist()
    search = _Search(problem, training, heads, penalties)
    # 1. to 3.
    search.down(np.inf)
    if heads:
        position = search.down(RATIOS[0])
        for ratio in RATIOS[1:]:
            position = search.climb(ratio, max(position - 1, 0))
    candidates = search.candidates
    ratio, position = min(candidates, key=lambda at: candidates[at].loss)
    # 4.
    fit = _Fit(problem, search.means, training.shares)
    step = fit.pool(penalties[position])
    W, V = fit.weights(penalties[position], ratio, heads, training)
    training.progress(search.total, search.total)
    is_mean = ratio == np.inf  # whatever `hard` says, for there is no largest logit
    layer = PooledLayer(
        W / (unit * z),
        V[:, :-1] / unit,
        CONSTANT * V[:, -1].sum(axis=0),
        hard and not is_mean,
    )
    losses = np.array([candidate.loss for candidate in candidates.values()])
    left_out = candidates[ratio, position].values
    return Predictor(layer, penalties[position], ratio, losses, left_out, [step], is_mean)


@dataclass(frozen=True, eq=False)
class _Candidate:
    """The loss and the ``(n, C)`` values of bags left out."""

    loss: float
    values: FloatArray


class _Search:
    """Candidates by ratio and position among the falling penalties, fitted when they are needed."""

    def __init__(
        self, problem: Pooled, training: TrainingBags, heads: int, penalties: list[float]
    ) -> None:
        self.problem, self.training = problem, training
        self.heads, self.penalties = heads, penalties
        self.means = problem.means()
        self.folds: list[Fold] = training.few_folds
        self.fits = [_Fit(problem, self.means, training.fold_shares(fold)) for fold in self.folds]
        self.tests = [problem.take(fold.test) for fold in self.folds]
        self.total = len(penalties) * (2 if heads else 1) + 6
        self.candidates: dict[tuple[float, int], _Candidate] = {}

    def down(self, ratio: float) -> int:
        """The position of the least loss, from the strongest penalty on, until the loss has risen
        once where attention pays, or else :data:`RISES` times.
        """
        losses = [candidate.loss for candidate in self.candidates.values()]
        mean = min(losses, default=-np.inf)
        best, rises = 0, 0
        for position in range(len(self.penalties)):
            loss, least = self.loss(ratio, position), self.loss(ratio, best)
            best, rises = (position, 0) if loss < least else (best, rises + (position > 0))
            if rises >= RISES or (rises and least < mean):
                break
        return best

    def climb(self, ratio: float, position: int) -> int:
        """The position of a least loss near ``position``."""
        for way in (-1, 1):
            moved = False
            while 0 <= position + way < len(self.penalties) and self.loss(
                ratio, position + way
            ) < self.loss(ratio, position):
                position, moved = position + way, True
            if moved:
                break
        return position

    def loss(self, ratio: float, position: int) -> float:
        """The loss of a candidate."""
        if (ratio, position) not in self.candidates:
            training = self.training
            training.progress(min(len(self.candidates), self.total - 1), self.total)
            values = self._left_out(ratio, self.penalties[position])
            judged = np.flatnonzero(~np.isnan(values[:, 0]))
            labels, weights = training.labels[judged], training.weights[judged]
            loss = calibration(values[judged], labels, False, weights).loss
            self.candidates[ratio, position] = _Candidate(loss, values)
        return self.candidates[ratio, position].loss

    def _left_out(self, ratio: float, penalty: float) -> FloatArray:
        """``(n, C)`` values of bags by the folds that left them out, their mean where they are
        several, ``nan`` where there is none.
        """
        n = self.problem.bags.n
        total, count = np.zeros((n, self.problem.columns)), np.zeros(n)
        for fold, fit, test in zip(self.folds, self.fits, self.tests, strict=True):
            fit.pool(penalty)
            W, V = fit.weights(penalty, ratio, self.heads, self.training)
            is_mean = ratio == np.inf
            total[fold.test] += self.means[fold.test] @ V[0] if is_mean else test.values(W, V)
            count[fold.test] += 1.0
        with np.errstate(invalid="ignore"):
            return total / count[:, None]


class _Fit:
    """Fits to the bags with a positive share, of one penalty after the other.

    Args:
        problem: all bags.
        means: ``(n, d + 1)`` of them.
        shares: ``(n,)``.
    """

    def __init__(self, problem: Pooled, means: FloatArray, shares: FloatArray) -> None:
        used = np.flatnonzero(shares > 0)
        self.problem = problem.take(used)
        self.shares = shares[used] / shares[used].sum()
        U, S, back = np.linalg.svd(means[used], full_matrices=False)
        spans = 1e-12 * S[0] < S  # means have no part beyond, and neither has a penalised head
        self.means, self.back = U[:, spans] * S[spans], back[spans].T
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
        self, penalty: float, ratio: float, heads: int, training: TrainingBags
    ) -> tuple[FloatArray, FloatArray]:
        """Attention and head weights, from mean pooling of this penalty."""
        head = self.back @ self.heads[penalty][0]
        if ratio == np.inf:
            d, d_z = len(head) - 1, self.problem.queries.shape[1]
            return np.zeros((1, d, d_z)), head[None]
        settings = heads, training.seed, training.iterations
        return attention_heads(self.problem, self.shares, penalty, ratio, head, *settings)
