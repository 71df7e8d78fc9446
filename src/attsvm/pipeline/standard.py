"""``attsvm fit --assumption standard``: what is measured, what is claimed, and the page."""

from __future__ import annotations

import bisect
import functools
from pathlib import Path
from typing import Any

import numpy as np

from attsvm.datasets import Encoded
from attsvm.datasets.attention_data import AttentionData, FloatArray, IntArray
from attsvm.datasets.bags import as_bags
from attsvm.datasets.source import Views
from attsvm.pipeline.accuracy import accuracy_table
from attsvm.pipeline.results import chosen_words, solution_results
from attsvm.pipeline.settings import FitSettings
from attsvm.pipeline.trained import limits_of
from attsvm.pipeline.verdict import accuracy_claims, answer, certificate, claim, nulls
from attsvm.sklearn import WitnessSVC
from attsvm.sklearn.minimise import TOLERANCE

SUFFICIENT_SHARE = 0.95


class Witnessed(WitnessSVC):
    """:class:`~attsvm.sklearn.WitnessSVC`, as :class:`attsvm.pipeline.trained.Trained` is of
    attention; it keeps nothing of unfinished work.

    Attributes:
        explained_: the margin of its witnesses.
    """

    checkpoint: Path | None = None

    def __init__(self, settings: FitSettings) -> None:
        super().__init__(random_state=settings.seed)
        self.settings = settings

    def check(self, data: AttentionData) -> None:
        """Refuse what :meth:`learn` would refuse."""
        self.training_bags(data)

    def learn(self, data: AttentionData) -> Witnessed:
        """Fit to labelled sequences."""
        limits = limits_of(self.settings)
        self.explained_ = self.fit(data).explain(data, norm=self.settings.norm, limits=limits)
        return self


def standard_results(
    model: Witnessed, encoded: Encoded, parts: dict[str, IntArray]
) -> dict[str, Any]:
    """The ``results`` of ``run.json``."""
    held, steps = encoded.data.take(parts["test"]), model.convex_steps_
    found, positive = model.evidence(held), model.predict(held) > 0
    return {
        "accuracy": accuracy_table(model, encoded, parts, model.settings.seed),
        "evidence": {
            "sufficient": float(found.sufficient.mean()),
            "necessary": float(found.necessary[positive].mean()) if positive.any() else None,
            "agrees": float(found.agrees.mean()),
        },
        "steps": {
            "count": len(steps),
            "optimal": sum(step.status == "optimal" for step in steps),
            "gap": max(step.gap for step in steps),
            "violation": max(step.violation for step in steps),
            "optimum": model.optimum_,
            "penalty": model.predictor_.penalty,
        },
        "margin": solution_results(model.explained_.solution, model.explained_.hard_status),
    }


def standard_claims(results: dict[str, Any], n_test: int) -> list[dict[str, Any]]:
    """The ``claims`` of ``run.json``."""
    accuracy = {entry["name"]: entry["test"] for entry in results["accuracy"]}
    steps, margin, evidence = results["steps"], results["margin"], results["evidence"]
    return [
        claim(
            "steps",
            "Every convex step of the final weights is proved optimal.",
            steps["gap"],
            TOLERANCE,
            steps["optimal"] == steps["count"],
            "the whole problem is not convex, so the end is a local optimum",
        ),
        certificate(margin, "witnesses"),
        claim(
            "sufficiency",
            f"In at least {SUFFICIENT_SHARE:.0%} of the held-out sequences the selected token alone"
            " gives the same prediction.",
            evidence["sufficient"],
            SUFFICIENT_SHARE,
            evidence["sufficient"] >= SUFFICIENT_SHARE,
            "under the standard assumption one witness is enough",
        ),
        *accuracy_claims(
            accuracy,
            n_test,
            "The model",
            "otherwise the standard assumption may be the wrong one for these data",
        ),
    ]


