"""New rows are encoded by what others have learned; their labels may be missing."""

import csv

import numpy as np
import pytest

import attsvm

CLASSES = ("bad", "good")


def _table(path, rows, header=("text", "label", "id")):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    return path


@pytest.fixture
def films(tmp_path):
    words = ["dull", "warm", "weak", "fine"] * 5
    rows = [[f"a {word} film {k}", CLASSES[k % 2], f"f{k}"] for k, word in enumerate(words)]
    return _table(tmp_path / "films.csv", rows)


def test_learned_word_vectors_encode_the_same_rows_alike(films):
    options = {"dim": 2, "min_count": 1}
    encoded = attsvm.datasets.load(films, **options).encode(range(12))
    again = attsvm.datasets.load(films, **options).encode_as(encoded.learned)
    assert np.array_equal(again.bags.rows, encoded.bags.rows)
    assert np.array_equal(again.bags.offsets, encoded.bags.offsets)


def test_images_keep_the_mean_of_the_training_images():
    dataset = attsvm.datasets.load("digits:3-8", patch=4)
    encoded = dataset.encode(range(100))
    assert np.array_equal(dataset.encode_as(encoded.learned).bags.queries, encoded.bags.queries)
    with pytest.raises(attsvm.InputError, match="give data of the same kind"):
        dataset.encode_as({})


def test_new_texts_need_no_labels_and_keep_their_numbers(tmp_path):
    rows = [["a dull film", "good", "x"], ["", "good", "y"], ["a fine film", "NA", "z"]]
    path = _table(tmp_path / "new.csv", rows)
    dataset = attsvm.datasets.load(path, classes=CLASSES, id="id", skip_empty=True)
    assert dataset.labels.tolist() == [1, -1]
    assert dataset.class_names == CLASSES
    assert (dataset.ids, dataset.numbers.tolist()) == (["x", "z"], [1, 3])
    path = _table(tmp_path / "bare.csv", [["a dull film"]], header=["text"])
    assert attsvm.datasets.load(path, classes=CLASSES).labels.tolist() == [-1]


def test_a_label_that_the_model_does_not_know_is_named(tmp_path):
    path = _table(tmp_path / "new.csv", [["a dull film", "goood", "x"]])
    with pytest.raises(attsvm.InputError, match=r"has the label goood.*did you mean good"):
        attsvm.datasets.load(path, classes=CLASSES)


def test_numbers_that_are_equal_are_one_class(tmp_path):
    path = _table(tmp_path / "new.csv", [["a dull film", "1.0", "x"], ["a film", "0", "y"]])
    assert attsvm.datasets.load(path, classes=("0", "1")).labels.tolist() == [1, 0]


def test_a_missing_column_of_identifiers_is_named(films):
    with pytest.raises(attsvm.InputError, match=r"no column idd.*did you mean id"):
        attsvm.datasets.load(films, id="idd")


def test_arrays_need_no_labels_either(tmp_path):
    X = np.random.default_rng(0).normal(size=(3, 4, 2))
    np.savez(tmp_path / "new.npz", X=X)
    dataset = attsvm.datasets.load(tmp_path / "new.npz", classes=("-1", "+1"))
    assert dataset.labels.tolist() == [-1, -1, -1]
    assert dataset.encode_as({}).bags.rows.shape == (12, 2)
    np.savez(tmp_path / "bags.npz", X=X[0], groups=[0, 0, 1, 1])
    assert attsvm.datasets.load(tmp_path / "bags.npz", classes=CLASSES).labels.tolist() == [-1, -1]
    np.savez(tmp_path / "bags.npz", X=X[0], groups=[0, 0, 1, 1], y=["good", "fair"])
    with pytest.raises(attsvm.InputError, match="has the label fair; the model knows bad and good"):
        attsvm.datasets.load(tmp_path / "bags.npz", classes=CLASSES)
