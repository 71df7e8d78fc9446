"""``attsvm fit`` of slides: bags in files, which stay on disk, and patients that stay together.

1. Hold out a share of the patients.
2. Fit the classifier to the others; it leaves out patients in turn to choose its penalty.
3. Compare with what knows nothing of patches, and write an answer for each slide and each patch.
4. Draw the slides that teach most.
"""

from __future__ import annotations

import itertools
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss, recall_score, roc_auc_score
from sklearn.model_selection import GridSearchCV, StratifiedGroupKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from attsvm.base.errors import InputError
from attsvm.base.store import RunFolder, finished_run
from attsvm.datasets import Dataset, Encoded
from attsvm.datasets.attention_data import FloatArray, IntArray
from attsvm.datasets.bags import Bags
from attsvm.pipeline.fitted_run import MODEL_FILES, save_fitted
from attsvm.pipeline.model import RunData, fit_estimator
from attsvm.pipeline.predictions import (
    PATCH_COLUMNS,
    instance_weights,
    patches,
    prediction_columns,
    predictions,
    write_table,
)
from attsvm.pipeline.record import fit_request, run_record
from attsvm.pipeline.settings import FitSettings
from attsvm.report.slides_page import (
    SlideCard,
    pictures_of_slides,
    slide_card,
    slides_to_show,
    write_slides,
)
from attsvm.sklearn.bag_classifier import BagClassifier
from attsvm.sklearn.evidence import predicted
from attsvm.sklearn.moments import bag_means
from attsvm.sklearn.stage import Progress

_BINS = (0.0, 0.6, 0.7, 0.8, 0.9, 1.0)  # of probabilities of predictions
_PENALTIES = [0.001, 0.01, 0.1, 1.0]  # inverse ones, of mean pooling


def fit_slides(
    dataset: Dataset,
    settings: FitSettings,
    folder: Path,
    *,
    overwrite: bool = False,
    progress: Progress | None = None,
    command_line: str | None = None,
    images: Path | None = None,
) -> dict[str, Any]:
    """Fit to slides and return the content of ``run.json``; see
    :func:`attsvm.pipeline.fit.fit_dataset`.

    Args:
        dataset: of kind ``slide``.
        settings: of which assumption, seed, ``test_size``, ``class_weight`` and
            ``predictions_format`` count.
        folder: the run folder.
        overwrite: throw away another run that lies in the folder.
        progress: called with stage, steps done, steps in all.
        command_line: how the user asked for it, for the report.
        images: a folder with a picture of each slide, named like it.

    Raises:
        InputError: unusable data, a class with slides of one patient only, or a folder that holds
            something else.
    """
    request = fit_request(dataset, settings)
    if (finished := finished_run(folder, request)) is not None:
        return finished
    pictures = {} if images is None else pictures_of_slides(images)
    started = time.perf_counter()
    encoded = dataset.encode(np.arange(len(dataset)))  # nothing is learned from rows
    # 1: patients held out
    train, test = split_patients(
        dataset.labels, encoded.bags.groups, settings.test_size, settings.seed
    )
    data = RunData(dataset, encoded, train, test, len(dataset.class_names) - 1, train)
    splits = {"train": train, "test": test}
    answers = f"predictions.{settings.predictions_format}"
    files = [*MODEL_FILES, answers, "patches.csv", "page.json", "report.html"]
    with RunFolder(folder, request, files=files, overwrite=overwrite) as run_folder:
        path = run_folder.path
        # 2: the classifier
        model, beats_chance = fit_estimator(data, settings, progress)
        timing = {"fit": time.perf_counter() - started}
        save_fitted(path, model, dataset, encoded)
        # 3: comparisons and answers
        results, probability = slides_results(model, dataset, encoded.bags, splits)
        delimiter = dataset.provenance.get("delimiter")
        rows = predictions(model, dataset, encoded, splits)
        write_table(rows, prediction_columns(model, dataset), path / answers, delimiter)
        rows = patches(model, dataset, encoded, test)
        write_table(rows, PATCH_COLUMNS, path / "patches.csv", delimiter)
        timing["evaluation"] = time.perf_counter() - started - timing["fit"]
        # 4: the page
        run = run_record(data, settings, command_line) | {
            "results": results,
            "claims": [],
            "verdict": _verdict(results, encoded.bags, beats_chance),
            "timing": timing,
        }
        calls = probability.argmax(axis=1)
        on_page = slides_to_show(dataset.labels[test], calls[test], probability[test].max(axis=1))
        cards = [
            _card(model, dataset, encoded, int(test[k]), probability[test[k]], reason, pictures)
            for k, reason in on_page
        ]
        write_slides(path / "report.html", cards, run)
        return run_folder.finish(run)


