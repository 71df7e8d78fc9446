"""Three ways to report an accuracy, on numbers made by hand."""

import numpy as np
import pytest

from attsvm.claims import Evidence
from attsvm_papers.networks.accuracy_table import (
    accuracies,
    are_trained,
    difference,
    mean_accuracy,
)
from attsvm_papers.networks.paired import compared_at
from attsvm_papers.networks.trained_networks import DATA, METHODS


def rows(method: str, right: np.ndarray, seeds: range) -> dict[str, np.ndarray]:
    n = len(seeds)
    return {
        "data": np.full(n, DATA.index("mnist")),
        "method": np.full(n, METHODS.index(method)),
        "depth": np.full(n, 2),
        "tuning": np.zeros(n, dtype=bool),
        "seed": np.array(seeds),
        "epochs": np.full(n, 3),
        "held": np.tile([100, 300], (n, 1)),
        "validation_accuracy": np.tile([0.5, 0.9, 0.7, np.nan], (n, 1)),
        "test_accuracy": np.tile([0.6, 0.7, 0.8, np.nan], (n, 1)),
        "right_mnist": right,
    }


def test_protocols_choose_different_epochs() -> None:
    table = Evidence(rows("l2", np.ones((2, 4)), range(2)))
    # epoch 2 is best on validation; on both sets together accuracies are 57.5, 75 and 77.5
    expected = {"selected": 70.0, "last": 80.0, "published": 77.5}
    assert {name: each.tolist() for name, each in accuracies(table).items()} == {
        name: [pytest.approx(value)] * 2 for name, value in expected.items()
    }
    assert mean_accuracy(table, "last", method=1) == pytest.approx(80.0)
    assert np.isnan(mean_accuracy(table, "last", method=2))


def test_differences_pair_seeds_whatever_their_order() -> None:
    rng = np.random.default_rng(0)
    first, second = rng.integers(2, size=(2, 3, 200)).astype(float)
    backwards = {name: column[::-1] for name, column in rows("adam", second, range(3)).items()}
    table = Evidence.concatenate([rows("l1.1", first, range(3)), backwards])
    found = difference(table, "mnist", "l1.1", "adam")
    assert found.mean == pytest.approx(100 * (first - second).mean())
    assert found.low < found.mean < found.high
    assert difference(table, "mnist", "adam", "l1.1").mean == pytest.approx(-found.mean)
    assert are_trained(table, "mnist", "l1.1", "adam")
    assert not are_trained(table, "imdb", "l1.1")


@pytest.mark.parametrize(("by", "one", "other"), [("steps", 2, 2), ("fit", 2, 2), ("time", 1, 2)])
def test_where_two_trainings_are_compared(by: str, one: int, other: int) -> None:
    """One of four epochs, and one of three that is half as accurate and twice as fast."""
    train = [[0.5, 0.6, 0.8, 0.9]], [[0.5, 0.55, 0.7, np.nan]]
    seconds = [[1.0, 2.0, 4.0, 6.0]], [[0.5, 1.0, 2.0, np.nan]]
    courses = [np.array(each) for each in (seconds if by == "time" else train)]
    assert [int(at[0]) for at in compared_at(*courses, by)] == [one, other]
    assert [int(at[0]) for at in compared_at(*courses[::-1], by)] == [other, one]
