"""``attsvm fit``: split, train, select, solve, compare, evaluate, and write it all into one
folder.
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
from attsvm.base.files import save_arrays
from attsvm.base.printable import name_of
from attsvm.base.store import RunFolder, environment, finished_run, versions, write_json
from attsvm.base.store.code import code_fingerprint
from attsvm.base.store.folder import FORMAT
from attsvm.base.store.stages import stage_environments
from attsvm.datasets import Dataset, Encoded, load
from attsvm.datasets.attention_data import AttentionData, IntArray
from attsvm.norms import parse_norm
from attsvm.pipeline.accuracy import accuracy_table
from attsvm.pipeline.results import (
    choose_examples,
    chosen_words,
    direction_results,
    margin_results,
    run_arrays,
    selection_results,
)
from attsvm.pipeline.settings import FitSettings
from attsvm.pipeline.standard import (
    Witnessed,
    standard_claims,
    standard_results,
    standard_verdict,
    witness_words,
    write_page,
)
from attsvm.pipeline.trained import Trained
from attsvm.pipeline.verdict import claims, verdict, words_sentence
from attsvm.report import write as write_report
from attsvm.sklearn import layers
from attsvm.sklearn.descent_of_norm import descent_kind
from attsvm.sklearn.preparation import check_selectable, split
from attsvm.sklearn.stage import Progress


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
        "code": code_fingerprint(fit_dataset, load),
    }
    finished = finished_run(folder, request)
    if finished is not None:
        return finished
    started = time.perf_counter()
    rest, test = _parts(dataset, settings)
    encoded = dataset.encode(rest)
    if settings.merge_duplicates:
        encoded = replace(encoded, data=encoded.data.without_duplicates())
    check_selectable(encoded.data)
    learned = encoded.data.take(rest)
    model: Witnessed | Trained
    if settings.assumption == "standard":
        model, files = Witnessed(settings), ["report.html", "page.json"]
    else:
        model = Trained(settings, checkpoint_seconds=checkpoint_seconds)
        files = ["arrays.safetensors", "examples.json", "report.html"]
        files += ["bags.html"] if dataset.kind == "array" else []
    model.check(learned)  # whatever is refused is refused here
    with RunFolder(folder, request, files=files, overwrite=overwrite) as run_folder:
        timing = {"data": time.perf_counter() - started}
        started = time.perf_counter()

        def watch(stage: str, done: int, total: int) -> None:
            if stage in ("selection", "margin") and "predictor" not in timing:
                timing["predictor"] = time.perf_counter() - started
                if first is not None:
                    held = encoded.data.take(test)
                    first(float(model.score(held, held.labels)))
            if progress is not None:
                progress(stage, done, total)

        model.progress, model.checkpoint = watch, run_folder.checkpoint
        model.learn(learned)
        timing["fit"] = time.perf_counter() - started
        # a model of witnesses is fitted to both; what is compared with it chooses on one
        trained = split(learned.labels, settings.validation_size, settings.seed, "validation_size")
        parts = {"train": rest[trained[0]], "validation": rest[trained[1]], "test": test}
        started = time.perf_counter()
        if isinstance(model, Trained):
            timing["joint_training"] = float(model.joint_trajectory_.seconds[-1])
            timing["selection_training"] = float(model.trajectory_.seconds[-1])
            results = _evaluate(run_folder.path, encoded, model, settings, parts)
            results["words"] = _words(model, encoded, dataset.class_names, test)
            stated = claims(results, len(test))
            told = verdict(results, stated, len(parts["validation"]), dataset.kind)
        else:
            results = standard_results(model, encoded, parts)
            results["words"] = witness_words(model, encoded, dataset.class_names, test)
            stated = standard_claims(results, len(test))
            told = standard_verdict(results, stated, dataset.kind)
        timing["evaluation"] = time.perf_counter() - started
        told["words"] = words_sentence(results["words"])
        if "vectors" in dataset.provenance and "encoder" not in dataset.provenance:
            told["sentences"].append(_without_encoder(dataset, results["accuracy"], folder))
        environments = stage_environments(run_folder.checkpoint)
        run = {
            "format": FORMAT,
            "attsvm": attsvm.__version__,
            "command": "fit",
            "command_line": command_line,
            "dataset": _describe(dataset, encoded, parts),
            "parameters": request["parameters"],
            "environment": environment(),
            **({"environments": environments} if len(environments) > 1 else {}),
            "results": results,
            "claims": stated,
            "verdict": told,
            "timing": timing,
        }
        if isinstance(model, Witnessed):
            write_page(run_folder.path, model, encoded, parts, run)
        else:
            write_report(run_folder.path, run)
        if "bags.html" in files:  # bags of vectors, each with its evidence
            from attsvm.report.bags_page import write_bags  # needs jinja2, as every page

            names = [f"sequence {i}" for i in test]
            page = run_folder.path / "bags.html"
            write_bags(page, model, encoded.data.take(test), names=names, title=dataset.title)
        return run_folder.finish(run)


ENCODER = "sentence-transformers/all-MiniLM-L6-v2"
_RIGHT = 0.95
"""Share of held-out texts from which on a word leaves an encoder little to add."""


def _without_encoder(dataset: Dataset, accuracy: list[dict[str, Any]], folder: Path) -> str:
    """What words were; and unless the chosen one is right nearly always, what makes the
    difference.
    """
    vectors = dataset.provenance["vectors"]
    said = "Words here are " + (
        "vectors learned from the training texts alone: which words stand near one another."
        if vectors == "PPMI-SVD"
        else f"the input embeddings of {vectors}, which know nothing of the text around them."
    )
    hard = next(entry["test"] for entry in accuracy if entry["name"] == "hard")
    if hard >= _RIGHT:
        return said
    other = shlex.quote(name_of(f"{folder}-encoder"))
    return (
        f"{said} States of a pretrained encoder, which reads them in their text, make the"
        f" difference for texts that people wrote: the same command with --encoder {ENCODER}"
        f" --out {other}"
    )


def _words(
    model: Trained, encoded: Encoded, names: tuple[str, str], test: IntArray
) -> list[dict[str, Any]]:
    hard = model.selection_weights_
    tokens = layers.selected_tokens(encoded.data, hard.W)
    values = layers.token_values(encoded.data, tokens, hard.head, hard.intercept)
    return chosen_words(encoded, tokens, values, names, test)


def _parts(dataset: Dataset, settings: FitSettings) -> tuple[IntArray, IntArray]:
    """What is learned from and what is held out: what the data set says, else a share."""
    if dataset.held is None:
        return split(dataset.labels, settings.test_size, settings.seed, "test_size")
    return np.setdiff1d(np.arange(len(dataset)), dataset.held), dataset.held


def _evaluate(
    folder: Path,
    encoded: Encoded,
    model: Trained,
    settings: FitSettings,
    parts: dict[str, IntArray],
) -> dict[str, Any]:
    """Write arrays and examples into the folder; return ``results``."""
    train = encoded.data.take(parts["train"])
    direction, courses = direction_results(model)
    save_arrays(
        run_arrays(model, train, parts, courses, settings.saturation), folder / "arrays.safetensors"
    )
    write_json(folder / "examples.json", choose_examples(model, encoded, parts, settings.seed))
    return {
        "selection": selection_results(model, train, settings.saturation),
        "margin": margin_results(model),
        "direction": direction,
        "accuracy": accuracy_table(model, encoded, parts, settings.seed),
        "training": {
            "joint_steps": int(model.joint_trajectory_.steps[-1]),
            "best_joint_step": model.best_step_,
            "descent": model.norm_.descent.title,
            "steps": int(model.trajectory_.steps[-1]),
            "lr": model.lr_,
            "baseline_C": model.baseline_.C,
            "backend": model.trajectory_.backend,
        },
    }


def _describe(dataset: Dataset, encoded: Encoded, parts: dict[str, Any]) -> dict[str, Any]:
    data: AttentionData = encoded.data
    lengths = data.lengths
    return {
        "name": dataset.name,
        "title": dataset.title,
        "kind": dataset.kind,
        "source": str(dataset.provenance.get("source", dataset.name)),
        "sha256": dataset.provenance.get("sha256"),
        "class_names": list(dataset.class_names),
        **{f"n_{part}": len(rows) for part, rows in parts.items()},
        "tokens": {
            "min": int(lengths.min()),
            "median": float(np.median(lengths)),
            "max": int(lengths.max()),
        },
        "d_x": data.d_x,
        "d_z": data.d_z,
        "notes": [*dataset.notes, *encoded.notes],
    }