def split_patients(
    labels: IntArray, groups: NDArray[Any] | None, share: float, seed: int
) -> tuple[IntArray, IntArray]:
    """Sorted positions of bags to fit to and of about a share that is held out; no group is in
    both, every class is in both.

    Args:
        labels: ``(n,)``.
        groups: ``(n,)``; None where bags stand alone.
        share: to be held out.
        seed: of the choice.

    Raises:
        InputError: a class whose bags are all of one group.

    Example:
        >>> import numpy as np
        >>> from attsvm.pipeline.slides import split_patients
        >>> patients = np.repeat(np.arange(8), 2)
        >>> train, test = split_patients(patients % 2, patients, share=0.25, seed=0)
        >>> len(test), set(patients[train]) & set(patients[test])
        (4, set())
    """
    names = np.arange(len(labels)) if groups is None else np.unique(groups, return_inverse=True)[1]
    classes = np.unique(labels)
    counts = [len(np.unique(names[labels == label])) for label in classes]
    if min(counts) < 2:
        raise InputError(
            f"all bags of class {classes[int(np.argmin(counts))]} are of one group; give at least"
            " two groups of each class, so that one can be held out"
        )
    folds = min(max(2, round(1.0 / share)), min(counts))
    splitter = StratifiedGroupKFold(folds, shuffle=True, random_state=seed)
    for train, test in splitter.split(labels, labels, names):
        if len(np.unique(labels[train])) == len(np.unique(labels[test])) == len(classes):
            return train, test
    raise InputError(
        "no share of the groups holds every class and leaves some of each; give more groups"
    )


def slides_results(
    model: BagClassifier, dataset: Dataset, bags: Bags, splits: dict[str, IntArray]
) -> tuple[dict[str, Any], FloatArray]:
    """The ``results`` of ``run.json``: the model beside its chosen patch alone, mean pooling and
    the more frequent class; recall by class, calibration, errors. And the probabilities ``(n, K)``
    of all slides.
    """
    labels, train, test = dataset.labels, splits["train"], splits["test"]
    columns = np.empty(len(labels), dtype=np.int64)
    alone = np.empty(len(labels), dtype=np.int64)
    probability = np.empty((len(labels), len(model.classes_)))
    for at, block, layer, reading in model.readings(bags):
        columns[at] = predicted(reading.values)
        probability[at] = model.probabilities(reading.values)
        chosen = block.offsets[:-1] + _selected(reading.selected, columns[at])
        alone[at] = predicted(layer.alone(block.rows[chosen]))
    means = bag_means(bags)
    pooled = _mean_pooling(means[train], labels[train], bags.groups, train).predict(means)
    majority = np.full(len(labels), np.argmax(np.bincount(labels[train])))
    rows = [
        ("soft", "the model", "all patches of a slide", columns),
        ("hard", "its patch alone", "the same model on the one patch that it chooses", alone),
        ("mean_pooling", "mean of the patches", "logistic regression on their mean", pooled),
        ("majority", "the more frequent class", "of the slides that were fitted", majority),
    ]
    accuracy = [
        {
            "name": name,
            "title": title,
            "what": what,
            **{split: float(np.mean(calls[at] == labels[at])) for split, at in splits.items()},
        }
        for name, title, what, calls in rows
    ]
    auc = roc_auc_score(labels[test], probability[test, 1]) if len(model.classes_) == 2 else None
    recall = recall_score(labels[test], columns[test], average=None)
    names, shares = dataset.class_names, np.bincount(labels[train]) / len(train)
    steps = model.convex_steps_
    results = {
        "accuracy": accuracy,
        "recall": [
            {"class": names[k], "recall": float(recall[i])}
            for i, k in enumerate(np.unique(labels[test]))
        ],
        "balanced": float(np.mean(recall)),
        "auc": None if auc is None else float(auc),
        "log_loss": float(log_loss(labels[test], probability[test], labels=range(len(names)))),
        "chance": float(-np.mean(np.log(shares[labels[test]]))),
        "calibration": _calibration(model, labels, probability, splits),
        "errors": [
            {
                "name": str(dataset.ids[i]) if dataset.ids is not None else str(i + 1),
                "label": names[labels[i]],
                "predicted": names[columns[i]],
                "probability": float(probability[i, columns[i]]),
            }
            for i in sorted(test, key=lambda i: -probability[i, columns[i]])
            if columns[i] != labels[i]
        ],
        "patients": {
            "named": bags.groups is not None,
            "test": len(test) if bags.groups is None else len(np.unique(bags.groups[test])),
        },
        "steps": {
            "count": len(steps),
            "optimal": sum(step.status == "optimal" for step in steps),
            "gap": max((step.gap for step in steps), default=0.0),
            "optimum": model.optimum_,
            "penalty": model.predictor_.penalty,
        },
    }
    return results, probability


