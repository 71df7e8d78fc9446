"""Learning curves of trained classifiers, drawn from the ``history.jsonl`` of their folders."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from attsvm.errors import InputError
from attsvm.files import opened
from attsvm.report.style import (
    ATTENTION,
    BEST,
    FAINT,
    INK,
    TRAINED,
    Picture,
    canvas,
    label_ends,
    logarithmic,
    render,
)

_COLOURS = (TRAINED, ATTENTION, BEST, INK, FAINT)


def learning_curves(runs: Mapping[str, str | Path], held: str = "test") -> Picture:
    """Training loss, and accuracy on a held-out set, after every epoch of every run.

    Args:
        runs: label to the folder that :func:`attsvm.training.train_classifier` wrote, five at most.
        held: the held-out set.

    Raises:
        InputError: no runs or more than five, a folder without a history, or a history without this
            set.
    """
    if not 1 <= len(runs) <= len(_COLOURS):
        raise InputError(
            f"{len(runs)} runs; give one to {len(_COLOURS)}, more cannot be told apart in one"
            " figure"
        )
    found = {label: _read(Path(folder), held) for label, folder in runs.items()}
    with canvas(4.2, rows=2, sharex=True) as (figure, axes):
        for (label, (epochs, loss, accuracy)), colour in zip(found.items(), _COLOURS, strict=False):
            marker = "o" if len(epochs) <= 12 else ""
            axes[0].plot(epochs, loss, color=colour, marker=marker, markersize=3, label=label)
            axes[1].plot(epochs, 100 * accuracy, color=colour, marker=marker, markersize=3)
        logarithmic(axes[0].yaxis, np.concatenate([loss for _, loss, _ in found.values()]))
        axes[0].set_ylabel("training loss")
        axes[1].set_ylabel(f"{held} accuracy, %")
        axes[1].set_xlabel("epoch")
        axes[1].xaxis.get_major_locator().set_params(integer=True)
        ends = zip(found.items(), _COLOURS, strict=False)
        label_ends(
            axes[1],
            [
                (100 * float(accuracy[-1]), label, colour)
                for (label, (_, _, accuracy)), colour in ends
            ],
        )
        last = "; ".join(
            f"{label}: {accuracy[-1]:.1%} after {len(epochs)} epochs"
            for label, (epochs, _, accuracy) in found.items()
        )
        caption = (
            "Training loss per example, over the batches as they were trained, and accuracy on"
            f" {held} after every epoch."
        )
        return render(
            figure, "learning-curves", "Learning curves", caption, f"Learning curves. {last}."
        )


def _read(folder: Path, held: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    path = folder / "history.jsonl"
    if not path.is_file():
        raise InputError(
            f"{folder} has no history.jsonl; give a folder that train_classifier wrote"
        )
    with opened(path) as file:
        content = file.read()
    try:
        rows = [json.loads(line) for line in content.decode("utf-8").splitlines()]
        columns = [
            [row[name] for row in rows] for name in ("epoch", "train_loss", f"{held}_accuracy")
        ]
    except KeyError as error:
        raise InputError(
            f"{path} has no column {error}; its columns are {', '.join(rows[0])}"
        ) from None
    except (ValueError, TypeError, RecursionError) as error:
        raise InputError(
            f"{path} cannot be read ({error}); train again with another folder"
        ) from None
    epochs, loss, accuracy = (np.array(values, dtype=float) for values in columns)
    return epochs, loss, accuracy
