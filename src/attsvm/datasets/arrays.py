"""Sequences that already are vectors: files of arrays and instances in memory."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np

from attsvm.data import AttentionData, IntArray
from attsvm.datasets.base import Dataset, Encoded, View, Views
from attsvm.errors import InputError
from attsvm.files import opened
from attsvm.printable import name_of


def array(path: str | Path) -> Dataset:
    """The data of an ``.npz`` or ``.safetensors`` file (arrays ``X``, ``y``, optional ``Z``,
    ``mask``).

    Raises:
        InputError: what :meth:`attsvm.AttentionData.read` refuses, or a file with many instances.
    """
    path = Path(path)
    data, extras = AttentionData.read(path)
    if data.batch_shape:
        raise InputError(
            f"{path} holds instances with leading axes {data.batch_shape}; save one of them as X of"
            " shape (n, T, d)"
        )
    provenance = {
        "source": name_of(path),
        "sha256": file_digest(path),
        "rows": data.n,
        "further_arrays": sorted(extras),
    }
    name = name_of(path.name)
    return from_data(data, name, f"Sequences of {name}", provenance)


def from_data(
    data: AttentionData,
    name: str,
    title: str,
    provenance: dict[str, Any],
    notes: list[str] | None = None,
) -> Dataset:
    """A data set of one instance in memory, which needs no encoding."""

    def view(i: int) -> View:
        return {
            "kind": "array",
            "labels": [f"token {t}" for t in range(int(np.flatnonzero(data.mask[i])[-1]) + 1)],
        }

    def encode(train: IntArray) -> Encoded:
        return Encoded(data, Views(data.n, view))

    return Dataset(
        name, title, "array", data.labels, ("-1", "+1"), provenance, list(notes or []), encode
    )


def file_digest(path: Path) -> str:
    """The SHA-256 of a file's bytes."""
    with opened(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
