"""``attsvm fit``: split, train, select, solve, compare, evaluate, and write it all into one
folder.

The order of the steps is here; what they are depends on the assumption and is in
:mod:`attsvm.pipeline.attention_fit` and :mod:`attsvm.pipeline.witness_fit`.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import attsvm
from attsvm.base.printable import name_of
from attsvm.base.store import RunFolder, code_digest, environment, finished_run, versions
from attsvm.base.store.run_folder import FORMAT
from attsvm.datasets import Dataset
from attsvm.datasets.attention_data import IntArray
from attsvm.norms import parse_norm
from attsvm.pipeline.attention_fit import AttentionFit
from attsvm.pipeline.attention_model import DecisionFunction
from attsvm.pipeline.padded import Padded, padded
from attsvm.pipeline.settings import FitSettings
from attsvm.pipeline.verdict import sentence, words_sentence
from attsvm.pipeline.witness_fit import WitnessFit
from attsvm.sklearn.preparation import check_selectable, split_train_validation
from attsvm.sklearn.stage import Progress, StageOptions, descent_kind


def fit_dataset(
    dataset: Dataset,
    settings: FitSettings,
    folder: Path,
    *,
    overwrite: bool = False,
    checkpoint_seconds: float = 5.0,
    progress: Progress | None = None,
    command_line: str | None = None,
    first: Callable[[float], None] | None = None,
) -> dict[str, Any]:
    """Run the main job on ``dataset`` and return the content of ``run.json``.

    Nothing is written before the data has been read and checked. A folder that holds the same run,
    finished, is read back; one that holds a part of it goes on from there.

    Args:
        dataset: labelled sequences.
        settings: what the user chose.
        folder: the run folder.
        overwrite: throw away another run that lies in the folder.
        checkpoint_seconds: time between two writes of unfinished work.
        progress: called with stage, steps done, steps in all.
        command_line: how the user asked for it, for the report.
        first: called with the predictor's accuracy on the test part as soon as it is fitted, before
            selection and margin.

    Raises:
        InputError: unusable data, a norm without a descent, or a folder that holds something else.
    """
    descent_kind(parse_norm(settings.norm))  # refuses before anything is read
    request = {
        "command": "fit",
        "attsvm": attsvm.__version__,
        "data": dataset.provenance,
        "parameters": settings._asdict(),
        "versions": versions(),
        "code": code_digest(),
    }
    finished = finished_run(folder, request)
    if finished is not None:
        return finished
    started = time.perf_counter()
    fit_rows, test = _split_test(dataset, settings)
    encoded = padded(dataset, dataset.encode(fit_rows))
    if settings.merge_duplicates:
        encoded = replace(encoded, data=encoded.data.without_duplicates())
    check_selectable(encoded.data)
    data = encoded.data.take(fit_rows)
    fit: Any = (WitnessFit if settings.assumption == "standard" else AttentionFit)(settings)
    fit.check(data)  # whatever is refused is refused here
    files = fit.files(dataset.kind)
    with RunFolder(folder, request, files=files, overwrite=overwrite) as run_folder:
        timing = {"data": time.perf_counter() - started}
        started = time.perf_counter()

        def predictor_fitted(values: DecisionFunction) -> None:
            timing["predictor"] = time.perf_counter() - started
            if first is not None:
                test_data = encoded.data.take(test)
                first(float(np.mean((values(test_data) > 0) == (test_data.labels > 0))))

        options = StageOptions(run_folder, settings.records, checkpoint_seconds, progress)
        model = fit.train(data, settings, options, predictor_fitted)
        timing["fit"] = time.perf_counter() - started
        # The seed repeats the split that training made of these rows. A model of witnesses is
        # fitted to both parts; the methods that it is compared with choose on the second.
        train, validation = split_train_validation(
            data.labels, settings.validation_size, settings.seed, "validation_size"
        )
        splits = {"train": fit_rows[train], "validation": fit_rows[validation], "test": test}
        started = time.perf_counter()
        timing |= fit.timing(model)
        results = fit.evaluate(model, run_folder.path, dataset, encoded, splits)
        claims, verdict = fit.judge(results, dataset.kind, splits)
        timing["evaluation"] = time.perf_counter() - started
        verdict["words"] = words_sentence(results["words"])
        if "vectors" in dataset.provenance and "encoder" not in dataset.provenance:
            verdict["sentences"].append(_vectors_sentence(dataset, results["accuracy"], folder))
        environments = run_folder.environments
        run = {
            "format": FORMAT,
            "attsvm": attsvm.__version__,
            "command": "fit",
            "command_line": command_line,
            "dataset": _describe(dataset, encoded, splits),
            "parameters": request["parameters"],
            "environment": environment(),
            **({"environments": environments} if len(environments) > 1 else {}),
            "results": results,
            "claims": claims,
            "verdict": verdict,
            "timing": timing,
        }
        fit.write_pages(model, run_folder.path, dataset, encoded, splits, run)
        return run_folder.finish(run)


ENCODER = "sentence-transformers/all-MiniLM-L6-v2"


def _vectors_sentence(
    dataset: Dataset, accuracy: list[dict[str, Any]], folder: Path, enough: float = 0.95
) -> str:
    """A sentence on the vectors of words; where the chosen one is right on fewer than ``enough``
    of the held-out texts, with the command that reads them by an encoder.
    """
    hard = next(entry["test"] for entry in accuracy if entry["name"] == "hard")
    command = {"encoder": ENCODER, "folder": shlex.quote(name_of(f"{folder}-encoder"))}
    return sentence(
        "vectors", vectors=dataset.provenance["vectors"], **({} if hard >= enough else command)
    )


def _split_test(dataset: Dataset, settings: FitSettings) -> tuple[IntArray, IntArray]:
    """Rows to learn from and rows that are held out: as the data set says, else a share."""
    if dataset.held is None:
        return split_train_validation(
            np.where(dataset.labels == 1, 1.0, -1.0), settings.test_size, settings.seed, "test_size"
        )
    return np.setdiff1d(np.arange(len(dataset)), dataset.held), dataset.held


def _describe(dataset: Dataset, encoded: Padded, splits: dict[str, IntArray]) -> dict[str, Any]:
    """The ``dataset`` of ``run.json``."""
    data, lengths = encoded.data, encoded.data.lengths
    return {
        "name": dataset.name,
        "title": dataset.title,
        "kind": dataset.kind,
        "source": str(dataset.provenance.get("source", dataset.name)),
        "sha256": dataset.provenance.get("sha256"),
        "class_names": list(dataset.class_names),
        **{f"n_{split}": len(rows) for split, rows in splits.items()},
        "tokens": {
            "min": int(lengths.min()),
            "median": float(np.median(lengths)),
            "max": int(lengths.max()),
        },
        "d_x": data.d_x,
        "d_z": data.d_z,
        "notes": [*dataset.notes, *encoded.notes],
    }
