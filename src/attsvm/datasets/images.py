"""Handwritten digits as sequences of patches."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from attsvm.base.errors import InputError
from attsvm.base.files import digest
from attsvm.datasets.attention_data import FloatArray, IntArray
from attsvm.datasets.bags import as_bags
from attsvm.datasets.source import Dataset, Encoded, Learned, View, Views

_SIDE = 8  # scikit-learn's digits are 8 x 8 pixels of 0 to 16
_INK = 16.0


def digits(
    negative: int = 3, positive: int = 8, *, patch: int = 2, stride: int | None = None
) -> Dataset:
    r"""Two of scikit-learn's bundled handwritten digits; a token is the image with everything but
    one patch blanked.

    Pixels go to :math:`[-1, 1]`, so that blank paper is -1 and a patch of blank paper still says
    where it is: token :math:`x_{it} \in \mathbb R^{64}` equals the image inside patch t and zero
    outside. With ``stride == patch`` the tokens add up to the image; their mean is the image
    divided by T. Mean pooling is therefore logistic regression on pixels, and the head is an image.

    The query is the whole image, centred by the mean of the training images and of unit length,
    with a constant 1 appended: :math:`z_i \in \mathbb R^{65}`. Hence :math:`W z_i` is an image too:
    where to look.

    Args:
        negative: digit of the negative class.
        positive: digit of the positive class.
        patch: side of a patch in pixels: 1, 2 or 4, or any up to 8 that tiles the image with the
            stride.
        stride: pixels from one patch to the next; default ``patch`` (no overlap).

    Raises:
        InputError: digits that are equal or not 0 to 9, patches that do not tile the image.

    Example:
        >>> import attsvm
        >>> dataset = attsvm.datasets.digits(3, 8, patch=4)
        >>> bags = dataset.encode(train=range(200)).bags
        >>> bags.rows.shape, bags.queries.shape  # four patches an image, in 64 pixels
        ((1428, 64), (357, 65))
    """
    stride = patch if stride is None else stride
    for name, value in (("negative", negative), ("positive", positive)):
        if not 0 <= value <= 9:
            raise InputError(f"{name} is {value}; choose a digit from 0 to 9")
    if negative == positive:
        raise InputError(f"negative and positive are both {negative}; choose two different digits")
    if not 1 <= patch <= _SIDE or not 1 <= stride <= patch or (_SIDE - patch) % stride:
        raise InputError(
            f"patches of {patch} pixels every {stride} do not tile {_SIDE} pixels; use patch 1, 2"
            " or 4 and no stride"
        )

    from sklearn.datasets import load_digits

    bunch = load_digits()
    rows = np.flatnonzero((bunch.target == negative) | (bunch.target == positive))
    pixels = np.asarray(bunch.images[rows], dtype=np.float64)
    corners = [
        (row, column)
        for row in range(0, _SIDE - patch + 1, stride)
        for column in range(0, _SIDE - patch + 1, stride)
    ]
    labels = bunch.target[rows] == positive

    images = pixels / (_INK / 2) - 1.0

    def learn(train: IntArray) -> Learned:
        return {"mean": images.reshape(len(images), -1)[train].mean(axis=0)}

    def encode(learned: Learned) -> Encoded:
        bags = as_bags(patch_tokens(images, corners, patch))
        queries = image_queries(images, learned["mean"])
        return Encoded(replace(bags, queries=queries), Views(len(rows), view))

    def view(i: int) -> View:
        boxes = [[row, column, patch, patch] for row, column in corners]
        return {"kind": "image", "pixels": (pixels[i] / _INK).tolist(), "boxes": boxes}

    return Dataset(
        name=f"digits:{negative}-{positive}",
        title=f"Handwritten digits, {negative} against {positive}",
        kind="image",
        labels=labels,
        class_names=(str(negative), str(positive)),
        provenance={
            "source": "sklearn.datasets.load_digits",
            "sha256": digest(bunch.images.tobytes(), bunch.target.astype("<i8").tobytes()),
            "rows": len(rows),
            "patch": patch,
            "stride": stride,
            "licence": "CC BY 4.0",
            "citation": (
                "Alpaydin and Kaynak, Optical Recognition of Handwritten Digits, UCI Machine"
                " Learning Repository, 1998"
            ),
        },
        notes=[
            f"A token is a patch of {patch} x {patch} pixels in its place, the rest of the image"
            " blanked to zero."
        ],
        learn=learn,
        apply=encode,
    )


def patch_tokens(images: FloatArray, corners: list[tuple[int, int]], patch: int) -> FloatArray:
    """``(n, T, side*side)``: each image ``(n, side, side)`` once per corner, zero outside the patch
    there.
    """
    n, side, _ = images.shape
    tokens = np.zeros((n, len(corners), side, side))
    for t, (row, column) in enumerate(corners):
        window = np.s_[row : row + patch, column : column + patch]
        tokens[:, t, *window] = images[:, *window]
    return tokens.reshape(n, len(corners), side * side)


def image_queries(images: FloatArray, mean: FloatArray) -> FloatArray:
    """``(n, side*side + 1)``: images minus the mean training image ``(side*side,)``, of unit
    length, and a constant 1.
    """
    centred = images.reshape(len(images), -1) - mean
    length = np.linalg.norm(centred, axis=1, keepdims=True)
    return np.hstack([centred / np.where(length > 0, length, 1.0), np.ones((len(images), 1))])
