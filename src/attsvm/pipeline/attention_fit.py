"""``attsvm fit --assumption collective``: attention that is trained together with its head, what is
measured of it, and its pages.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from attsvm.base.files import save_arrays, write_json
from attsvm.datasets import Dataset
from attsvm.datasets.attention_data import AttentionData, IntArray
from attsvm.norms import as_norm
from attsvm.pipeline.accuracy import accuracy_table, attention_predictors
from attsvm.pipeline.attention_model import (
    AttentionModel,
    limits_of,
    split_validation,
    train_attention,
)
from attsvm.pipeline.bags_classifier import bags_classifier
from attsvm.pipeline.padded import Padded
from attsvm.pipeline.results import (
    choose_examples,
    chosen_words,
    direction_results,
    margin_results,
    run_arrays,
    selection_results,
)
from attsvm.pipeline.settings import FitSettings
from attsvm.pipeline.verdict import attention_claims, attention_verdict, check_claims
from attsvm.report.bags_page import write_bags
from attsvm.report.page import write_report
from attsvm.sklearn.explaining import check_explained
from attsvm.sklearn.preparation import check_units
from attsvm.sklearn.stage import argmax_tokens


class AttentionFit:
    """The collective assumption: attention and head as the settings say, and their measurements.

    Args:
        settings: what the user chose.
    """

    train = staticmethod(train_attention)

    def __init__(self, settings: FitSettings) -> None:
        self.settings = settings

    def files(self, kind: str) -> list[str]:
        """Names of the files that are written for tokens of this kind."""
        files = ["arrays.safetensors", "examples.json", "report.html"]
        return [*files, "bags.html"] if kind == "array" else files

    def check(self, data: AttentionData) -> None:
        """Refuse, before the first step, what :meth:`train` would refuse."""
        check_units(data.tokens[data.mask], data.queries)
        check_explained(data, as_norm(self.settings.norm), limits_of(self.settings))
        split_validation(data, self.settings)

    def evaluate(
        self,
        model: AttentionModel,
        folder: Path,
        dataset: Dataset,
        encoded: Padded,
        splits: dict[str, IntArray],
    ) -> dict[str, Any]:
        """The ``results`` of ``run.json``; arrays and examples are written into the folder."""
        train = encoded.data.take(splits["train"])
        direction, curves = direction_results(model)
        saturation, seed = self.settings.saturation, self.settings.seed
        arrays = run_arrays(model, train, splits, curves, saturation)
        save_arrays(arrays, folder / "arrays.safetensors")
        write_json(folder / "examples.json", choose_examples(model, encoded, splits, seed))
        tokens = argmax_tokens(encoded.data, model.selection_weights.W)
        values = model.selection_weights.token_values(encoded.data, tokens)
        return {
            "selection": selection_results(model, train, saturation),
            "margin": margin_results(model),
            "direction": direction,
            "accuracy": accuracy_table(
                encoded, splits, seed, *attention_predictors(model, encoded.data)
            ),
            "training": {
                "joint_steps": int(model.joint_trajectory.steps[-1]),
                "best_joint_step": model.best_step,
                "descent": model.norm.descent.title,
                "steps": int(model.trajectory.steps[-1]),
                "lr": model.lr,
                "baseline_C": model.baseline.C,
                "backend": model.trajectory.backend,
            },
            "words": chosen_words(encoded, tokens, values, dataset.class_names, splits["test"]),
        }

    def timing(self, model: AttentionModel) -> dict[str, float]:
        """Seconds of the two descents."""
        return {
            "joint_training": float(model.joint_trajectory.seconds[-1]),
            "selection_training": float(model.trajectory.seconds[-1]),
        }

    def judge(
        self, results: dict[str, Any], kind: str, splits: dict[str, IntArray]
    ) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """The ``claims`` and the ``verdict`` of ``run.json``."""
        claims = check_claims(attention_claims(results), results, len(splits["test"]))
        return claims, attention_verdict(results, claims, len(splits["validation"]), kind)

    def write_pages(
        self,
        model: AttentionModel,
        folder: Path,
        dataset: Dataset,
        encoded: Padded,
        splits: dict[str, IntArray],
        run: dict[str, Any],
    ) -> None:
        """Write the report; of vectors also the held-out bags, each with its evidence."""
        write_report(folder, run)
        if "bags.html" in self.files(dataset.kind):
            rest = np.sort(np.concatenate([splits["train"], splits["validation"]]))
            validation_rows = np.flatnonzero(np.isin(rest, splits["validation"]))
            write_bags(
                folder / "bags.html",
                bags_classifier(model.weights, encoded.data.take(rest), validation_rows),
                encoded.data.take(splits["test"]),
                names=[f"sequence {i}" for i in splits["test"]],
                title=dataset.title,
            )
