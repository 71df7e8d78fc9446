"""MUSK1, MUSK2 and Elephant, from a folder that the user has."""

from __future__ import annotations

import csv
import lzma
from pathlib import Path

import numpy as np
from shared import Array

from attsvm.base.errors import InputError
from attsvm.datasets.bags import Bags, as_bags

NAMES = ("musk1", "musk2", "elephant")

RECALLED = {
    "attention-MIL": {"musk1": 0.892, "musk2": 0.858, "elephant": 0.868},
    "gated attention-MIL": {"musk1": 0.900, "musk2": 0.863, "elephant": 0.857},
    "mi-SVM": {"musk1": 0.874, "musk2": 0.836, "elephant": 0.822},
}
"""Accuracies recalled from Ilse, Tomczak and Welling (2018), table 1: 5 x 10 folds of their own.
Not checked against the paper, and not run here.
"""


def load(name: str, folder: Path) -> tuple[Bags, Array]:
    """Bags and ``(n,)`` labels of -1 and +1.

    ``musk1`` is UCI's ``clean1.data`` under xz; the others are ``.npz`` with ``instances``,
    ``bag`` and ``label``.
    """
    path = folder / ("musk1/clean1.data.xz" if name == "musk1" else f"bags/{name}.npz")
    if not path.is_file():
        raise InputError(f"{path} is not there; give the folder of the data sets with --data")
    if name == "musk1":
        with lzma.open(path, "rt") as file:
            rows = list(csv.reader(file))
        bags = as_bags(np.array([row[2:168] for row in rows], dtype=float), [r[0] for r in rows])
        label = np.array([float(row[168]) for row in rows])[bags.source][bags.offsets[:-1]]
    else:
        with np.load(path) as arrays:
            bags = as_bags(arrays["instances"], arrays["bag"])
            label = arrays["label"]
    return bags, np.where(label > 0, 1.0, -1.0)
