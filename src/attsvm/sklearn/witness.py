r"""The standard assumption: a bag is positive because it holds a witness, and a negative bag holds
none.

Attention goes over the instances of a bag and one *null* token of logit 0. With scores
:math:`g_t=w^\top x_t+b`,

.. math:: P(\text{witness is } t)=\frac{e^{g_t}}{1+\sum_\tau e^{g_\tau}},\qquad
          P(\text{no witness})=\frac1{1+\sum_\tau e^{g_\tau}},

so a bag is positive with probability :math:`\sigma(s)`, :math:`s=\log\sum_te^{g_t}`. No weight can
make an instance speak *against* a witness elsewhere in its bag: more instances never lower the
value. As weights grow this becomes the max-margin selection of the theory: in a negative bag the
null token is ahead of every instance, in a positive one the witness is ahead of the null token and
of its rivals. A positive bag of several ``heads`` needs a witness of each,
:math:`P=\prod_h\sigma(s_h)`. With three classes or more there is no null token: each class has its
own scores, and the attention over all pairs of instance and class sums to one.

The penalised loss :math:`\sum_ic_i\,(-\log P(y_i))+\frac\lambda2\|w\|^2` is not convex, because the
witness is unknown. Its path starts at a large penalty, where weights are small and attention is
nearly uniform, and ends at the penalty asked for; other paths start from guesses of the witnesses
(instances that positive bags have something near to and negative bags do not), and the smallest
loss counts. Then two steps alternate: *select* (which
instance is the witness: the softmax over the bag, or its largest score) and a *convex step* with
the selection fixed,

.. math:: \min_w\ \sum_ic_i\Big(\log\big(1+\textstyle\sum_te^{g_{it}}\big)-\sum_t\tau_{it}g_{it}
          \Big)+\tfrac\lambda2\|w\|^2 .

Each pair of steps lowers the loss; the end is a local optimum. Every convex step is certified: the
probabilities of the step are feasible for its dual, and by Fenchel and Young the gap between primal
and dual value is exactly :math:`\|\nabla\|^2/2\lambda`.

Sources: Dietterich, Lathrop and Lozano-Perez (1997) for the assumption; Andrews, Tsochantaridis and
Hofmann (2003) for the alternation; Raff and Holt (2023) for why the form matters.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from attsvm.datasets.attention_data import FloatArray, IntArray
from attsvm.sklearn import segments
from attsvm.sklearn.choosing import CONSTANT
from attsvm.sklearn.minimise import ConvexStep, certified, cross_entropy, descend, log_sum

FROM = 0.001
"""The penalty at which guesses of the witnesses enter."""
_MOST_ALTERNATIONS = 20
_TRIED, _TRIED_WORK = 400, 2e9
_RANDOM_SIZE = 0.1  # of the first weights of further heads, which must differ from one another


@dataclass(frozen=True, eq=False)
class Witnesses:
    """Bags with classes, as the standard assumption reads them.

    Attributes:
        rows: ``(N, d + 1)``: instances with the constant feature.
        offsets: ``(n + 1,)``.
        labels: ``(n,)``: 0 and 1 of two classes, or 0 to K - 1.
        columns: scores of an instance: heads of two classes, or classes.
        null: whether there is a null token (two classes).
    """

    rows: FloatArray
    offsets: IntArray
    labels: IntArray
    columns: int
    null: bool

    def scores(self, theta: FloatArray) -> FloatArray:
        """``(N, columns)``."""
        return self.rows @ theta.T

    def loss(self, theta: FloatArray, shares: FloatArray) -> tuple[float, FloatArray]:
        """The loss without penalty, and its gradient ``(columns, d + 1)``."""
        p, s = segments.softmax(self.scores(theta), self.offsets)
        losses, slope = self._losses(s)
        slope *= shares[:, None]
        p *= np.repeat(slope, np.diff(self.offsets), axis=0)
        return float(shares @ losses), p.T @ self.rows

    def _losses(self, s: FloatArray) -> tuple[FloatArray, FloatArray]:
        """``(n,)`` losses and ``(n, columns)`` slopes in the logarithms of the sums."""
        if not self.null:
            return cross_entropy(s, self.labels)
        found, missed = -np.logaddexp(0.0, -s), np.exp(-np.logaddexp(0.0, s))
        all_found = found.sum(axis=1)
        none = _log_one_minus_exp(all_found)
        positive = self.labels > 0
        odds = np.exp(np.minimum(all_found - none, 700.0))
        slope = np.where(positive[:, None], -missed, odds[:, None] * missed)
        return np.where(positive, -all_found, -none), slope

    def targets(self, theta: FloatArray, hard: bool) -> FloatArray:
        """``(N, columns)``: the share of each instance in being the witness, under ``theta``."""
        scores = self.scores(theta)
        p, s = segments.softmax(scores, self.offsets)
        if hard:
            p = segments.hardmax(scores, self.offsets)
        if not self.null:
            share = (self.labels[:, None] == np.arange(self.columns)).astype(np.float64)
        elif self.columns == 1:
            share = (self.labels > 0).astype(np.float64)[:, None]
        else:  # in a negative bag, how likely each head has found one although not all have
            found = -np.logaddexp(0.0, -s)
            every = found.sum(axis=1, keepdims=True)
            share = np.exp(found) * -np.expm1(every - found) / -np.expm1(every)
            share = np.where(self.labels[:, None] > 0, 1.0, share)
        return np.asarray(p * np.repeat(share, np.diff(self.offsets), axis=0))

    def surrogate(
        self, theta: FloatArray, shares: FloatArray, targets: FloatArray
    ) -> tuple[float, FloatArray]:
        """The loss of the convex step and its gradient."""
        scores = self.scores(theta)
        p, s = segments.softmax(scores, self.offsets)
        total = np.logaddexp(0.0, s).sum(axis=1) if self.null else log_sum(s)
        slope = np.exp(-np.logaddexp(0.0, -s)) if self.null else np.exp(s - total[:, None])
        lengths = np.diff(self.offsets)
        each = np.repeat(shares, lengths)[:, None]
        pulled = each * (p * np.repeat(slope, lengths, axis=0) - targets)
        value = float(shares @ total - np.sum(each * targets * scores))
        return value, pulled.T @ self.rows

    def start(self, seed: int, shares: FloatArray | None = None) -> FloatArray:
        """Small weights: attention is nearly uniform, and no bag is called positive or negative."""
        theta = np.zeros((self.columns, self.rows.shape[1]))
        if self.null:
            theta[:, -1] = -np.log(np.average(np.diff(self.offsets), weights=shares)) / CONSTANT
            if self.columns > 1:
                generator = np.random.default_rng([seed, self.columns])
                theta[:, :-1] = _RANDOM_SIZE * generator.normal(size=theta[:, :-1].shape)
        return theta


def best_paths(
    problem: Witnesses,
    shares: FloatArray,
    penalties: FloatArray,
    starts: list[FloatArray],
    iterations: int,
) -> Iterator[FloatArray]:
    """At each of the falling ``penalties`` the weights of smallest loss and penalty among those
    that the starts lead to, each from those before. The first start begins at the largest penalty,
    the others, which are no small weights, at :data:`FROM`.
    """
    found: list[FloatArray | None] = [starts[0], *[None for _ in starts[1:]]]
    for penalty in penalties:
        best, least = starts[0], np.inf
        for k, start in enumerate(starts):
            if k == 0 or penalty <= FROM or penalty == penalties[-1]:
                before = found[k]
                theta = descend(
                    lambda at: problem.loss(at, shares),
                    start if before is None else before,
                    float(penalty),
                    iterations,
                )
                found[k] = theta
                size = problem.loss(theta, shares)[0] + 0.5 * penalty * float(np.sum(theta**2))
                if size < least:
                    best, least = theta, size
        yield best


def prototypes(problem: Witnesses, shares: FloatArray, count: int, seed: int) -> list[IntArray]:
    r"""Guesses of the witnesses: in each positive bag the row nearest to one instance of a positive
    bag, for the instances whose distance from bags separates the classes best.

    At most 400 instances are tried, fewer for large tables.

    Source: the starts of Maron and Lozano-Perez, *A Framework for Multiple-Instance Learning*
    (1998).
    """
    from scipy.stats import rankdata

    used = shares > 0
    positive = np.flatnonzero(used & (problem.labels > 0))
    starts = problem.offsets
    rows = np.concatenate([np.arange(starts[i], starts[i + 1]) for i in positive])
    tried = min(_TRIED, int(_TRIED_WORK / problem.rows.size), len(rows))
    rows = np.sort(np.random.default_rng([seed, 7]).choice(rows, tried, replace=False))
    X = problem.rows[:, :-1]
    near = X @ X[rows].T - 0.5 * np.einsum("nd,nd->n", X, X)[:, None]
    nearest = segments.largest(near, starts)[used]
    ranks = rankdata(nearest, axis=0)[problem.labels[used] > 0].sum(axis=0)
    chosen = np.argsort(-ranks, kind="stable")[:count]
    return [segments.first_largest(np.ascontiguousarray(near[:, k]), starts) for k in chosen]


def guessed_start(
    problem: Witnesses, shares: FloatArray, guess: IntArray, penalty: float, iterations: int
) -> FloatArray:
    """The weights of the convex step for these ``(n,)`` witnesses."""
    targets = np.zeros((len(problem.rows), 1))
    targets[(problem.offsets[:-1] + guess)[problem.labels > 0]] = 1.0
    start = problem.start(0, shares)
    return descend(lambda at: problem.surrogate(at, shares, targets), start, penalty, iterations)


def alternate(
    problem: Witnesses, shares: FloatArray, penalty: float, theta: FloatArray, hard: bool
) -> tuple[FloatArray, list[ConvexStep]]:
    """Selection and convex step in turn until the selection stands, or twenty times."""
    steps: list[ConvexStep] = []
    before = None
    for _ in range(_MOST_ALTERNATIONS):
        targets = problem.targets(theta, hard)
        moved = np.inf if before is None else float(np.abs(targets - before).max())
        if moved <= (0.0 if hard else 1e-3):
            break
        theta, step = certified(
            partial(problem.surrogate, shares=shares, targets=targets), theta, penalty
        )
        steps.append(step)
        before = targets
    return theta, steps


def _log_one_minus_exp(x: FloatArray) -> FloatArray:
    r""":math:`\log(1-e^x)` for :math:`x<0`."""
    with np.errstate(divide="ignore"):
        value: FloatArray = np.where(
            x > -np.log(2.0), np.log(-np.expm1(x)), np.log1p(-np.exp(np.minimum(x, -0.1)))
        )
    return np.maximum(value, -700.0)
