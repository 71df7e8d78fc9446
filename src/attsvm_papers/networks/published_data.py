"""The published data of the experiments on real networks: scikit-learn's digits, and MNIST,
CIFAR-10 and IMDb's reviews from the folder that the environment variable ``ATTSVM_DATA`` names.

Nothing is downloaded. MNIST are the four idx files in ``mnist``, CIFAR-10 is an archive
``cifar10/*.npz`` (or ``.npz.xz``) of ``x_train``, ``y_train``, ``x_test`` and ``y_test``, as Keras
has it, and the reviews are the authors' folder ``aclImdb``, or ``imdb`` with ``train.jsonl.xz`` and
``test.jsonl.xz`` (columns text and label).
"""

from __future__ import annotations

import gzip
import io
import json
import lzma
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attsvm.base.errors import InputError, UnavailableError
from attsvm.base.files import brief, digest
from attsvm.datasets.attention_data import IntArray

VARIABLE = "ATTSVM_DATA"
IDX = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
REVIEWS = ("{}", "{}.jsonl.xz", "{}.jsonl.gz", "{}.jsonl")


class Published(NamedTuple):
    """Training and test examples.

    Attributes:
        train: ``(n, height, width, channels)`` 8-bit pixels, or texts.
        train_labels: ``(n,)``, classes from 0 on; reviews that praise are of class 1.
        test: like ``train``.
        test_labels: their classes.
    """

    train: Any
    train_labels: IntArray
    test: Any
    test_labels: IntArray


def published(name: str) -> Published:
    """Data set ``digits``, ``mnist``, ``cifar10`` or ``imdb``; every fifth digit is a test image.

    Raises:
        UnavailableError: the files are not here.
        InputError: a file is damaged or of another kind.
    """
    if name == "digits":
        from sklearn.datasets import load_digits

        bunch = load_digits()
        pixels = np.rint(bunch.images[..., None] * (255 / 16)).astype(np.uint8)
        labels, is_test = bunch.target.astype(np.int64), np.arange(len(pixels)) % 5 == 4
        return Published(pixels[~is_test], labels[~is_test], pixels[is_test], labels[is_test])
    paths = published_files(name)
    return Published(*_READERS[name](paths))


def published_files(name: str) -> list[Path]:
    """Files or folders from which :func:`published` reads.

    Raises:
        UnavailableError: they are not here.
    """
    folder_of_data = os.environ.get(VARIABLE)
    root = Path(folder_of_data or "missing")
    folders = [root / name, root / "aclImdb", root]
    for folder in folders if folder_of_data else ():
        for layout in _LAYOUTS[name]:
            paths = [folder / file_name for file_name in layout]
            if all(path.exists() for path in paths):
                return paths
    reason = (
        f"{folder_of_data} holds no files of {name}" if folder_of_data else f"{VARIABLE} is not set"
    )
    layouts = "; ".join(" and ".join(layout) for layout in _LAYOUTS[name])
    raise UnavailableError(
        f"{reason}; set {VARIABLE} to a folder with {name}, that is one of: {layouts}"
        " (the smallest scale needs none)"
    )


def published_files_digest(name: str) -> str:
    """SHA-256 over the files of :func:`published_files`.

    Raises:
        UnavailableError: they are not here.
    """
    return digest(
        *(
            file
            for path in published_files(name)
            for file in (sorted(path.rglob("*.txt")) if path.is_dir() else (path,))
        )
    )


def _idx(path: Path) -> NDArray[np.uint8]:
    """An idx file of bytes: two zeros, type 8, the number of axes, then the sides, big-endian."""
    content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    axes = content[3]
    sides = np.frombuffer(content, ">u4", axes, 4)
    return np.frombuffer(content, np.uint8, offset=4 + 4 * axes).reshape(sides.astype(int))


def _archive(path: Path) -> list[NDArray[Any]]:
    content = lzma.decompress(path.read_bytes()) if path.suffix == ".xz" else path.read_bytes()
    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        return [arrays[name] for name in ("x_train", "y_train", "x_test", "y_test")]


def _read_images(paths: list[Path]) -> list[Any]:
    try:
        arrays = _archive(paths[0]) if len(paths) == 1 else [_idx(path) for path in paths]
    except Exception as error:  # gzip, lzma, zipfile and NumPy find damage in many ways
        raise InputError(
            f"{paths[0].parent} holds files that are truncated or corrupt"
            f" ({brief(str(error) or type(error).__name__)}); copy them again"
        ) from None
    for k in (0, 2):
        pixels, labels = arrays[k], arrays[k + 1].reshape(-1)
        are_images = (
            pixels.dtype == np.uint8 and pixels.ndim in (3, 4) and len(pixels) == len(labels)
        )
        if not are_images or not len(labels) or labels.dtype.kind not in "iu" or labels.max() > 9:
            raise InputError(
                f"{paths[0].parent} holds {pixels.dtype} images of shape {pixels.shape} with"
                f" {len(labels)} labels; 8-bit images, each with a class from 0 to 9, are due"
            )
        arrays[k] = pixels[..., None] if pixels.ndim == 3 else pixels
        arrays[k + 1] = labels.astype(np.int64)
    return arrays


def _read_reviews(paths: list[Path]) -> list[Any]:
    texts_and_labels: list[Any] = []
    for path in paths:
        try:
            rows = _read_review_folder(path) if path.is_dir() else _read_lines(path)
            texts_and_labels += [
                [text for text, _ in rows],
                np.array([int(y > 0) for _, y in rows], np.int64),
            ]
        except Exception as error:  # gzip, lzma, JSON and encodings are damaged in many ways
            raise InputError(
                f"{path} holds no reviews ({brief(str(error) or type(error).__name__)}); give lines"
                " of JSON with text and label, or folders pos and neg"
            ) from None
    return texts_and_labels


def _read_lines(path: Path) -> list[tuple[str, int]]:
    unpacked: Any = {".xz": lzma.open, ".gz": gzip.open}.get(path.suffix, open)
    with unpacked(path, "rt", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    return [(row["text"], row["label"]) for row in rows]


def _read_review_folder(path: Path) -> list[tuple[str, int]]:
    reviews = [
        (file.read_text(encoding="utf-8"), label)
        for label, name in enumerate(("neg", "pos"))
        for file in sorted(
            (path / name).glob("*.txt"), key=lambda file: int(file.stem.split("_")[0])
        )
    ]
    if not reviews:
        raise ValueError("its folders pos and neg are empty")
    return reviews


_LAYOUTS: dict[str, list[list[str]]] = {
    "mnist": [[f"{name}-ubyte{packed}" for name in IDX] for packed in (".gz", "")],
    "cifar10": [[name] for name in ("cifar10_10k_2k.npz.xz", "cifar10.npz.xz", "cifar10.npz")],
    "imdb": [[pattern.format(name) for name in ("train", "test")] for pattern in REVIEWS],
}
"""The files of each set, in the order in which they are preferred."""
_READERS: dict[str, Callable[[list[Path]], list[Any]]] = {
    "mnist": _read_images,
    "cifar10": _read_images,
    "imdb": _read_reviews,
}
