import numpy as np
import pytest

from attsvm import AttentionData
from attsvm.base.errors import InputError
from attsvm.sklearn.preparation import small_classes, split_by_class
from attsvm.sklearn.stage import argmax_tokens, probabilities


def ragged(seed=0, n=80, d=4):
    generator = np.random.default_rng(seed)
    labels = np.where(np.arange(n) % 2 == 0, 1.0, -1.0)
    bags = [generator.normal(size=(generator.integers(1, 6), d)) + 0.4 * label for label in labels]
    return AttentionData.from_bags(bags, labels), bags


def test_splits_are_stratified_sorted_and_disjoint():
    labels = np.array([1] * 30 + [0] * 10)
    rest, part = split_by_class(labels, 0.2, 0, ("no", "yes"))
    assert np.array_equal(np.sort(np.concatenate([rest, part])), np.arange(40))
    assert np.bincount(labels[part]).tolist() == [2, 6]
    assert np.array_equal(split_by_class(labels, 0.2, 0, ("no", "yes"))[1], part)
    assert not np.array_equal(split_by_class(labels, 0.2, 1, ("no", "yes"))[1], part)


def test_a_class_that_cannot_be_split_is_called_by_its_name():
    with pytest.raises(InputError, match=r"class rare has 2 sequences; at least 3 of each class"):
        split_by_class(np.array([0] * 9 + [1] * 2), 0.2, 0, ("often", "rare"), least=2)


def test_small_classes_are_named_together_in_the_word_of_the_data():
    names = [f"k{k}" for k in range(7)]
    counts = np.array([9, 1, 2, 0, 1, 2, 1])
    said = "class k1 has 1 text, class k2 has 2 texts, class k3 has 0 texts, class k4 has 1 text"
    assert small_classes(counts, names, 3, "text") == f"{said} and 2 more classes have fewer than 3"
    assert small_classes(counts[:3], names, 2, "image") == "class k1 has 1 image"
    assert small_classes(counts, names, 0, "text") == ""


def test_masked_tokens_are_never_selected():
    data, _ = ragged()
    for sign in (-1e3, 1e3):  # with one of them the padding would be ahead
        W = np.full((data.d_x, data.d_z), sign)
        assert (argmax_tokens(data, W) < data.lengths).all()
        weights = probabilities(data, W)
        assert (weights[~data.mask] == 0).all()
        np.testing.assert_allclose(weights.sum(axis=1), 1.0, rtol=1e-12)
