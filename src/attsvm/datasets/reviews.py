"""The Large Movie Review data set (IMDb): its folder, files of JSON lines, or the Hugging Face
hub.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from attsvm.data import IntArray
from attsvm.datasets.hub import hub_file
from attsvm.datasets.image_sets import VARIABLE
from attsvm.datasets.readers import LabelledTexts, read_texts
from attsvm.errors import InputError
from attsvm.printable import Compact

_FILES = tuple(f"{{}}.jsonl{suffix}" for suffix in (".xz", ".gz", ""))
_HUB = ("stanfordnlp/imdb", "plain_text/{}-00000-of-00001.parquet")
PUBLISHED = {
    "83a97eb9415d75a307c41a6fe7563ceebee2c1edce88b3b919f7dee8695b0120": (
        "the 25 000 training reviews as JSON lines"
    ),
    "6f5dace13c61bc3e61c47ba3a14b8cff0d15ce94987407d600cd0c05cfe3e88c": (
        "the 25 000 test reviews as JSON lines"
    ),
}
"""SHA-256 of files whose content was compared with the published data set."""


@dataclass(frozen=True, eq=False, repr=False)
class Reviews(Compact):
    """Texts of two classes, cut into training and test part by who published them.

    Attributes:
        train: training texts; negative and positive ones may lie apart, so shuffle before taking a
            part.
        train_labels: ``(n,)``, 1 for positive, 0 for negative.
        test: test texts.
        test_labels: their classes.
        source: where they are from.
        sha256: of the training and of the test file (of a folder, over its files).
        complete: both are known to be the whole published data set.

    Source: Maas et al., *Learning Word Vectors for Sentiment Analysis* (2011).
    """

    train: list[str]
    train_labels: IntArray
    test: list[str]
    test_labels: IntArray
    source: str
    sha256: tuple[str, str]
    complete: bool


def imdb(source: str | Path | None = None) -> Reviews:
    """The movie reviews.

    Args:
        source: a folder with ``train`` and ``test``, each a folder with ``pos`` and ``neg`` of
            ``.txt`` files (``aclImdb`` as it is unpacked) or a file ``.jsonl`` (``.gz``, ``.xz``)
            with columns text and label; or ``hub`` for ``stanfordnlp/imdb``. When left out,
            ``imdb`` or ``aclImdb`` inside the folder that the environment variable ``ATTSVM_DATA``
            names, or that folder.

    Raises:
        InputError: no files, files that are damaged, or a hub that does not answer.
        MissingExtraError: the hub without the packages that it needs.
    """
    if source == "hub":
        name, pattern = _HUB
        return _read(
            [hub_file(name, pattern.format(part)) for part in ("train", "test")],
            f"{name} on the Hugging Face hub",
        )
    if source is not None:
        homes = [Path(source)]
    elif os.environ.get(VARIABLE):
        root = Path(os.environ[VARIABLE])
        homes = [root / "imdb", root / "aclImdb", root]
    else:
        raise InputError(
            f"{VARIABLE} is not set; set it to the folder that holds aclImdb, or name the folder of"
            " the reviews"
        )
    for home in homes:
        for name in ("{}", *_FILES):
            paths = [home / name.format(part) for part in ("train", "test")]
            if all(path.is_dir() if name == "{}" else path.is_file() for path in paths):
                return _read(paths, str(home))
    raise InputError(
        f"{homes[0]} holds no reviews; a folder needs train and test, each with pos and neg, or"
        " train.jsonl and test.jsonl"
    )


def _read(paths: list[Path], source: str) -> Reviews:
    train, test = (read_texts(path) for path in paths)
    whole = all(part.sha256 in PUBLISHED for part in (train, test)) or all(
        _balanced(part) for part in (train, test)
    )
    return Reviews(
        train.texts,
        _classes(train),
        test.texts,
        _classes(test),
        source,
        (train.sha256, test.sha256),
        whole,
    )


def _classes(part: LabelledTexts) -> IntArray:
    return (part.labels > 0).astype(np.int64)


def _balanced(part: LabelledTexts) -> bool:
    """12 500 reviews of either class, as the folder of the authors has them."""
    return len(part.texts) == 25_000 and float(part.labels.sum()) == 0.0
