from __future__ import annotations

import base64
import io

import numpy as np
import pytest
from PIL import Image

from attsvm.report import pixels


def decoded(uri: str) -> np.ndarray:
    head, _, body = uri.partition(",")
    assert head == "data:image/png;base64"
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(body))))


@pytest.mark.parametrize("shape", [(8, 8), (1, 5), (28, 28), (4, 3, 3)])
def test_png_holds_the_pixels(shape: tuple[int, ...]) -> None:
    values = np.random.default_rng(0).integers(0, 256, shape)
    np.testing.assert_array_equal(decoded(pixels.data_uri(values.astype(float), 0, 255)), values)


def test_constant_image_is_black_and_nan_is_zero() -> None:
    assert decoded(pixels.data_uri(np.full((2, 2), 7.0), 7.0, 7.0)).max() == 0
    view = {"pixels": [[float("nan"), 1.0]]}
    values = pixels.array(view)
    assert values is not None
    assert values.tolist() == [[0.0, 1.0]]


@pytest.mark.parametrize("bad", [None, [], [1, 2], [[1, 2], [3]], "pixels", [[["a"]]]])
def test_what_is_not_a_picture_is_none(bad: object) -> None:
    assert pixels.photo({"pixels": bad, "boxes": [[0, 0, 1, 1]]}, [1.0], 0, None, (0, 1)) is None


def test_boxes_are_cut_to_the_image_and_faint_ones_left_out() -> None:
    view = {
        "pixels": np.zeros((6, 6)).tolist(),
        "boxes": [[4, 4, 4, 4], [0, 0, 2, 2], [9, 9, 2, 2]],
    }
    photo = pixels.photo(view, [0.9, 0.001, 0.099], 0, 2, (0, 1))
    assert photo is not None
    assert photo.selected == pixels.Box(4, 4, 2, 2, 0.0)
    assert photo.rival is None
    assert [box.probability for box in photo.shaded] == [0.9]


def test_crop_is_the_patch() -> None:
    view = {"pixels": np.arange(16.0).reshape(4, 4).tolist(), "boxes": [[1, 2, 2, 2]]}
    patch = pixels.crop(view, 0, (0, 255))
    assert patch is not None
    assert decoded(patch.uri).tolist() == [[6, 7], [10, 11]]
    assert pixels.crop(view, 5, (0, 255)) is None
