"""Three ways to report an accuracy, on numbers made by hand."""

import numpy as np
import pytest

from attsvm.claims import Evidence
from attsvm_papers.kit import experiment
from attsvm_papers.networks.accuracy_table import (
    accuracies,
    at_equal,
    difference,
    mean_accuracy,
    trained,
)
from attsvm_papers.networks.paired import EQUAL, compared_at
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
    assert trained(table, "mnist", "l1.1", "adam")
    assert not trained(table, "imdb", "l1.1")


def learned(method: str, lr: float, accuracy: float, tuning: bool) -> dict[str, object]:
    """Two trainings of four epochs on a whole test set."""
    course = np.tile(accuracy - np.array([0.2, 0.1, 0.05, 0.0]), (2, 1))
    course += 0.001 * np.arange(2)[:, None]
    numbers = {"data": DATA.index("imdb"), "method": METHODS.index(method), "depth": 2, "epochs": 4}
    numbers |= {"lr": lr, "tuning": tuning}
    return {
        **{name: np.full(2, value) for name, value in numbers.items()},
        "seed": np.arange(2),
        "held": np.tile([5000, 20_000], (2, 1)),
        "validation_accuracy": course,
        "test_accuracy": course,
        "train_accuracy": np.tile([0.7, 0.8, 0.85, 0.9], (2, 1)),
        "elapsed": np.tile([1.0, 2.0, 3.0, 4.0], (2, 1)),
    }


@pytest.mark.parametrize("by", EQUAL)
def test_one_seed_decides_nothing_where_it_gives_one_number(by: str) -> None:
    ends = {"l1.1": 0.9, "l2": 0.85}
    rows = [learned(method, 1.0, end, False) for method, end in ends.items()]
    one = Evidence.concatenate(rows).where(seed=0)
    found = at_equal(one, "imdb", "l1.1", "l2", by)
    assert found == (pytest.approx(5.0), -np.inf, np.inf)


def test_claims_about_networks_that_learn_hold_and_fail_on_their_nulls() -> None:
    ends = {"l1.1": 0.9, "l2": 0.85, "adam": 0.84}
    table = Evidence.concatenate(
        [
            learned(method, lr, end if lr == 2.0 else end - 0.1, tuning)
            for method, end in ends.items()
            for lr, tuning in ((1.0, True), (2.0, True), (4.0, True), (2.0, False))
        ]
    )
    names = ("E4j", "E4m")
    known = {c.id: c.check(table) for c in experiment("md-5").claims if c.id in names}
    for name in names:
        assert (known[name].verdict, known[name].null.verdict) == ("holds", "fails"), name
    assert [*known["E4m"].parts] == [
        f"{name}, equal {each}"
        for name in ("p = 2", "Adam")
        for each in ("steps", "training accuracy", "time")
    ]
    told = known["E4m"].claim.explanation(table)
    assert told.startswith("Points: p = 2, equal steps 5.0 (5.0 to 5.0)")


@pytest.mark.parametrize(("by", "one", "other"), [("steps", 2, 2), ("fit", 2, 2), ("time", 1, 2)])
def test_where_two_trainings_are_compared(by: str, one: int, other: int) -> None:
    """One of four epochs, and one of three that is half as accurate and twice as fast."""
    train = [[0.5, 0.6, 0.8, 0.9]], [[0.5, 0.55, 0.7, np.nan]]
    seconds = [[1.0, 2.0, 4.0, 6.0]], [[0.5, 1.0, 2.0, np.nan]]
    courses = [np.array(each) for each in (seconds if by == "time" else train)]
    assert [int(at[0]) for at in compared_at(*courses, by)] == [one, other]
    assert [int(at[0]) for at in compared_at(*courses[::-1], by)] == [other, one]
