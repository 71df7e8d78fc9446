"""Three ways to report an accuracy, on numbers made by hand."""

import numpy as np
import pytest

from attsvm.claims import Evidence
from attsvm_papers.networks.accuracy_table import accuracies, difference, mean_accuracy, trained
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
    found = accuracies(Evidence(rows("l2", np.ones((1, 4)), range(1))))
    assert found["selected"] == pytest.approx([70.0])  # epoch 2 is best on validation
    assert found["last"] == pytest.approx([80.0])
    # On both sets together: 57.5, 75 and 77.5.
    assert found["published"] == pytest.approx([77.5])
    assert mean_accuracy(
        Evidence(rows("l2", np.ones((2, 4)), range(2))), "last", method=1
    ) == pytest.approx(80.0)


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
