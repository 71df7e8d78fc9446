"""The pages of a run that show sequences with the evidence of an estimator."""

from __future__ import annotations

import bisect
import functools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from attsvm.datasets.attention_data import FloatArray, IntArray
from attsvm.datasets.source import Views
from attsvm.pipeline.model import RunData, RunModel
from attsvm.report.bags_page import PageBags, write_bags, write_joint_page


def write_bag_page(path: Path, run: RunData, model: RunModel) -> None:
    """Write the held-out sequences, each with its evidence."""
    write_bags(
        path,
        model.estimator,
        _page_bags(run, run.test).bags,
        names=_names(run, run.test),
        class_names=run.classes,
        title=run.dataset.title,
    )


def write_witness_page(folder: Path, run: RunData, model: RunModel, record: dict[str, Any]) -> None:
    """Write ``report.html``: what was measured, and the held-out sequences with their evidence."""
    write_joint_page(
        folder / "report.html",
        model.estimator,
        _page_bags(run, run.test),
        (_page_bags(run, run.explained), model.explanation),
        record,
    )


def _names(run: RunData, rows: IntArray) -> list[str]:
    return [f"row {run.dataset.row(i)}" for i in rows.tolist()]


def _page_bags(run: RunData, rows: IntArray) -> PageBags:
    """These sequences with their labels and how their tokens look."""
    bags = run.bags(rows)
    bags = replace(bags, source=np.arange(len(bags.source)))
    return PageBags(bags, _instances(run, rows), _names(run, rows), run.classes)


def _instances(run: RunData, rows: IntArray) -> Views[str] | FloatArray | None:
    """The words of these texts or the patches of these images, token by token; None of vectors."""
    views = run.encoded.views
    kind = views[0].get("kind") if views else None
    if kind == "text":
        return _words(run, rows)
    return _patches(run, rows) if kind == "image" else None


def _patches(run: RunData, rows: IntArray) -> FloatArray:
    """Pixels ``(N, height, width)`` of the tokens of these images."""
    assert run.encoded.views is not None
    patches = []
    for i in rows:
        view = run.encoded.views[int(i)]
        pixels = np.array(view["pixels"])
        for row, column, height, width in view["boxes"]:
            patches.append(pixels[row : row + height, column : column + width])
    return np.stack(patches)


def _words(run: RunData, rows: IntArray) -> Views[str]:
    """The word of each token of some texts, cut out when it is looked up."""
    offsets, views = run.encoded.bags.take(rows).offsets.tolist(), run.encoded.views
    assert views is not None
    view_of = functools.lru_cache(maxsize=64)(lambda i: views[int(rows[i])])

    def word(instance: int) -> str:
        i = bisect.bisect_right(offsets, instance) - 1
        view, t = view_of(i), instance - offsets[i]
        spans = view["spans"][t] if t < len(view["spans"]) else []
        return str(view["text"][slice(*spans[0])]) if spans else "…"

    return Views(offsets[-1], word)
