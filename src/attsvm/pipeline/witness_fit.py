"""``attsvm fit --assumption standard``: a classifier of witnesses, what is measured of it, and its
page.
"""

from __future__ import annotations

import bisect
import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from attsvm.datasets import Dataset
from attsvm.datasets.attention_data import AttentionData, FloatArray, IntArray
from attsvm.datasets.bags import as_bags
from attsvm.datasets.source import Views
from attsvm.pipeline.accuracy import accuracy_table, witness_predictors
from attsvm.pipeline.attention_model import DecisionFunction, limits_of
from attsvm.pipeline.padded import Padded
from attsvm.pipeline.results import chosen_words, solution_results
from attsvm.pipeline.settings import FitSettings
from attsvm.pipeline.verdict import check_claims, witness_claims, witness_verdict
from attsvm.report.bags_page import PageBags, write_joint_page
from attsvm.sklearn import Explanation, WitnessSVC
from attsvm.sklearn.preparation import check_units
from attsvm.sklearn.stage import StageOptions


@dataclass(frozen=True, eq=False)
class WitnessModel:
    """A fitted classifier of witnesses, and the margin of these.

    Attributes:
        classifier: the estimator.
        explanation: the margin of its witnesses.
    """

    classifier: WitnessSVC
    explanation: Explanation


def train_witnesses(
    data: AttentionData,
    settings: FitSettings,
    options: StageOptions,
    predictor_fitted: Callable[[DecisionFunction], None] | None = None,
) -> WitnessModel:
    """Fit to labelled sequences; for the arguments see
    :func:`attsvm.pipeline.attention_model.train_attention`. Nothing of unfinished work is kept.
    """
    classifier = WitnessSVC(random_state=settings.seed, progress=options.progress).fit(data)
    if predictor_fitted is not None:
        predictor_fitted(classifier.decision_function)
    explanation = classifier.explain(data, norm=settings.norm, limits=limits_of(settings))
    return WitnessModel(classifier, explanation)


class WitnessFit:
    """The standard assumption: a classifier of witnesses as the settings say, and its measurements.

    Args:
        settings: what the user chose.
    """

    train = staticmethod(train_witnesses)

    def __init__(self, settings: FitSettings) -> None:
        self.settings = settings

    def files(self, kind: str) -> list[str]:
        """Names of the files that are written, for tokens of any kind."""
        return ["report.html", "page.json"]

    def check(self, data: AttentionData) -> None:
        """Refuse what :meth:`train` would refuse."""
        check_units(data.tokens[data.mask], data.queries)

    def evaluate(
        self,
        model: WitnessModel,
        folder: Path,
        dataset: Dataset,
        encoded: Padded,
        splits: dict[str, IntArray],
    ) -> dict[str, Any]:
        """The ``results`` of ``run.json``."""
        classifier, steps = model.classifier, model.classifier.convex_steps_
        test = encoded.data.take(splits["test"])
        evidence, positive = classifier.evidence(test), classifier.predict(test) > 0
        tokens = classifier.select(encoded.data)
        values = classifier.decision_function(encoded.data)
        words = chosen_words(encoded, tokens, values, dataset.class_names, splits["test"])
        return {
            "accuracy": accuracy_table(
                encoded,
                splits,
                self.settings.seed,
                *witness_predictors(classifier, encoded.data, splits),
            ),
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
                "optimum": classifier.optimum_,
                "penalty": classifier.predictor_.penalty,
            },
            "margin": solution_results(model.explanation.solution, model.explanation.hard_status),
            "words": words[1:],  # a text called negative has no witness
        }

    def timing(self, model: WitnessModel) -> dict[str, float]:
        """Nothing is timed by itself."""
        return {}

    def judge(
        self, results: dict[str, Any], kind: str, splits: dict[str, IntArray]
    ) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """The ``claims`` and the ``verdict`` of ``run.json``."""
        claims = check_claims(witness_claims(results), results, len(splits["test"]))
        return claims, witness_verdict(results, claims, kind)

    def write_pages(
        self,
        model: WitnessModel,
        folder: Path,
        dataset: Dataset,
        encoded: Padded,
        splits: dict[str, IntArray],
        run: dict[str, Any],
    ) -> None:
        """Write ``report.html``: what was measured, and the held-out sequences with their
        evidence.
        """

        def bags(rows: IntArray) -> PageBags:
            names = [f"sequence {i}" for i in rows]
            return PageBags(
                encoded.data.take(rows), _instances(encoded, rows), names, dataset.class_names
            )

        rest = np.sort(np.concatenate([splits["train"], splits["validation"]]))
        write_joint_page(
            folder / "report.html",
            model.classifier,
            bags(splits["test"]),
            (bags(rest), model.explanation),
            run,
        )


def _instances(encoded: Padded, rows: IntArray) -> Views[str] | FloatArray | None:
    """The words of these texts or the patches of these images, token by token; None of vectors."""
    kind = encoded.views[0].get("kind") if encoded.views else None
    if kind == "text":
        return _words(encoded, rows)
    return _patches(encoded, rows) if kind == "image" else None


def _patches(encoded: Padded, rows: IntArray) -> FloatArray:
    """Pixels ``(N, height, width)`` of the visible tokens of these images."""
    assert encoded.views is not None
    patches = []
    for i in rows:
        view = encoded.views[int(i)]
        pixels = np.array(view["pixels"])
        for t in np.flatnonzero(encoded.data.mask[i]):
            row, column, height, width = view["boxes"][t]
            patches.append(pixels[row : row + height, column : column + width])
    return np.stack(patches)


def _words(encoded: Padded, rows: IntArray) -> Views[str]:
    """The word of each token of some texts, cut out when it is looked up."""
    offsets, views = as_bags(encoded.data.take(rows)).offsets.tolist(), encoded.views
    assert views is not None
    view_of = functools.lru_cache(maxsize=64)(lambda i: views[int(rows[i])])

    def word(instance: int) -> str:
        i = bisect.bisect_right(offsets, instance) - 1
        view, t = view_of(i), instance - offsets[i]
        spans = view["spans"][t] if t < len(view["spans"]) else []
        return str(view["text"][slice(*spans[0])]) if spans else "…"

    return Views(offsets[-1], word)
