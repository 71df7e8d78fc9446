"""Labelled images of many classes, from files that the user has: MNIST as idx files, CIFAR-10 as
batches or as one archive.

Nothing is downloaded. A folder of data sets is named by the environment variable ``ATTSVM_DATA``:
MNIST lies in ``mnist/`` of it and CIFAR-10 in ``cifar10/`` or ``cifar-10-batches-py/``, or either
directly in the folder itself.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import lzma
import os
import pickle
import struct
import zlib
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attsvm.data import IntArray
from attsvm.errors import InputError
from attsvm.files import brief, opened
from attsvm.printable import Compact

VARIABLE = "ATTSVM_DATA"
_LARGEST = 1 << 30  # bytes of one unpacked file; CIFAR-10 has 180 MB

PUBLISHED = {
    "06b0d1f124c4e5fa796686ade41a9b778edacc8622f2195a352ef479ad44fc16": "MNIST, all 70 000 images",
    "b0f5afa023c12186ae188dea412f230aac53f4d7af77809a5260074c36254d0a": (
        "CIFAR-10, a balanced part of 10 000 and 2 000 images"
    ),
}
"""SHA-256 of image sets whose content was compared with the published files."""


@dataclass(frozen=True, eq=False, repr=False)
class ImageSet(Compact):
    """Images with their classes.

    Attributes:
        name: ``digits``, ``mnist`` or ``cifar10``.
        train: ``(n, height, width, channels)``, 8-bit pixels; grey images have one channel.
        train_labels: ``(n,)``, classes from 0 on.
        test: the test images, like ``train``.
        test_labels: their classes.
    """

    name: str
    train: NDArray[np.uint8]
    train_labels: IntArray
    test: NDArray[np.uint8]
    test_labels: IntArray

    def sha256(self) -> str:
        """Of pixels and classes, whatever the files looked like: images and 8-bit classes, training
        part first.
        """
        digest = hashlib.sha256()
        for pixels, labels in ((self.train, self.train_labels), (self.test, self.test_labels)):
            digest.update(np.ascontiguousarray(pixels).data)
            digest.update(labels.astype(np.uint8).data)
        return digest.hexdigest()

    def published(self) -> str | None:
        """What this is known to be, by its :meth:`sha256`; None for images that are not known, such
        as a part of your own.
        """
        return PUBLISHED.get(self.sha256())


def image_set(name: str, folder: str | Path | None = None) -> ImageSet:
    """The images of this name.

    ``digits`` are scikit-learn's 1797 digits of 8 x 8 pixels, always there; every fifth is a test
    image. ``mnist`` and ``cifar10`` are read from the user's files, see :func:`image_files`.

    Args:
        name: ``digits``, ``mnist`` or ``cifar10``.
        folder: where the files are; the environment variable ``ATTSVM_DATA`` when left out; ``hub``
            for the Hugging Face hub.

    Raises:
        InputError: an unknown name, no files, files that are damaged or of another kind, or a hub
            that does not answer.
        MissingExtraError: the hub without the packages that it needs.
    """
    if name == "digits":
        from sklearn.datasets import load_digits

        bunch = load_digits()
        pixels = np.rint(bunch.images[..., None] * (255 / 16)).astype(np.uint8)
        labels, held = bunch.target.astype(np.int64), np.arange(len(pixels)) % 5 == 4
        return ImageSet(name, pixels[~held], labels[~held], pixels[held], labels[held])
    if folder == "hub" and name in _HUB:
        from attsvm.datasets.hub import hub_file, hub_pictures

        repository, pattern, picture = _HUB[name]
        paths = [hub_file(repository, pattern.format(part)) for part in ("train", "test")]
        train, test = (_checked(path, *hub_pictures(path, picture, "label")) for path in paths)
        return ImageSet(name, *train, *test)
    files = image_files(name, folder)
    if not files:
        place = folder or os.environ.get(VARIABLE)
        where = f"{place} holds no files of {name}" if place else f"{VARIABLE} is not set"
        raise InputError(
            f"{where}; set {VARIABLE} to a folder with one of:"
            f" {'; '.join(' '.join(g) for g, _ in _LAYOUTS[name])}"
        )
    read = next(
        reader for names, reader in _LAYOUTS[name] if {path.name for path in files} == set(names)
    )
    return ImageSet(name, *read(files))


def image_files(name: str, folder: str | Path | None = None) -> list[Path]:
    """The files from which :func:`image_set` reads ``mnist`` or ``cifar10``; none when a file is
    missing or no folder is named.

    Raises:
        InputError: an unknown name, or a folder that does not exist.
    """
    if name not in _LAYOUTS:
        raise InputError(
            f"there is no image set {name!r}; the names are digits, {', '.join(_LAYOUTS)}"
        )
    place = folder or os.environ.get(VARIABLE)
    if not place:
        return []
    root = Path(place)
    if not root.is_dir():
        raise InputError(
            f"{root} is not a folder; set {VARIABLE} to the folder that holds the data sets"
        )
    for home in (root / name, root / "cifar-10-batches-py", root):
        for names, _ in _LAYOUTS[name]:
            paths = [home / each for each in names]
            if all(path.is_file() for path in paths):
                return paths
    return []


def image_digest(name: str, folder: str | Path | None = None) -> str:
    """SHA-256 over the files of :func:`image_files`; empty when there are none."""
    digest = hashlib.sha256()
    files = image_files(name, folder)
    for path in files:
        with opened(path) as file:
            digest.update(file.read())
    return digest.hexdigest() if files else ""


Parts = tuple[NDArray[np.uint8], IntArray, NDArray[np.uint8], IntArray]


def _damaged(path: Path, why: object) -> InputError:
    return InputError(f"{path} is truncated or corrupt ({brief(str(why))}); copy it again")


def _unpacked(path: Path, opener: Callable[..., Any]) -> bytes:
    with opened(path) as packed:
        try:
            with opener(packed) as file:
                content: bytes = file.read(_LARGEST + 1)
        except (gzip.BadGzipFile, EOFError, zlib.error, lzma.LZMAError) as error:
            raise _damaged(path, error) from None
    if len(content) > _LARGEST:
        raise _damaged(path, f"it unpacks to more than {_LARGEST} bytes")
    return content


def _checked(
    path: Path, pixels: NDArray[Any], labels: NDArray[Any]
) -> tuple[NDArray[np.uint8], IntArray]:
    if (
        pixels.dtype != np.uint8
        or pixels.ndim != 4
        or not len(pixels)
        or labels.shape != (len(pixels),)
        or labels.dtype.kind not in "iu"
    ):
        raise _damaged(
            path,
            f"{pixels.dtype} images of shape {pixels.shape}, {labels.dtype} labels of shape"
            f" {labels.shape}",
        )
    if labels.min() < 0 or labels.max() > 9:
        raise _damaged(path, f"labels from {labels.min()} to {labels.max()}, where 0 to 9 are due")
    return pixels, labels.astype(np.int64)


def _idx(path: Path, axes: int) -> NDArray[np.uint8]:
    """An idx file of bytes: two zeros, type 8, the number of axes, then the sides, big-endian."""
    content = _unpacked(path, gzip.open if path.suffix == ".gz" else nullcontext)
    start = 4 + 4 * axes
    if len(content) < start or content[:4] != bytes([0, 0, 8, axes]):
        raise _damaged(
            path,
            f"its first bytes are {content[:4].hex(' ')}, those of an idx file of {axes} axes are"
            f" 00 00 08 {axes:02x}",
        )
    shape = struct.unpack(f">{axes}I", content[4:start])
    if int(np.prod(shape, dtype=object)) != len(content) - start:
        raise _damaged(path, f"it announces shape {shape} and holds {len(content) - start} bytes")
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def _read_idx(files: Sequence[Path]) -> Parts:
    images, labels, test, test_labels = (
        _idx(path, axes) for path, axes in zip(files, (3, 1, 3, 1), strict=True)
    )
    return *_checked(files[0], images[..., None], labels), *_checked(
        files[2], test[..., None], test_labels
    )


def _read_archive(files: Sequence[Path]) -> Parts:
    (path,) = files
    content = _unpacked(path, lzma.open if path.suffix == ".xz" else nullcontext)
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as archive:
            arrays = [archive[name] for name in ("x_train", "y_train", "x_test", "y_test")]
    except Exception as error:  # numpy and zipfile find damage in many ways
        raise _damaged(path, error) from None
    return *_checked(path, *arrays[:2]), *_checked(path, *arrays[2:])


class _Stand:
    """What stands for NumPy's classes in a batch: it keeps the state of an array and builds
    nothing.
    """

    state: tuple[Any, ...] = ()

    def __init__(self, *_: object) -> None:
        pass

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.state = state


class _Batch(pickle.Unpickler):
    """Reads the dictionary of a CIFAR-10 batch; a name that such a batch does not need is an error,
    so no code of a file ever runs.
    """

    def find_class(self, module: str, name: str) -> Any:
        if module.split(".")[0] == "numpy" and name in ("_reconstruct", "ndarray", "dtype"):
            return _Stand
        raise pickle.UnpicklingError(f"it names {module}.{name}")


def _batch(path: Path) -> tuple[NDArray[np.uint8], IntArray]:
    try:
        batch = _Batch(io.BytesIO(_unpacked(path, nullcontext)), encoding="bytes").load()
        labels, raw = np.array(batch[b"labels"], dtype=np.int64), batch[b"data"].state[-1]
        pixels = np.frombuffer(raw, np.uint8).reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    except InputError:
        raise
    except Exception as error:  # a damaged pickle fails in many ways
        raise _damaged(path, error) from None
    return _checked(path, pixels, labels)


def _read_batches(files: Sequence[Path]) -> Parts:
    parts = [_batch(path) for path in files]
    pixels, labels = (np.concatenate([part[k] for part in parts[:-1]]) for k in (0, 1))
    return pixels, labels, *parts[-1]


_IDX = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
_LAYOUTS: dict[str, tuple[tuple[tuple[str, ...], Callable[[Sequence[Path]], Parts]], ...]] = {
    "mnist": ((tuple(f"{name}.gz" for name in _IDX), _read_idx), (_IDX, _read_idx)),
    "cifar10": (
        ((*(f"data_batch_{k}" for k in range(1, 6)), "test_batch"), _read_batches),
        (("cifar10_10k_2k.npz.xz",), _read_archive),
        (("cifar10.npz.xz",), _read_archive),
        (("cifar10.npz",), _read_archive),
    ),
}
"""The files of each set, in the order in which they are preferred, and what reads them."""
_HUB = {
    "mnist": ("ylecun/mnist", "mnist/{}-00000-of-00001.parquet", "image"),
    "cifar10": ("uoft-cs/cifar10", "plain_text/{}-00000-of-00001.parquet", "img"),
}
"""Data set, file and column of the pictures on the Hugging Face hub."""
