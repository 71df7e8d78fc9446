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
    assert dataset.labels.tolist() == [1, 0, 1]
    assert dataset.class_names == ("0", "1")
    encoded = dataset.encode([0, 1, 2])
    bags, data = encoded.bags, encoded.data([1, -1, 1])
    assert bags.lengths.tolist() == [3, 2, 1]
    np.testing.assert_array_equal(bags[0], given["X"][[0, 2, 3]])
    np.testing.assert_array_equal(bags[1], given["X"][[1, 4]])
    np.testing.assert_allclose(data.queries[:, 0], np.sqrt(0.5))


def test_bags_have_as_many_classes_as_there_are_labels(tmp_path):
    dataset = load(str(saved(tmp_path, y=np.array(["cat", "ant", "bee"]))[0]))
    assert dataset.class_names == ("ant", "bee", "cat")
    assert dataset.labels.tolist() == [2, 0, 1]


@pytest.mark.parametrize(
    ("arrays", "sentence"),
    [
        ({"y": None}, "has groups but no array y"),
        ({"y": np.ones(6)}, "one per instance; give one per bag"),
        ({"y": np.ones(3)}, "y holds one class, 1.0; give bags of two or more"),
        ({"groups": np.zeros(5)}, r"groups has shape \(5,\)"),
        ({"X": np.full((6, 3), np.inf)}, "bag 0 holds inf"),
    ],
)
def test_bad_files_are_one_sentence(tmp_path, arrays, sentence):
    with pytest.raises(InputError, match=sentence):
        load(str(saved(tmp_path, **arrays)[0]))
