"""Files of bags: rows, the bag of each row, one label per bag."""

import numpy as np
import pytest

from attsvm.base.errors import InputError
from attsvm.datasets import load


def saved(tmp_path, **arrays):
    path = tmp_path / "bags.npz"
    generator = np.random.default_rng(0)
    given = {
        "X": generator.normal(size=(6, 3)),
        "groups": np.array([7, 2, 7, 7, 2, 5]),
        "y": np.array([1, 0, 1]),
    } | arrays
    np.savez(path, **{key: value for key, value in given.items() if value is not None})
    return path, given


def test_rows_with_groups_are_bags_in_the_order_in_which_they_appear(tmp_path):
    path, given = saved(tmp_path)
    dataset = load(str(path))
    assert dataset.labels.tolist() == [1.0, -1.0, 1.0]
    assert dataset.class_names == ("0", "1")
    data = dataset.encode([0, 1, 2]).data
    assert data.lengths.tolist() == [3, 2, 1]
    np.testing.assert_array_equal(data.tokens[0], given["X"][[0, 2, 3]])
    np.testing.assert_array_equal(data.tokens[1, :2], given["X"][[1, 4]])
    np.testing.assert_allclose(data.queries[:, 0], np.sqrt(0.5))


@pytest.mark.parametrize(
    ("arrays", "sentence"),
    [
        ({"y": None}, "has groups but no array y"),
        ({"y": np.ones(6)}, "one per instance; give one per bag"),
        ({"y": np.arange(3)}, "y holds 3 classes; attsvm fit needs two"),
        ({"groups": np.zeros(5)}, r"groups has shape \(5,\)"),
        ({"X": np.full((6, 3), np.inf)}, "bag 0 holds inf"),
    ],
)
def test_bad_files_are_one_sentence(tmp_path, arrays, sentence):
    with pytest.raises(InputError, match=sentence):
        load(str(saved(tmp_path, **arrays)[0]))
