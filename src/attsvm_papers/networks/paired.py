"""Two methods beside each other: runs of the same seeds, the records at which they are compared,
and intervals of paired differences on the same items.
"""

import numpy as np
from numpy.typing import ArrayLike

from attsvm import InputError
from attsvm.datasets.attention_data import FloatArray, IntArray
from attsvm_papers import kit

_RESAMPLES = 4000
EQUAL = ("steps", "fit", "time")
"""What two trainings have in common where they are compared: the records of the shorter one; the
training accuracy that both reach; the seconds of the faster one.
"""


def same_seeds(
    first_method: kit.Evidence, second_method: kit.Evidence
) -> tuple[kit.Evidence, kit.Evidence]:
    """The runs of two methods whose seeds both have, in the order of the seeds."""
    seeds = np.intersect1d(first_method["seed"], second_method["seed"])
    first_runs, second_runs = (
        kit.in_order(runs.take(np.isin(runs["seed"], seeds)))
        for runs in (first_method, second_method)
    )
    return first_runs, second_runs


def compared_at(first: FloatArray, second: FloatArray, by: str) -> tuple[IntArray, IntArray]:
    """The records ``(runs,)`` of each of two trainings at which both have one of :data:`EQUAL`.

    Args:
        first: ``(runs, records)``, NaN after the last one: training accuracies, or for ``time``
            seconds.
        second: those of the other training.
        by: one of :data:`EQUAL`.
    """
    level = np.minimum(np.nanmax(first, axis=1), np.nanmax(second, axis=1))[:, None]
    if by == "fit":
        return np.argmax(first >= level, axis=1), np.argmax(second >= level, axis=1)
    if by == "time":
        first_record, second_record = (
            np.sum(records <= level, axis=1) - 1 for records in (first, second)
        )
        return np.maximum(first_record, 0), np.maximum(second_record, 0)
    last = np.minimum(*(np.sum(~np.isnan(records), axis=1) for records in (first, second))) - 1
    return last, last


def measures_at_equal(
    pair: tuple[kit.Evidence, kit.Evidence], by: str, measure: str, trajectory: str
) -> tuple[FloatArray, FloatArray]:
    """The measure ``(runs,)`` of each of two methods at the records that :func:`compared_at` finds
    in a trajectory of both.
    """
    records = compared_at(pair[0][trajectory], pair[1][trajectory], by)
    first, second = (
        rows[measure][np.arange(rows.rows), record]
        for rows, record in zip(pair, records, strict=True)
    )
    return first, second


def paired_interval(differences: ArrayLike) -> kit.Interval:
    r"""The mean of paired differences and its 95% interval, for new runs and new items at once: at
    each end the wider of :func:`crossed_bootstrap` and Student's t over the means of the runs.

    A bootstrap over n runs holds :math:`1 - 1/n` of their variance, with three runs two thirds.
    Where runs decide, it covers 76% with three of them and 84% with five, and Student's t 95%.
    Student's t alone takes the items as given, and is too narrow where they decide. Where both
    weigh alike, each of the two leaves out a part of the other, and the wider one covers 95% with
    three runs and 93% with five (simulated).

    With one run nothing is known of others, and the interval is the bootstrap over items alone: it
    answers for new items only.

    Args:
        differences: ``(runs, items)``; items that are NaN in some run are left out of all. Where a
            run has one value, use :func:`~attsvm_papers.kit.interval`.

    Raises:
        InputError: not a matrix, or no item is left.
    """
    table = _complete(differences)
    items = crossed_bootstrap(table)
    if len(table) == 1:
        return items
    runs = kit.interval(table.mean(axis=1))
    return kit.Interval(items.mean, min(items.low, runs.low), max(items.high, runs.high))


def crossed_bootstrap(differences: ArrayLike) -> kit.Interval:
    """The mean of paired differences and the middle 95% of its bootstrap distribution.

    A resample draws runs and items independently of each other with replacement, and takes the mean
    over both: every item is seen by every run, so that the two samples are crossed.

    Args:
        differences: ``(runs, items)``; items that are NaN in some run are left out of all.

    Raises:
        InputError: not a matrix, or no item is left.

    Source: Owen, *The pigeonhole bootstrap* (2007).
    """
    table = _complete(differences)
    runs, items = table.shape
    # Items with equal differences are drawn as one, as often as all of them: answers that are right
    # or wrong have few patterns.
    patterns, counts = np.unique(table, axis=1, return_counts=True)
    rng = np.random.default_rng(0)
    means = []
    # 32 MB of counts at a time
    for resamples in np.array_split(
        np.arange(_RESAMPLES), max(1, _RESAMPLES * len(counts) // 4_000_000)
    ):
        item_weights = rng.multinomial(items, counts / items, size=len(resamples)) / items
        run_weights = rng.multinomial(runs, np.full(runs, 1 / runs), size=len(resamples)) / runs
        means.append(np.sum((item_weights @ patterns.T) * run_weights, axis=1))
    low, high = np.quantile(np.concatenate(means), [0.025, 0.975])
    return kit.Interval(float(table.mean()), float(low), float(high))


def _complete(differences: ArrayLike) -> FloatArray:
    """The differences ``(runs, items)`` of the items that every run has."""
    table = np.asarray(differences, dtype=np.float64)
    if table.ndim != 2:
        raise InputError(f"differences have shape {table.shape}; give (runs, items)")
    table = table[:, ~np.isnan(table).any(axis=0)]
    if not table.size:
        raise InputError("no item has a difference in every run; there is nothing to resample")
    return table
