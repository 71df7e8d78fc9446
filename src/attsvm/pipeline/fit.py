"""``attsvm fit``: split, fit, explain, evaluate, and write it all into one folder."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from attsvm.base.files import save_arrays, write_json
from attsvm.base.printable import name_of
from attsvm.base.store import RunFolder, finished_run
from attsvm.datasets import Dataset
from attsvm.norms import parse_norm
from attsvm.pipeline.accuracy import accuracy_table
from attsvm.pipeline.fitted_run import MODEL_FILES, save_fitted
from attsvm.pipeline.model import (
    RunData,
    RunModel,
    check_fit,
    explain_chooser,
    fit_chooser,
    fit_estimator,
    split_and_encode,
)
from attsvm.pipeline.pages import write_bag_page, write_witness_page
from attsvm.pipeline.predictions import (
    check_predictions_path,
    prediction_columns,
    predictions,
    write_table,
)
from attsvm.pipeline.record import fit_request, run_record
from attsvm.pipeline.results import (
    AttentionTheory,
    attention_theory,
    choose_examples,
    chosen_words,
    direction_results,
    margin_results,
    run_arrays,
    selection_results,
    solution_results,
)
from attsvm.pipeline.settings import FitSettings
from attsvm.pipeline.verdict import (
    attention_claims,
    attention_verdict,
    check_claims,
    sentence,
    witness_claims,
    witness_verdict,
    words_sentence,
)
from attsvm.report.page import write_report
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
    tell_accuracy: Callable[[float], None] | None = None,
) -> dict[str, Any]:
    """Run the main job on ``dataset`` and return the content of ``run.json``.

    Nothing is written before the data has been read and checked. A folder that holds the same run,
    finished, is read back; one that holds a part of it goes on from there.

    1. Split and encode; refuse what cannot be fitted.
    2. Fit the estimator of the assumption to every sequence that is not held out.
    3. Fit the one that decides by one token, and explain it: selections and margin of one class
       against the others.
    4. Measure on the sequences that were held out, and judge.
    5. Write the model, the answers, the record and the page.

    Args:
        dataset: labelled sequences.
        settings: what the user chose.
        folder: the run folder.
        overwrite: throw away another run that lies in the folder.
        checkpoint_seconds: time between two writes of unfinished work.
        progress: called with stage, steps done, steps in all.
        command_line: how the user asked for it, for the report.
        tell_accuracy: called with the accuracy on the test part as soon as the estimator is fitted,
            before selection and margin.

    Raises:
        InputError: unusable data, a norm without a descent, or a folder that holds something else.
    """
    norm = parse_norm(settings.norm)
    descent_kind(norm)  # refuses before anything is read
    request = fit_request(dataset, settings)
    finished = finished_run(folder, request)
    if finished is not None:
        return finished
    # 1: whatever is refused is refused here
    started = time.perf_counter()
    run = split_and_encode(dataset, settings)
    check_fit(run, settings)
    answers = f"predictions.{settings.predictions_format}"
    check_predictions_path(folder.parent / answers, must_exist=False)
    files = [*_files(settings, dataset.kind), *MODEL_FILES, answers]
    with RunFolder(folder, request, files=files, overwrite=overwrite) as run_folder:
        timing = {"data": time.perf_counter() - started}
        # 2: the estimator
        started = time.perf_counter()
        estimator, beats_chance = fit_estimator(run, settings, progress)
        timing["predictor"] = time.perf_counter() - started
        if tell_accuracy is not None:
            said = run.answered(estimator.predict(run.bags(run.test)), run.test)
            tell_accuracy(float(np.mean(said == run.labels[run.test])))
        # 3: one token of each sequence, and its explanation
        started = time.perf_counter()
        chooser = fit_chooser(run, estimator, settings, progress)
        timing["chooser"] = time.perf_counter() - started
        started = time.perf_counter()
        stage = StageOptions(run_folder, settings.records, checkpoint_seconds, progress)
        explanation = explain_chooser(run, chooser, settings, stage)
        model = RunModel(estimator, chooser, beats_chance, explanation, norm)
        timing["theory"] = time.perf_counter() - started
        # 4: measurements, claims, verdict
        started = time.perf_counter()
        results = _evaluate(run, model, settings, run_folder.path)
        is_standard = settings.assumption == "standard"
        stated = witness_claims if is_standard else attention_claims
        claims = check_claims(stated(results, len(run.test)), results, len(run.test))
        judge = witness_verdict if is_standard else attention_verdict
        verdict = judge(results, claims, run.token_kind, run.classes, len(run.test))
        verdict["words"] = words_sentence(results["words"])
        if "vectors" in dataset.provenance and "encoder" not in dataset.provenance:
            verdict["vectors"] = _vectors_sentence(dataset, results["accuracy"], folder)
        # 5: files; the page reads those that _evaluate wrote
        save_fitted(run_folder.path, estimator, dataset, run.encoded, run.shares)
        splits = {"train": run.train, "test": run.test}
        write_table(
            predictions(estimator, dataset, run.encoded, splits, run.shares),
            prediction_columns(estimator, dataset),
            run_folder.path / answers,
            dataset.provenance.get("delimiter"),
        )
        timing["evaluation"] = time.perf_counter() - started
        environments = run_folder.environments
        record = run_record(run, settings, command_line) | {
            **({"environments": environments} if len(environments) > 1 else {}),
            "results": results,
            "claims": claims,
            "verdict": verdict,
            "timing": timing,
        }
        if is_standard:
            write_witness_page(run_folder.path, run, model, record)
        else:
            write_report(run_folder.path, record)
            if dataset.kind == "array":
                write_bag_page(run_folder.path / "bags.html", run, model)
        return run_folder.finish(record)


def _files(settings: FitSettings, kind: str) -> list[str]:
    """Names of the files of a run."""
    if settings.assumption == "standard":
        return ["report.html", "page.json"]
    files = ["arrays.safetensors", "examples.json", "report.html"]
    return [*files, "bags.html"] if kind == "array" else files


def _evaluate(run: RunData, model: RunModel, settings: FitSettings, folder: Path) -> dict[str, Any]:
    """The ``results`` of ``run.json``; of attention arrays and examples are written."""
    accuracy, chosen = accuracy_table(run, model, settings)
    theory = attention_theory(model)
    predictor = model.estimator.predictor_
    training: dict[str, Any] = {
        "penalty": predictor.penalty,
        "uniform_attention": predictor.ratio == np.inf,
        "calibration": model.estimator.calibration_,
        "class_weight": settings.class_weight,
        "beats_chance": model.beats_chance,
    }
    results = {
        "accuracy": accuracy,
        "words": chosen_words(run, model),
        "theory": {
            "class": run.classes[run.positive],
            "rest": run.classes[1 - run.positive] if len(run.classes) == 2 else None,
            "sequences": len(run.explained),
            "training_sequences": len(run.train),
        },
        "training": training,
    }
    if theory is None:
        return results | _witness_results(run, model)
    direction, curves = direction_results(theory)
    arrays = run_arrays(run, model, theory, curves, settings.saturation)
    save_arrays(arrays, folder / "arrays.safetensors")
    examples = choose_examples(run, model, theory, chosen, settings.seed)
    write_json(folder / "examples.json", examples)
    training |= _descent_results(theory)
    return results | {
        "selection": selection_results(theory, settings.saturation),
        "margin": margin_results(theory),
        "direction": direction,
    }


def _descent_results(theory: AttentionTheory) -> dict[str, Any]:
    """Steps of the stage in which attention is trained on alone."""
    return {
        "descent": theory.norm.descent.title,
        "steps": int(theory.trajectory.steps[-1]),
        "lr": theory.lr,
        "backend": theory.trajectory.backend,
    }


def _witness_results(run: RunData, model: RunModel) -> dict[str, Any]:
    """``evidence``, ``steps`` and ``margin`` of ``run.json``."""
    estimator, test = model.estimator, run.bags(run.test)
    evidence, positive = estimator.evidence(test), estimator.predict(test) == run.positive
    steps = estimator.convex_steps_
    return {
        "evidence": {
            "sufficient": float(evidence.sufficient.mean()),
            "necessary": float(evidence.necessary[positive].mean()) if positive.any() else None,
            "agrees": float(evidence.agrees.mean()),
        },
        "steps": {
            "count": len(steps),
            "optimal": sum(step.status == "optimal" for step in steps),
            "gap": max(step.gap for step in steps),
            "violation": max(step.violation for step in steps),
            "optimum": estimator.optimum_,
            "penalty": estimator.predictor_.penalty,
        },
        "margin": solution_results(model.explanation.solution, model.explanation.hard_status),
    }


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
