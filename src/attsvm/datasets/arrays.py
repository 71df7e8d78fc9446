"""Sequences that already are vectors: files of arrays and instances in memory."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
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
from attsvm.datasets.readers import known_positions
from attsvm.datasets.source import Dataset, Encoded, Learned, View, Views


def array(path: str | Path, classes: Sequence[str] | None = None) -> Dataset:
    """The data of an ``.npz`` or ``.safetensors`` file (arrays ``X``, ``y`` of any two classes or
    more, optional ``Z``, ``mask``), or of an ``.npz`` file of bags. Such a file has rows ``X`` of
    shape ``(N, d)``, the bag of each row in ``groups``, and one label per bag in ``y``, in the
    order in which bags first appear.

    Args:
        path: the file.
        classes: names of the classes of a fitted model, in its order; ``y`` may then be missing.

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
        return _grouped(path, classes)
    arrays = load_arrays(path)
    if classes is not None and "y" not in arrays:
        return _unlabelled(path, arrays, classes)
    labels, positions = np.unique(arrays.get("y", np.zeros(0)), return_inverse=True)
    has_labels = "y" in arrays and arrays["y"].ndim == 1 and not _no_labels(arrays["y"])
    has_classes = has_labels and (len(labels) > 1 or classes is not None)
    if has_classes:
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
    names = class_names(labels)
    if classes is not None:
        at = known_positions([names[k] for k in positions], path, classes)
        return replace(dataset, labels=at, class_names=tuple(classes))
    return replace(dataset, labels=positions, class_names=names)


def from_data(
    data: AttentionData,
    name: str,
    title: str,
    provenance: dict[str, Any],
) -> Dataset:
    """A data set of one instance in memory, which needs no encoding."""
    positions = [np.flatnonzero(mask) for mask in data.mask]

    def encode(learned: Learned) -> Encoded:
        bags = replace(as_bags(data), labels=None)
        return Encoded(bags, Views(data.n, lambda i: array_view(positions[i])))

    labels = np.where(data.labels > 0, 1, 0)
    return Dataset(
        name,
        title,
        "array",
        labels,
        ("-1", "+1"),
        provenance,
        [],
        _nothing,
        encode,
    )


def class_names(classes: NDArray[Any]) -> tuple[str, ...]:
    """``(K,)`` labels as people write them: whole numbers without a point, signs where there are
    two.
    """
    if classes.dtype.kind not in "iuf":
        return tuple(map(str, classes))
    form = "{:+g}" if classes.tolist() == [-1, 1] else "{:g}"
    return tuple(map(form.format, classes))


def _written(labels: NDArray[Any]) -> NDArray[Any]:
    """``(n,)`` labels as :func:`class_names` writes them."""
    classes, positions = np.unique(labels, return_inverse=True)
    return np.array(class_names(classes))[positions]


def _no_labels(y: NDArray[Any]) -> bool:
    """Whether values are of a kind that names no class, or one of them is missing."""
    return y.dtype.kind not in "biufUS" or bool(y.dtype.kind == "f" and np.isnan(y).any())


def _nothing(train: IntArray) -> Learned:
    """Nothing is learned for vectors that need no encoding."""
    return {}


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


def _unlabelled(path: Path, arrays: dict[str, Any], classes: Sequence[str]) -> Dataset:
    """Sequences of a file without ``y``."""
    if "X" not in arrays:
        raise InputError(f"{path} has no array X; store tokens as X")
    try:
        signs, queries, mask = np.ones(arrays["X"].shape[:-2]), arrays.get("Z"), arrays.get("mask")
        data = AttentionData(arrays["X"], signs, queries, mask)  # type: ignore[arg-type]
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    name = name_of(path.name)
    dataset = from_data(data, name, f"Sequences of {name}", {"source": name_of(path)})
    return replace(dataset, labels=np.full(data.n, -1), class_names=tuple(classes))


def _grouped(path: Path, known: Sequence[str] | None) -> Dataset:
    arrays = load_arrays(path)
    for key in ("X", "y") if known is None else ("X",):
        if key not in arrays:
            raise InputError(f"{path} has groups but no array {key}; store rows as X, labels as y")
    try:
        bags = as_bags(arrays["X"], arrays["groups"])
        labels = bag_labels(arrays["y"], bags) if "y" in arrays else None
    except InputError as error:
        sentence = str(error).replace("bag_ids", "groups")  # as the file calls them
        raise InputError(f"{path}: {sentence}") from None
    if known is None:
        assert labels is not None
        classes, positions = np.unique(labels, return_inverse=True)
        if len(classes) < 2:
            raise InputError(f"{path}: y holds one class, {classes[0]}; give bags of two or more")
        known = class_names(classes)
    else:
        written = [""] * bags.n if labels is None else _written(labels).tolist()
        positions = known_positions([str(label) for label in written], path, known)
    names = tuple(known)

    def encode(learned: Learned) -> Encoded:
        return Encoded(bags, Views(bags.n, lambda i: array_view(np.arange(bags.lengths[i]))))

    name = name_of(path.name)
    return Dataset(
        name,
        f"Bags of {name}",
        "array",
        positions,
        names,
        {"source": name_of(path), "sha256": digest(path), "rows": bags.n},
        [],
        _nothing,
        encode,
    )
