r"""Where attention pooling begins, and the few rows of long bags that it is first fitted to.

From the mean, attention rarely gets to a few telling instances among many: their share of a mean
is lost in noise. A model of the standard assumption (:mod:`attsvm.sklearn.witness`) looks for such
instances, and its weights :math:`w` are a start of attention: :math:`W=w` and :math:`V=\pm w`, for
witnesses of either class.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from attsvm.datasets.attention_data import FloatArray
from attsvm.datasets.bags import Bags
from attsvm.sklearn import segments
from attsvm.sklearn.choosing import TrainingBags
from attsvm.sklearn.penalised import Pooled
from attsvm.sklearn.stochastic import AdamOptions, Candidates, stochastic_descent
from attsvm.sklearn.witness import Witnesses

FEW_STEPS = AdamOptions(steps=400)
"""Fewer than of a final model: attention descends further from these witnesses."""


@dataclass(frozen=True)
class StartOptions:
    """How witnesses are looked for, and which rows of long bags are fitted to.

    Attributes:
        adam: the stochastic descent to the weights of witnesses.
        penalty: on these weights.
        rows: most rows of a bag that is fitted to; longer bags are thinned to so many.
        heavy: rows of a thinned bag that are its likeliest witnesses; the others are drawn at
            random.
    """

    adam: AdamOptions = FEW_STEPS
    penalty: float = 1e-4
    rows: int = 192
    heavy: int = 64


WITNESSES = StartOptions()
"""Where attention of two classes begins."""


@dataclass(frozen=True, eq=False)
class WitnessStarts:
    """Weights of witnesses of either class.

    Attributes:
        weights: ``(d + 1, 2 * S * F)``: S starts of F folds, first of witnesses of the second
            class, then of those of the first.
        signs: ``(2 * S * F,)``: +1 or -1: what a witness says of the value of its bag.
    """

    weights: FloatArray
    signs: FloatArray


def witness_starts(
    problem: Pooled, training: TrainingBags, shares: FloatArray, options: StartOptions
) -> WitnessStarts:
    """Weights of witnesses of the second class and of the first, for every fold with ``(n, F)``
    shares of the bags and every rate of the descent.
    """
    adam, folds = options.adam, shares.shape[1]
    starts = len(adam.rates)
    candidates = Candidates(
        np.tile(shares, (1, starts)),
        np.full(starts * folds, options.penalty),
        np.repeat(adam.rates, folds),
        np.repeat(adam.falls, folds),
    )
    weights = [
        stochastic_descent(
            Witnesses(problem.bags, labels, problem.unit, 1, null=True),
            candidates,
            training.moments,
            training.seed,
            adam,
            lambda step: None,
        )
        for labels in (problem.labels, 1 - problem.labels)
    ]
    return WitnessStarts(np.hstack(weights), np.repeat([1.0, -1.0], starts * folds))


def weights_at_witnesses(
    witnesses: WitnessStarts, queries: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Weights ``(1, d, d_z, C)`` of attention, whose logits are the scores of witnesses at the mean
    of ``(n, d_z)`` queries, and heads ``(1, d + 1, 1, C)``.
    """
    query = queries.mean(axis=0)
    toward = query / max(float(query @ query), 1e-12)
    W = witnesses.weights[None, :-1, None] * toward[None, None, :, None]
    return W, (witnesses.signs * witnesses.weights)[None, :, None]


def thinned(problem: Pooled, weights: FloatArray, seed: int, options: StartOptions) -> Pooled:
    """The problem with its long bags thinned; ``problem`` itself where no bag is long.

    1. Rows are ranked by the largest attention that any of the ``(d + 1, C)`` weights gives them.
    2. The likeliest stay, each standing for itself.
    3. Others are drawn at random, each standing for as many as one is drawn of, so that the
       softmax of a thinned bag estimates that of the whole one.
    """
    bags = problem.bags
    counts = np.minimum(bags.lengths, options.rows)
    if (counts == bags.lengths).all():
        return problem
    generator = np.random.default_rng([seed, 13])
    offsets = np.concatenate([[0], np.cumsum(counts)])
    rows: FloatArray = np.empty((offsets[-1], bags.d), np.float32)
    log_counts = np.zeros(offsets[-1])
    witnesses = Witnesses(bags, problem.labels, problem.unit, 1, null=True)
    for block in witnesses.blocks(np.float32):
        # 1. Rank rows.
        attention, _ = segments.softmax(witnesses.scores(block.rows, weights), block.cuts)
        largest_attention = attention.max(axis=1)
        for i, begin, end in zip(block.bags, block.cuts, block.cuts[1:], strict=False):
            at = slice(offsets[i], offsets[i + 1])
            chosen, log_count = np.arange(end - begin), np.zeros(end - begin)
            if counts[i] < end - begin:
                # 2. The likeliest, and 3. some of the others with the logarithm of their count.
                order = np.argsort(-largest_attention[begin:end], kind="stable")
                others = options.rows - options.heavy
                light = generator.choice(order[options.heavy :], others, replace=False)
                log_count[light] = np.log((end - begin - options.heavy) / others)
                chosen = np.sort(np.concatenate([order[: options.heavy], light]))
            log_counts[at] = log_count[chosen]
            rows[at] = block.rows[begin + chosen]
    return replace(
        problem, bags=Bags(rows, offsets, None, np.arange(len(rows))), log_counts=log_counts
    )
