"""Bootstrap intervals of paired differences: two methods on the same items, in several runs
each.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from attsvm import InputError


class Interval(NamedTuple):
    """A mean with its percentile interval."""

    mean: float
    low: float
    high: float


def paired_interval(
    differences: ArrayLike, confidence: float = 0.95, resamples: int = 4000, seed: int = 0
) -> Interval:
    r"""The mean of paired differences and its bootstrap interval.

    A resample draws runs and items independently of each other with replacement, and takes the mean
    over both: every item is seen by every run, so that the two samples are crossed. The interval
    answers for new items and for new seeds at once, and errs on the wide side. With one run it
    answers for new items only; with very few runs the share that belongs to seeds is rough, since n
    runs hold :math:`1 - 1/n` of their variance.

    Args:
        differences: ``(runs, items)``; items that are NaN in some run are left out of all.
        confidence: coverage that is aimed at.
        resamples: number of resamples.
        seed: of the resampling.

    Raises:
        InputError: not a matrix, or no item is left.

    Source: Owen, *The pigeonhole bootstrap* (2007).
    """
    table = np.asarray(differences, dtype=np.float64)
    if table.ndim != 2:
        raise InputError(f"differences have shape {table.shape}; give (runs, items)")
    table = table[:, ~np.isnan(table).any(axis=0)]
    runs, items = table.shape
    if not table.size:
        raise InputError("no item has a difference in every run; there is nothing to resample")
    # Items with equal differences are drawn as one, as often as all of them: answers that are right
    # or wrong have few patterns.
    patterns, counts = np.unique(table, axis=1, return_counts=True)
    rng = np.random.default_rng(seed)
    means = []
    for part in np.array_split(
        np.arange(resamples), max(1, resamples * len(counts) // 4_000_000)
    ):  # 32 MB of counts at a time
        of_items = rng.multinomial(items, counts / items, size=len(part)) / items
        of_runs = rng.multinomial(runs, np.full(runs, 1 / runs), size=len(part)) / runs
        means.append(np.sum((of_items @ patterns.T) * of_runs, axis=1))
    low, high = np.quantile(np.concatenate(means), [(1 - confidence) / 2, (1 + confidence) / 2])
    return Interval(float(table.mean()), float(low), float(high))