def standard_verdict(
    results: dict[str, Any], stated: list[dict[str, Any]], kind: str = "array"
) -> dict[str, Any]:
    """The ``verdict`` of ``run.json``; see :func:`attsvm.pipeline.verdict.verdict`."""
    steps, margin, evidence = results["steps"], results["margin"], results["evidence"]
    name = "max-margin" if margin["hard"] else "soft-margin"
    ok = all(one["verdict"] == "holds" for one in stated if one["id"] in ("steps", "certificate"))
    ends = [*([] if ok else ["undecided"]), *([] if margin["hard"] else [margin["hard_status"]])]
    without = (
        ""
        if evidence["necessary"] is None
        else f", and without it {evidence['necessary']:.1%} of those called positive are called so"
        " no longer"
    )
    return {
        "headline": answer(results["accuracy"], kind),
        "holds": ok,
        "ends": ends,
        "beside": nulls(results["accuracy"], kind),
        "sentences": [
            f"In {evidence['sufficient']:.1%} of the held-out sequences the selected token alone"
            f" gives the same prediction{without}.",
            f"{steps['optimal']} of {steps['count']} convex steps are certified optimal; the end is"
            " a local optimum.",
            f"The {name} programme of the witnesses is {margin['status']}, with a margin of"
            f" {margin['margin']:.4g}.",
        ],
    }


def witness_words(
    model: WitnessSVC, encoded: Encoded, names: tuple[str, str], test: IntArray
) -> list[dict[str, Any]]:
    """The words that are chosen as witnesses; a text called negative has none."""
    tokens, values = model.select(encoded.data), model.decision_function(encoded.data)
    return chosen_words(encoded, tokens, values, names, test)[1:]


def write_page(
    folder: Path,
    model: Witnessed,
    encoded: Encoded,
    parts: dict[str, IntArray],
    run: Any,
) -> None:
    """``report.html``: what was measured, and the held-out sequences with their evidence."""
    from attsvm.report.bags_page import Shown, write_joint_page  # needs jinja2, as every page

    def shown(rows: IntArray) -> Shown:
        names = [f"sequence {i}" for i in rows]
        looks, classes = _looks(encoded, rows), run["dataset"]["class_names"]
        return Shown(encoded.data.take(rows), looks, names, classes)

    learned = np.sort(np.concatenate([parts["train"], parts["validation"]]))
    pair = shown(learned), model.explained_
    write_joint_page(folder / "report.html", model, shown(parts["test"]), pair, run)


def _looks(encoded: Encoded, rows: IntArray) -> Views[str] | FloatArray | None:
    """The words of these texts or the patches of these images, token by token; None of vectors."""
    kind = encoded.views[0].get("kind") if encoded.views else None
    if kind == "text":
        return _words(encoded, rows)
    return _patches(encoded, rows) if kind == "image" else None


def _patches(encoded: Encoded, rows: IntArray) -> FloatArray:
    """``(N, height, width)`` of the visible tokens of these images."""
    assert encoded.views is not None
    found = []
    for i in rows:
        view = encoded.views[int(i)]
        pixels = np.array(view["pixels"])
        for t in np.flatnonzero(encoded.data.mask[i]):
            row, column, height, width = view["boxes"][t]
            found.append(pixels[row : row + height, column : column + width])
    return np.stack(found)


def _words(encoded: Encoded, rows: IntArray) -> Views[str]:
    """The word of each token of some texts, found when it is asked for."""
    offsets, views = as_bags(encoded.data.take(rows)).offsets.tolist(), encoded.views
    assert views is not None
    view_of = functools.lru_cache(maxsize=64)(lambda i: views[int(rows[i])])

    def word(at: int) -> str:
        i = bisect.bisect_right(offsets, at) - 1
        view, t = view_of(i), at - offsets[i]
        found = view["spans"][t] if t < len(view["spans"]) else []
        return str(view["text"][slice(*found[0])]) if found else "…"

    return Views(offsets[-1], word)
