"""Test accuracies of trained networks in three protocols, and their differences with intervals."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from attsvm_papers import kit
from attsvm_papers.networks.paired import measures_at_equal, paired_interval, same_seeds
from attsvm_papers.networks.trained_networks import DATA, METHODS

PROTOCOLS = ("selected", "last", "published")
"""The epoch that is best on validation examples; the last epoch; the epoch that is best on the test
examples themselves.
"""


def compared_trainings(evidence: kit.Evidence) -> kit.Evidence:
    """The trainings that are compared, without those that chose a learning rate.

    Raises:
        InputError: there are none.
    """
    return evidence.where(tuning=0)


def deepest(evidence: kit.Evidence) -> kit.Evidence:
    """The compared trainings of the networks with the most blocks: the published figures of weights
    and attention show six.
    """
    rows = compared_trainings(evidence)
    return rows.where(depth=max(rows.levels("depth")))


def accuracies(evidence: kit.Evidence) -> dict[str, NDArray[Any]]:
    """Test accuracy in percent of every row, by protocol.

    ``selected`` and ``last`` are on the test examples that are not for validation. ``published`` is
    what the paper reports: the best epoch on all of the published test set, validation examples
    included, so it was selected on the examples that it is measured on.
    """
    validation, test = evidence["validation_accuracy"], evidence["test_accuracy"]
    rows, last = np.arange(len(test)), evidence["epochs"].astype(int) - 1
    sizes = evidence["held"]
    joint = (validation * sizes[:, :1] + test * sizes[:, 1:]) / sizes.sum(axis=1, keepdims=True)
    selected = np.nanargmax(validation, axis=1)
    return {
        "selected": 100 * test[rows, selected],
        "last": 100 * test[rows, last],
        "published": 100 * np.nanmax(joint, axis=1),
    }


def mean_accuracy(evidence: kit.Evidence, protocol: str, **where: Any) -> float:
    """Mean over runs, in percent, NaN where there is no such run."""
    keep = np.ones(evidence.rows, dtype=bool)
    for name, value in where.items():
        keep &= evidence[name] == value
    return float(accuracies(evidence.take(keep))[protocol].mean()) if keep.any() else float("nan")


def difference(evidence: kit.Evidence, data: str, first: str, second: str) -> kit.Interval:
    """Test accuracy of one method minus another's at the last epoch, in percentage points, with its
    95% interval over seeds and test examples, that of
    :func:`~attsvm_papers.networks.paired.paired_interval`.

    Pairs are runs of the same seed and the same test example.

    Raises:
        InputError: a method was not trained on these data.
    """
    first_runs, second_runs = _pair(evidence, data, first, second)
    return paired_interval(100 * (first_runs[f"right_{data}"] - second_runs[f"right_{data}"]))


def _pair(
    evidence: kit.Evidence, data: str, first: str, second: str
) -> tuple[kit.Evidence, kit.Evidence]:
    """The runs of two methods on these data with the fewest blocks."""
    rows = compared_trainings(evidence).where(data=DATA.index(data))
    rows = rows.where(depth=min(rows.levels("depth")))
    first_runs, second_runs = (rows.where(method=METHODS.index(name)) for name in (first, second))
    return same_seeds(first_runs, second_runs)


def with_interval(interval: kit.Interval, digits: int = 1) -> str:
    """A mean with its interval, as a sentence says it."""
    return "{:.{d}f} ({:.{d}f} to {:.{d}f})".format(*interval, d=digits)


def at_equal(evidence: kit.Evidence, data: str, first: str, second: str, by: str) -> kit.Interval:
    """Test accuracy of one method minus another's where both have one of
    :data:`~attsvm_papers.networks.paired.EQUAL`, in percentage points, with their 95% interval over
    seeds (Student's t).

    Raises:
        InputError: a method was not trained on these data.
    """
    pair = _pair(evidence, data, first, second)
    trajectory = "elapsed" if by == "time" else "train_accuracy"
    first_accuracy, second_accuracy = measures_at_equal(pair, by, "test_accuracy", trajectory)
    return kit.interval(100 * (first_accuracy - second_accuracy))


def whole_test(evidence: kit.Evidence, data: str, count: int) -> bool:
    """Whether networks on these data were tested on all of the published test set."""
    rows = evidence.take(evidence["data"] == DATA.index(data))
    return bool(rows.rows and (rows["held"].sum(axis=1) == count).all())


def are_trained(evidence: kit.Evidence, data: str, *methods: str) -> bool:
    """Whether every one of the methods was trained on these data."""
    rows = evidence["data"] == DATA.index(data)
    return all(bool(np.any(rows & (evidence["method"] == METHODS.index(name)))) for name in methods)
