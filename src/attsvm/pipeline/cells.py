"""Cells of experiments, computed once and kept under a name made of what decides them."""

from __future__ import annotations

import inspect
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from attsvm.store import code
from attsvm.store.entries import (
    Arrays,
    entry_path,
    is_entry,
    load_entry,
    remove_unfinished,
    save_entry,
)
from attsvm_papers.kit import Cell, Experiment, experiment

Step = Callable[[int, int], None]


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
        begun: the files of cells that will be there when the results are asked for; those that are
            missing join them.
    """

    def __init__(
        self,
        chosen: Experiment,
        cells: Sequence[Cell],
        folder: Path,
        begun: set[Path] | None = None,
    ) -> None:
        folder = folder / chosen.run.__module__.rpartition(".")[2].replace("_", "-")
        folder.mkdir(parents=True, exist_ok=True)
        begun = set() if begun is None else begun
        fingerprint = code_fingerprint(chosen)
        self._paths = [entry_path(folder, cell, fingerprint) for cell in cells]
        self.missing = [
            (chosen.asked, dict(cell), path)
            for cell, path in zip(cells, self._paths, strict=True)
            if path not in begun and not path.exists()
        ]
        """Arguments of :func:`work` for every cell that is not there."""
        begun.update(path for _, _, path in self.missing)

    def results(self, finished: Iterator[None], step: Step) -> Computed:
        """The results of all cells, in order.

        Args:
            finished: yields as each missing cell is done.
            step: called with the number of finished cells and of all cells.
        """
        done = len(self._paths) - len(self.missing)
        step(done, len(self._paths))
        for _ in finished:
            done += 1
            step(done, len(self._paths))
        found = [load_entry(path) for path in self._paths]
        return Computed(
            [arrays for arrays, _ in found],
            sum(about["seconds"] for _, about in found),
            [about["environment"] for _, about in found],
        )


def code_fingerprint(chosen: Experiment) -> str:
    """SHA-256 of the code that decides an experiment's numbers: what its ``run`` needs."""
    return code.code_fingerprint(chosen.run)


def tidy(folder: Path) -> None:
    """Remove what killed processes left among the cells, before others work there: unfinished
    writes, and checkpoints of finished cells.
    """
    for each in [*folder.iterdir()] if folder.is_dir() else []:
        remove_unfinished(each)
        for checkpoints in list(each.iterdir()) if each.is_dir() else []:
            finished = checkpoints.with_suffix(".safetensors")
            if is_entry(checkpoints) and checkpoints.is_dir() and finished.exists():
                shutil.rmtree(checkpoints, ignore_errors=True)


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
