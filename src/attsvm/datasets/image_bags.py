"""Bags of images: a bag is positive when one of its images is of a chosen class."""

from __future__ import annotations

from typing import Literal

import numpy as np

from attsvm.bags import Bags
from attsvm.datasets.image_sets import ImageSet
from attsvm.errors import InputError


def image_bags(
    images: ImageSet,
    n: int,
    instances: int,
    seed: int,
    *,
    target: int = 9,
    part: Literal["train", "test"] = "train",
) -> Bags:
    """``n`` bags, every second one positive: ``instances`` images each, one of them of the class
    ``target`` in a positive bag and none in a negative one.

    The bags of digits of Ilse, Tomczak and Welling (2018) with exactly one witness. Images are
    drawn with replacement from one part of the set, so training and test bags share no image.

    Args:
        images: see :func:`attsvm.datasets.image_set`.
        n: bags.
        instances: images of each bag.
        seed: equal seeds give equal bits.
        target: the class that makes a bag positive.
        part: the part of ``images`` that is drawn from.

    Returns:
        bags of pixels between 0 and 1, ``height * width * channels`` features, with labels -1 and
        +1; :attr:`~attsvm.bags.Bags.source` is the position of each image in its part, and instance
        labels are 1 for ``target``, 0 for the others.

    Raises:
        InputError: sizes below one, or a class that the images lack.
    """
    pixels, classes = (
        (images.train, images.train_labels)
        if part == "train"
        else (images.test, images.test_labels)
    )
    of_target, others = (np.flatnonzero(hit) for hit in (classes == target, classes != target))
    if n < 1 or instances < 1:
        raise InputError(f"{n} bags of {instances} images are too few; give at least 1 and 1")
    if not len(of_target) or not len(others):
        raise InputError(
            f"{images.name} has {len(of_target)} images of class {target} and {len(others)} others;"
            " both are needed"
        )
    rng = np.random.default_rng([seed, part == "test", instances])
    source = rng.choice(others, size=(n, instances))
    positive = np.arange(n) % 2 == 0
    places = rng.integers(instances, size=n)
    source[positive, places[positive]] = rng.choice(of_target, size=int(positive.sum()))
    source = source.reshape(-1)
    return Bags(
        pixels[source].reshape(len(source), -1) / 255.0,
        np.arange(n + 1) * instances,
        np.where(positive, 1.0, -1.0),
        source,
        (classes[source] == target).astype(np.int64),
    )
