"""Sequences that already are vectors: files of arrays and instances in memory."""

from __future__ import annotations

import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attsvm.base.errors import InputError
from attsvm.base.files import digest, load_arrays, opened
from attsvm.base.printable import name_of
from attsvm.datasets.attention_data import AttentionData, IntArray
from attsvm.datasets.bags import as_bags, bag_labels
from attsvm.datasets.source import Dataset, Encoded, View, Views


def array(path: str | Path) -> Dataset:
    """The data of an ``.npz`` or ``.safetensors`` file (arrays ``X``, ``y`` of any two classes or
    more, optional ``Z``, ``mask``), or of an ``.npz`` file of bags. Such a file has rows ``X`` of
    shape ``(N, d)``, the bag of each row in ``groups``, and one label per bag in ``y``, in the
    order in which bags first appear.

    Raises:
        InputError: what :meth:`attsvm.AttentionData.read` and :func:`attsvm.datasets.bags.as_bags`
            refuse, a file with many instances, or bags of one class.

    Example:
        >>> import numpy as np
        >>> import attsvm
        >>> np.savez("bags.npz", X=[[1.0], [2.0], [3.0]], groups=["a", "a", "b"], y=["no", "yes"])
        >>> dataset = attsvm.datasets.array("bags.npz")
        >>> dataset.class_names, dataset.encode([0, 1]).bags.lengths.tolist()
        (('no', 'yes'), [2, 1])
    """
    path = Path(path)
    if _has_groups(path):
        return _grouped(path)
    arrays = load_arrays(path)
    classes, positions = np.unique(arrays.get("y", np.zeros(0)), return_inverse=True)
    has_classes = len(classes) > 1 and "y" in arrays and arrays["y"].ndim == 1
    if has_classes and not _missing_labels(arrays["y"]):
        arrays["y"] = np.where(positions % 2 == 1, 1.0, -1.0)  # of any classes: to be checked alike
    data, extras = AttentionData.from_arrays(path, arrays)
    if data.batch_shape:
        raise InputError(
            f"{path} holds instances with leading axes {data.batch_shape}; save one of them as X of"
            " shape (n, T, d)"
        )
    provenance = {
        "source": name_of(path),
        "sha256": digest(path),
        "rows": data.n,
        "further_arrays": sorted(extras),
    }
    name = name_of(path.name)
    dataset = from_data(data, name, f"Sequences of {name}", provenance)
    if not has_classes:
        return dataset
    return replace(dataset, labels=positions, class_names=class_names(classes))


def from_data(
    data: AttentionData,
    name: str,
    title: str,
    provenance: dict[str, Any],
    notes: list[str] | None = None,
) -> Dataset:
    """A data set of one instance in memory, which needs no encoding."""
    positions = [np.flatnonzero(mask) for mask in data.mask]

    def encode(train: IntArray) -> Encoded:
        bags = replace(as_bags(data), labels=None)
        return Encoded(bags, Views(data.n, lambda i: array_view(positions[i])))

    labels = np.where(data.labels > 0, 1, 0)
    return Dataset(
        name, title, "array", labels, ("-1", "+1"), provenance, list(notes or []), encode
    )


def class_names(classes: NDArray[Any]) -> tuple[str, ...]:
    """``(K,)`` labels as people write them: whole numbers without a point, signs where there are
    two.
    """
    if classes.dtype.kind not in "iuf":
        return tuple(map(str, classes))
    form = "{:+g}" if classes.tolist() == [-1, 1] else "{:g}"
    return tuple(map(form.format, classes))


def _missing_labels(y: NDArray[Any]) -> bool:
    return bool(y.dtype.kind == "f" and not np.isfinite(y).all())


def array_view(positions: IntArray) -> View:
    """How a sequence of vectors is shown, by the positions of its visible tokens."""
    return {"kind": "array", "labels": [f"token {t}" for t in positions]}


def _has_groups(path: Path) -> bool:
    if path.suffix.lower() != ".npz":
        return False
    with opened(path) as file:
        try:
            return "groups.npy" in zipfile.ZipFile(file).namelist()
        except zipfile.BadZipFile:
            return False  # the reader says what is wrong with it


def _grouped(path: Path) -> Dataset:
    arrays = load_arrays(path)
    for key in ("X", "y"):
        if key not in arrays:
            raise InputError(f"{path} has groups but no array {key}; store rows as X, labels as y")
    try:
        bags = as_bags(arrays["X"], arrays["groups"])
        labels = bag_labels(arrays["y"], bags)
    except InputError as error:
        sentence = str(error).replace("bag_ids", "groups")  # as the file calls them
        raise InputError(f"{path}: {sentence}") from None
    classes, positions = np.unique(labels, return_inverse=True)
    if len(classes) < 2:
        raise InputError(f"{path}: y holds one class, {classes[0]}; give bags of two or more")

    def encode(train: IntArray) -> Encoded:
        return Encoded(bags, Views(bags.n, lambda i: array_view(np.arange(bags.lengths[i]))))

    name = name_of(path.name)
    return Dataset(
        name,
        f"Bags of {name}",
        "array",
        positions,
        class_names(classes),
        {"source": name_of(path), "sha256": digest(path), "rows": bags.n},
        [],
        encode,
    )
