"""Digits as patches: the geometry that makes mean pooling a regression on pixels."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.datasets import load_digits

from attsvm.base.errors import InputError
from attsvm.datasets import digits


@pytest.fixture(scope="module")
def images():
    bunch = load_digits()
    return bunch.images[(bunch.target == 3) | (bunch.target == 8)] / 8.0 - 1.0


def test_the_pair_its_labels_and_its_origin():
    dataset = digits(4, 9)
    target = load_digits().target
    assert dataset.name == "digits:4-9"
    assert dataset.kind == "image"
    assert dataset.class_names == ("4", "9")
    assert dataset.labels.tolist() == [int(label == 9) for label in target if label in (4, 9)]
    assert digits().class_names == ("3", "8")
    assert len(digits()) == 357
    assert digits(9, 4).labels.tolist() == (1 - dataset.labels).tolist()


@pytest.mark.parametrize(("patch", "T"), [(1, 64), (2, 16), (4, 4), (8, 1)])
def test_tokens_add_up_to_the_image(images, patch, T):
    dataset = digits(patch=patch)
    data = dataset.encode(range(100)).data(2 * dataset.labels - 1)
    assert (data.n, data.T, data.d_x, data.d_z) == (357, T, 64, 65)
    assert data.mask.all()
    # blank patches at different places differ; a pixel of middle grey is zero like the rest
    assert data.duplicate_tokens().any() == (patch == 1)
    assert np.array_equal(data.tokens.mean(axis=1) * T, images.reshape(357, 64))
    inside = data.tokens != 0
    assert inside.sum(axis=1).max() == 1  # every pixel in one token
    assert inside.sum(axis=2).max() <= patch * patch


def test_views_put_every_token_in_its_box(images):
    encoded = digits(patch=4, stride=2).encode([0])
    assert set(encoded.bags.lengths) == {9}
    for i in (0, 100, 356):
        view = encoded.views[i]
        pixels = np.array(view["pixels"])
        assert view["kind"] == "image"
        assert pixels.min() >= 0
        assert pixels.max() <= 1
        assert np.array_equal(2 * pixels - 1, images[i])
        for token, (row, column, height, width) in zip(encoded.bags[i], view["boxes"], strict=True):
            blank = np.zeros((8, 8))
            blank[row : row + height, column : column + width] = images[i][
                row : row + height, column : column + width
            ]
            assert np.array_equal(token.reshape(8, 8), blank)


def test_queries_are_centred_by_the_training_rows_only(images):
    train = np.arange(0, 357, 3)
    queries = digits().encode(train).bags.queries
    flat = images.reshape(357, 64)
    centred = flat - flat[train].mean(axis=0)
    assert np.allclose(
        queries[:, :64], centred / np.linalg.norm(centred, axis=1, keepdims=True), atol=1e-15
    )
    assert (queries[:, 64] == 1).all()
    assert not np.array_equal(queries, digits().encode([0, 1]).bags.queries)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"negative": 10}, "negative is 10; choose a digit from 0 to 9"),
        ({"positive": -1}, "positive is -1"),
        ({"negative": 8}, "negative and positive are both 8"),
        ({"patch": 3}, "patches of 3 pixels every 3 do not tile 8 pixels"),
        ({"patch": 2, "stride": 3}, "patches of 2 pixels every 3"),
        ({"patch": 0}, "patches of 0 pixels"),
        ({"patch": 2, "stride": 0}, "patches of 2 pixels every 0"),
    ],
)
def test_arguments_that_are_refused(arguments, sentence):
    with pytest.raises(InputError, match=sentence):
        digits(**arguments)
