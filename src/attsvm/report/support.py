"""The constraints that decide the max-margin weights, each with its sequence and its two tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from attsvm.report import pixels
from attsvm.report.examples import token_name, view_of
from attsvm.report.folder import Run

LISTED = 12


@dataclass(frozen=True)
class Constraint:
    """One row of the table.

    Attributes:
        sequence: position in the original data.
        selected: the selected token in words, or ``token 3``.
        rival: the token that it has to beat.
        selected_patch: picture of the selected token, for images.
        rival_patch: picture of the rival.
        dual: dual variable.
        share: dual over the sum of all duals.
        margin: margin of the constraint at the max-margin weights; 1 on the boundary.
    """

    sequence: int
    selected: str
    rival: str
    selected_patch: pixels.Photo | None
    rival_patch: pixels.Photo | None
    dual: float
    share: float
    margin: float | None


def constraints(run: Run) -> list[Constraint]:
    """The constraints with the largest duals, at most :data:`LISTED`; empty when the run has
    none.
    """
    columns = run.series("dual", "constraint_sequence", "constraint_token")
    selected = run.arrays.get("selected")
    if columns is None or selected is None:
        return []
    dual, sequences, rivals = columns
    values = run.arrays.get("margin_values")
    total = float(dual[dual > 0].sum())
    order = [int(c) for c in np.argsort(-dual, kind="stable")[:LISTED] if dual[c] > 0]
    train = run.arrays.get("train")
    views = {
        int(e["sequence"]): view_of(e)
        for e in run.examples
        if e.get("part") == "train" and isinstance(e.get("sequence"), int)
    }
    scale = pixels.value_range(
        [view_of(example) for example in run.examples if view_of(example).get("kind") == "image"]
    )
    rows = []
    for c in order:
        i, rival = (
            int(sequences[c]),
            int(rivals[c]),
        )  # i counts within the training part, examples within the original data
        token = int(selected[i]) if 0 <= i < len(selected) else -1
        place = int(train[i]) if train is not None and 0 <= i < len(train) else i
        view: dict[str, Any] = views.get(place, {})
        rows.append(
            Constraint(
                sequence=place,
                selected=token_name(view, token),
                rival=token_name(view, rival),
                selected_patch=(
                    pixels.crop(view, token, scale) if view.get("kind") == "image" else None
                ),
                rival_patch=(
                    pixels.crop(view, rival, scale) if view.get("kind") == "image" else None
                ),
                dual=float(dual[c]),
                share=float(dual[c]) / total,
                margin=float(values[c]) if values is not None and c < len(values) else None,
            )
        )
    return rows
