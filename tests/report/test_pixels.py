from __future__ import annotations

import base64
import io

import numpy as np
import pytest
from PIL import Image

from attsvm.report import token_sequences


def decoded(uri: str) -> np.ndarray:
    head, _, body = uri.partition(",")
    assert head == "data:image/png;base64"
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(body))))


@pytest.mark.parametrize("shape", [(8, 8), (1, 5), (4, 3, 3)])
def test_png_holds_the_pixels(shape: tuple[int, ...]) -> None:
    values = np.random.default_rng(0).integers(0, 256, shape)
    np.testing.assert_array_equal(
        decoded(token_sequences.data_uri(values.astype(float), 0, 255)), values
    )
    assert decoded(token_sequences.data_uri(np.full(shape, 7.0), 7.0, 7.0)).max() == 0


def test_patches_are_where_their_boxes_say() -> None:
    view = {
        "kind": "image",
        "pixels": np.arange(20.0).reshape(4, 5).tolist(),
        "boxes": [[1, 2, 2, 3], [0, 0, 1, 2], [3, 0, 1, 2]],
    }
    photo = token_sequences.photo_of(view, [0.9, 0.001, 0.099], 0, 2, (0, 255))
    assert (photo.rows, photo.columns) == (4, 5)
    assert photo.selected == token_sequences.Box(2, 1, 3, 2, 0.9)
    assert photo.rival == token_sequences.Box(0, 3, 2, 1, 0.099)
    assert [box.probability for box in photo.shaded] == [0.9, 0.099]
    assert token_sequences.photo_of(view, [1.0, 0.0, 0.0], 0, None, (0, 255)).rival is None
    patch = token_sequences.crop(view, 0, (0, 255))
    assert decoded(patch.uri).tolist() == [[7, 8, 9], [12, 13, 14]]
    assert (patch.rows, patch.columns) == (2, 3)
    assert token_sequences.value_range([view, {"kind": "text"}]) == (0.0, 19.0)
    assert token_sequences.value_range([]) == (0.0, 1.0)