def _selected(selected: IntArray, column: IntArray) -> IntArray:
    """``(n,)``: the instance that decides, of the predicted class."""
    return selected[np.arange(len(selected)), column if selected.shape[1] > 1 else 0]


def _mean_pooling(
    means: FloatArray, labels: IntArray, groups: NDArray[Any] | None, train: IntArray
) -> Any:
    """Logistic regression on means of patches, its penalty chosen by patients left out."""
    names = np.arange(len(train)) if groups is None else groups[train]
    counts = [len(np.unique(names[labels == label])) for label in np.unique(labels)]
    head = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
    if min(counts) < 2:
        return head.fit(means, labels)
    folds = StratifiedGroupKFold(min(5, *counts))
    grid = {"logisticregression__C": _PENALTIES}
    return GridSearchCV(head, grid, cv=folds).fit(means, labels, groups=names)


def _calibration(
    model: BagClassifier, labels: IntArray, probability: FloatArray, splits: dict[str, IntArray]
) -> list[dict[str, Any]]:
    """Probabilities of predictions in a few ranges, of slides that the predicting model did not
    see, beside the share of them that are right.
    """
    left_out = model.predictor_.left_out
    was_left_out = ~np.isnan(left_out[:, 0])
    unseen = np.concatenate(
        [model.probabilities(left_out[was_left_out]), probability[splits["test"]]]
    )
    truth = np.concatenate([labels[splits["train"]][was_left_out], labels[splits["test"]]])
    sure, right = unseen.max(axis=1), unseen.argmax(axis=1) == truth
    rows = []
    for low, high in itertools.pairwise(_BINS):
        inside = (sure > low) & (sure <= high)
        if inside.any():
            rows.append(
                {
                    "low": max(low, 1.0 / probability.shape[1]),
                    "high": high,
                    "slides": int(inside.sum()),
                    "mean": float(sure[inside].mean()),
                    "right": float(right[inside].mean()),
                }
            )
    return rows


def _card(
    model: BagClassifier,
    dataset: Dataset,
    encoded: Encoded,
    i: int,
    probability: FloatArray,
    reason: str,
    pictures: dict[str, Path],
) -> SlideCard:
    """The card of slide ``i``, whose classes have these probabilities."""
    bags, names, column = encoded.bags.take([i]), dataset.class_names, int(probability.argmax())
    ((_, patches_of_slide, layer, reading),) = model.readings(bags)
    weights = instance_weights(layer, reading, patches_of_slide, np.array([column]))
    groups, view = encoded.bags.groups, encoded.views[i] if encoded.views is not None else {}
    return slide_card(
        model,
        bags,
        weights,
        view.get("coordinates"),
        pictures,
        name=str(i + 1) if dataset.ids is None else dataset.ids[i],
        group="" if groups is None else str(groups[i]),
        label=names[dataset.labels[i]],
        predicted=names[column],
        predicted_column=column,
        correct=bool(dataset.labels[i] == column),
        reason=reason,
        probability=float(probability[column]),
    )


def _verdict(results: dict[str, Any], bags: Bags, beats_chance: bool) -> dict[str, Any]:
    """The ``verdict`` of ``run.json``."""
    share = {entry["name"]: entry["test"] for entry in results["accuracy"]}
    headline = (
        f"The model is right on {share['soft']:.1%} of the slides held out; the mean of the patches"
        f" {share['mean_pooling']:.1%}; always the more frequent class {share['majority']:.1%}."
    )
    kept_apart = (
        "Patients were kept apart: no slide held out, and none left out to choose the penalty, is"
        " of a patient that the model saw."
        if bags.groups is not None
        else "Patients are not named (--group COLUMN), so slides of one patient may be on both"
        " sides of a split, and these numbers too good."
    )
    alone = (
        f"The one patch that the model chooses gives the right class alone on {share['hard']:.1%}"
        " of these slides."
    )
    sentences = [alone, kept_apart]
    if not beats_chance:
        sentences.insert(
            0,
            "Slides left out are not predicted better than by chance: trust neither predictions nor"
            " heatmaps.",
        )
    return {"headline": headline, "beside": alone, "sentences": sentences, "ends": []}
