r"""Many candidates of the standard assumption by Adam over batches of whole bags.

All candidates are columns of one product in single precision. Steps are made in coordinates in
which features are centred and of deviation one, :math:`w=u/\sigma`, :math:`b=a-\mu^\top w`, so that
one length of step suits all of them; the objective stays that of :math:`w` and :math:`b`.

Source: Kingma and Ba, *Adam: A Method for Stochastic Optimization* (2015).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from attsvm.base.cores import map_on_threads
from attsvm.datasets.attention_data import BoolArray, FloatArray, IntArray
from attsvm.datasets.rows import RowReader, matmul
from attsvm.sklearn import segments
from attsvm.sklearn.choosing import CONSTANT
from attsvm.sklearn.moments import Moments
from attsvm.sklearn.passes import most_readers
from attsvm.sklearn.witness import Witnesses

_PRODUCTS = 1.5e7
"""Least products of numbers for the scores of a share, which then takes more than a millisecond."""


@dataclass(frozen=True)
class AdamOptions:
    """How candidates are descended to.

    Attributes:
        steps: whatever the number of bags is; half as many leave some of six sets unfinished.
        batches: into how many a pass over the bags is cut, unless batches then have fewer than
            ``least`` bags.
        least: bags of a batch.
        rates: length of the first steps of each start. The long one is erratic alone, the short one
            stays in bad optima alone.
        falls: for each start whether its penalty falls to its own, during the first half.
        strongest: penalty that the falling ones begin at.
        momentum, squares: decay of the means of gradients and of their squares.
        shares: most threads that go through a batch.
    """

    steps: int = 800
    batches: int = 125
    least: int = 4
    rates: tuple[float, ...] = (0.03, 0.1)
    falls: tuple[bool, ...] = (True, False)
    strongest: float = 10**-2.5
    momentum: float = 0.9
    squares: float = 0.99
    shares: int = 4


@dataclass(frozen=True, eq=False)
class Candidates:
    """The objective of each of ``C`` columns, and how it is descended.

    Attributes:
        shares: ``(n, C)`` of the bags in the loss.
        penalty: ``(C,)``.
        rate: ``(C,)``: length of the first steps.
        falls: ``(C,)``: whether the penalty falls.
    """

    shares: FloatArray
    penalty: FloatArray
    rate: FloatArray
    falls: BoolArray


def stochastic_descent(
    problem: Witnesses,
    candidates: Candidates,
    moments: Moments,
    seed: int,
    options: AdamOptions,
    tick: Callable[[int], None],
) -> FloatArray:
    """Weights ``(d + 1, C * G)`` of instances in units, with the constant feature last.

    For each batch: 1. scores in the units of the data; 2. losses and slopes of the bags; 3. the
    gradient in the coordinates of the steps, with the penalty of now; 4. the step of Adam, whose
    length falls to zero as a cosine.
    """
    groups, n, d = problem.columns, problem.bags.n, problem.bags.d
    single = np.float32
    mean: FloatArray = (moments.mean / problem.unit).astype(single)
    deviation: FloatArray = (moments.deviation / problem.unit).astype(single)
    penalty, rate = (
        np.repeat(values, groups).astype(single) for values in (candidates.penalty, candidates.rate)
    )
    falls = np.repeat(candidates.falls, groups)
    strongest = np.maximum(penalty, single(options.strongest))
    start = start_weights(problem, candidates.shares, seed)
    u: FloatArray = start[:-1].astype(single) * deviation[:, None]
    a: FloatArray = (CONSTANT * start[-1]).astype(single) + mean @ start[:-1].astype(single)
    first, second = np.zeros((d + 1, len(a)), single), np.zeros((d + 1, len(a)), single)
    size = max(options.least, -(-n // options.batches))
    generator = np.random.default_rng([seed, 11])
    batches = _endless(problem.labels, size, generator)
    scored = problem.bags.offsets[-1] * size / n * first.size  # products for the scores of a batch
    count = int(np.clip(scored / _PRODUCTS, 1, options.shares))
    readers = [RowReader(problem.bags.rows, problem.bags.offsets, single) for _ in range(count)]
    most = most_readers(problem.bags)
    for step in range(1, options.steps + 1):
        bags = next(batches)
        w = u / deviation[:, None]
        b = a - mean @ w
        # 1. and 2. of shares of the batch with about as many rows each
        by_length = bags[np.argsort(-problem.bags.lengths[bags], kind="stable")]
        bag_shares = [np.sort(by_length[k::count]) for k in range(min(count, len(bags)))]
        slopes = functools.partial(
            _slopes, problem, candidates.shares, n / len(bags), w / single(problem.unit), b
        )
        read = map_on_threads(slopes, list(zip(readers, bag_shares, strict=False)), most)
        of_constant, of_rows = (sum(sums[1:], sums[0]) for sums in zip(*read, strict=True))
        # 3. gradient
        progress = min(2.0 * step / options.steps, 1.0)
        now = np.where(falls, strongest ** (1.0 - progress) * penalty**progress, penalty)
        at_b = of_constant + now * b / single(CONSTANT**2)
        at_w = of_rows / single(problem.unit) + now * w
        gradient = np.vstack([(at_w - np.outer(mean, at_b)) / deviation[:, None], at_b])
        # 4. step
        first += (1.0 - options.momentum) * (gradient - first)
        second += (1.0 - options.squares) * (gradient * gradient - second)
        cosine = 0.5 * (1.0 + np.cos(np.pi * step / options.steps))
        length = rate * single(cosine / (1.0 - options.momentum**step))
        move = np.sqrt(second / single(1.0 - options.squares**step))
        move += single(1e-8)
        np.divide(first, move, out=move)
        move *= length
        u -= move[:-1]
        a -= move[-1]
        tick(step)
    w = (u / deviation[:, None]).astype(np.float64)
    return np.vstack([w, (a - mean @ w) / CONSTANT])


def _slopes(
    problem: Witnesses,
    shares: FloatArray,
    scale: float,
    w: FloatArray,
    b: FloatArray,
    reader_and_bags: tuple[RowReader, IntArray],
) -> tuple[FloatArray, FloatArray]:
    """The gradient ``(C * G,)`` of the losses of some bags in ``b``, and ``(d, C * G)`` in ``w``,
    which is of rows in the units of the data.
    """
    reader, bags = reader_and_bags
    # 1. scores
    rows, cuts = reader.take(bags)
    scores = matmul(rows, w)
    scores += b
    powers, total, top = segments.powers(scores, cuts)
    sums = top + np.log(total)
    # 2. slopes, of a loss of all bags
    _, slopes = problem.losses(
        sums.reshape(len(bags), -1, problem.columns).astype(np.float64), problem.labels[bags]
    )
    slopes *= shares[bags][..., None] * scale
    slope = slopes.reshape(len(bags), -1).astype(np.float32) / total
    powers *= np.repeat(slope, np.diff(cuts), axis=0)
    return powers.sum(axis=0), rows.T @ powers


def start_weights(
    problem: Witnesses, shares: FloatArray, seed: int, spread: float = 0.0
) -> FloatArray:
    """Small weights ``(d + 1, C * G)`` for ``(n, C)`` shares: attention is nearly uniform, and no
    bag is called positive or negative. Several heads get random ones of this ``spread``.
    """
    count, groups = shares.shape[1], problem.columns
    weights = np.zeros((problem.bags.d + 1, count * groups))
    if problem.null:
        lengths = shares.T @ problem.bags.lengths / shares.sum(axis=0)
        weights[-1] = -np.repeat(np.log(lengths), groups) / CONSTANT
        if groups > 1:
            random = np.random.default_rng([seed, groups]).normal(size=(problem.bags.d, groups))
            weights[:-1] = np.tile(spread * random, (1, count))
    return weights


def _endless(labels: IntArray, size: int, generator: np.random.Generator) -> Iterator[IntArray]:
    """Rising positions of the bags of batch after batch, each with its share of every class."""
    while True:
        keys = np.empty(len(labels))
        for label in np.unique(labels):
            members = np.flatnonzero(labels == label)
            shifted = np.arange(len(members)) + generator.random()
            keys[generator.permutation(members)] = shifted / len(members)
        order = np.argsort(keys)
        for start in range(0, len(order), size):
            yield np.sort(order[start : start + size])
