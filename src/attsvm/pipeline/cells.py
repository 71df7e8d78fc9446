"""Cells of experiments, computed once and kept under a name made of what decides them."""

from __future__ import annotations

import inspect
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from attsvm.store.code import code_fingerprint
from attsvm.store.entries import Arrays, entry_path, load_entry, save_entry
from attsvm_papers.kit import Cell, Experiment, experiment


@dataclass
class Computed:
    """The cells of an experiment.

    Attributes:
        arrays: of each cell, in order.
        seconds: what computing them took, now or when they were first computed.
        environments: in which each was computed.
    """

    arrays: list[Arrays] = field(default_factory=list)
    seconds: float = 0.0
    environments: list[dict[str, Any]] = field(default_factory=list)

    def add(self, other: Computed) -> None:
        """Append further cells."""
        self.arrays += other.arrays
        self.seconds += other.seconds
        self.environments += other.environments


class Cells:
    """The cells of an experiment where they are kept, each under a name made of what decides it.

    Cells that lie in ``folder`` are read; the others are computed and written as they finish, so
    that a killed run loses at most the cells in flight, and of those that keep checkpoints what
    came after the last one.

    Args:
        chosen: the experiment.
        cells: what to compute.
        folder: where cells are kept, in a folder named after the module of the experiment's
            ``run``: whatever shares it shares them.
    """

    def __init__(self, chosen: Experiment, cells: Sequence[Cell], folder: Path) -> None:
        folder = folder / chosen.run.__module__.rpartition(".")[2].replace("_", "-")
        folder.mkdir(parents=True, exist_ok=True)
        fingerprint = code_fingerprint(chosen.run)
        self.paths = [entry_path(folder, cell, fingerprint) for cell in cells]
        self.missing = [
            (chosen.asked, dict(cell), path)
            for cell, path in zip(cells, self.paths, strict=True)
            if not path.exists()
        ]
        """Arguments of :func:`work` for every cell that is not there."""

    def results(self) -> Computed:
        """The results of all cells, in order; their files are there."""
        found = [load_entry(path) for path in self.paths]
        return Computed(
            [arrays for arrays, _ in found],
            sum(about["seconds"] for _, about in found),
            [about["environment"] for _, about in found],
        )


def work(identifier: str, cell: dict[str, Any], path: Path) -> None:
    """Compute one cell of an experiment into its file."""
    started, run, checkpoints = (
        time.perf_counter(),
        experiment(identifier).run,
        path.with_suffix(""),
    )
    own: dict[str, Any] = (
        {"folder": checkpoints} if "folder" in inspect.signature(run).parameters else {}
    )
    try:
        arrays = {name: np.asarray(value) for name, value in run(**cell, **own).items()}
    except Exception as error:
        error.add_note(f"while computing {identifier}, cell {cell}")
        raise
    save_entry(path, arrays, seconds=time.perf_counter() - started)
    shutil.rmtree(checkpoints, ignore_errors=True)
