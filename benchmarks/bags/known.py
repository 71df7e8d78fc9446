"""Bags of images and of sentences whose own classes are known."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from attsvm.base.errors import InputError
from attsvm.datasets.attention_data import IntArray
from attsvm.datasets.bags import Bags
from attsvm_papers.networks.published_data import Published

_NEXT = r"\s+(?=[\"'(\[]?[A-Z0-9])"
_BREAK = re.compile(rf"(?:<br\s*/?>|\n)+|(?<=[.!?]){_NEXT}|(?<=[.!?][\"')\]]){_NEXT}")
_WORD = re.compile(r"\w")


def image_bags(
    images: Published,
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
        images: see :func:`attsvm_papers.networks.published_data.published`.
        n: bags.
        instances: images of each bag.
        seed: equal seeds give equal bits.
        target: the class that makes a bag positive.
        part: the part of ``images`` that is drawn from.

    Returns:
        bags of pixels between 0 and 1, ``height * width * channels`` features, with labels -1 and
        +1; :attr:`~attsvm.datasets.bags.Bags.source` is the position of each image in its part, and
        instance labels are 1 for ``target``, 0 for the others.
    """
    pixels, classes = (
        (images.train, images.train_labels)
        if part == "train"
        else (images.test, images.test_labels)
    )
    of_target, others = (np.flatnonzero(hit) for hit in (classes == target, classes != target))
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


def sentences(texts: Sequence[str]) -> tuple[list[str], IntArray]:
    """The sentences of all texts, and the text that each is from: what ``fit(rows, y,
    bag_ids=bag_ids)`` takes once the sentences have been made vectors.

    A sentence ends at a line break, a ``<br>``, or a full stop, question or exclamation mark before
    a capital letter or a digit. Pieces without a letter or digit are left out.

    Raises:
        InputError: a text without a sentence.
    """
    found: list[str] = []
    groups: list[int] = []
    for i, text in enumerate(texts):
        parts = [part.strip() for part in _BREAK.split(text)]
        parts = [part for part in parts if _WORD.search(part)]
        if not parts:
            raise InputError(f"text {i} holds no letter and no digit; drop it")
        found += parts
        groups += [i] * len(parts)
    return found, np.array(groups, dtype=np.int64)


def mixed_reviews(
    vectors: ArrayLike,
    polarity: ArrayLike,
    n: int,
    seed: int,
    *,
    instances: int = 8,
    agreeing: int = 6,
) -> Bags:
    """``n`` bags of sentences whose own polarity is known, every second bag positive: ``agreeing``
    of the ``instances`` sentences of a bag have its polarity, the others the opposite one.

    Args:
        vectors: ``(m, d)``, one for each sentence.
        polarity: ``(m,)``; positive where it is larger than 0.
        n: bags.
        seed: equal seeds give equal bits.
        instances: sentences of a bag.
        agreeing: those that have the bag's polarity, more than half.

    Returns:
        bags with labels -1 and +1, instance labels 1 where a sentence is positive and 0 elsewhere,
        and the positions of the sentences in ``vectors`` as
        :attr:`~attsvm.datasets.bags.Bags.source`.
    """
    rows, positive = np.asarray(vectors), np.asarray(polarity) > 0
    rng = np.random.default_rng([seed, instances, agreeing])
    labels = np.where(np.arange(n) % 2 == 0, 1.0, -1.0)
    wanted = rng.permuted(np.tile(np.arange(instances) < agreeing, (n, 1)), axis=1)
    wanted = (wanted == (labels[:, None] > 0)).reshape(-1)
    source = np.empty(n * instances, dtype=np.int64)
    for sign in (True, False):
        source[wanted == sign] = rng.choice(
            np.flatnonzero(positive == sign), size=int((wanted == sign).sum())
        )
    return Bags(
        np.asarray(rows[source], dtype=np.float64),
        np.arange(n + 1) * instances,
        labels,
        source,
        positive[source].astype(np.int64),
    )
