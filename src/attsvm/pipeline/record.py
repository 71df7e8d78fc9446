"""What every run of ``attsvm fit`` records: the request that it answers, and its data."""

from __future__ import annotations

from typing import Any

import numpy as np

import attsvm
from attsvm.base.store import code_digest, environment, versions
from attsvm.base.store.run_folder import FORMAT
from attsvm.datasets import Dataset
from attsvm.pipeline.model import RunData
from attsvm.pipeline.settings import FitSettings


def fit_request(dataset: Dataset, settings: FitSettings) -> dict[str, Any]:
    """Everything that decides the results of a fit; see
    :class:`~attsvm.base.store.RunFolder`.
    """
    return {
        "command": "fit",
        "attsvm": attsvm.__version__,
        "data": dataset.provenance,
        "parameters": settings._asdict(),
        "versions": versions(),
        "code": code_digest(),
    }


def run_record(run: RunData, settings: FitSettings, command_line: str | None) -> dict[str, Any]:
    """``run.json`` without its results, claims, verdict and times."""
    return {
        "format": FORMAT,
        "attsvm": attsvm.__version__,
        "command": "fit",
        "command_line": command_line,
        "dataset": _describe_data(run),
        "parameters": settings._asdict(),
        "environment": environment(),
    }


def _describe_data(run: RunData) -> dict[str, Any]:
    """The ``dataset`` of ``run.json``."""
    dataset, encoded = run.dataset, run.encoded
    lengths = encoded.bags.lengths
    rows_by_split = {"train": run.train, "test": run.test}
    return {
        "name": dataset.name,
        "title": dataset.title,
        "kind": dataset.kind,
        "source": str(dataset.provenance.get("source", dataset.name)),
        "sha256": dataset.provenance.get("sha256"),
        "class_names": list(run.classes),
        **{f"n_{name}": len(rows) for name, rows in rows_by_split.items()},
        "class_counts": {
            name: np.bincount(run.labels[rows], minlength=len(run.classes)).tolist()
            for name, rows in rows_by_split.items()
        },
        "tokens": {
            "min": int(lengths.min()),
            "median": float(np.median(lengths)),
            "max": int(lengths.max()),
        },
        "d_x": encoded.bags.d,
        "d_z": int(encoded.queries(encoded.bags.take([0])).shape[1]),
        "notes": [*dataset.notes, *encoded.notes],
    }
