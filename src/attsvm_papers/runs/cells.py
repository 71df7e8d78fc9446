"""Cells of experiments, computed once and kept under a name made of what decides them."""

from __future__ import annotations

import contextlib
import pickle
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from attsvm.base.cores import at_most_threads, thread_pools
from attsvm.base.errors import AttsvmError
from attsvm.base.store import code_digest, entry_path, load_entry, save_entry
from attsvm.base.store.entries import Arrays, alone
from attsvm_papers.kit.experiment import Experiment
from attsvm_papers.kit.registry import experiment

Task = tuple[str, dict[str, Any], Path]
"""An experiment, a cell and its file: the arguments of :func:`work`."""


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

    def read(self, tasks: Sequence[Task]) -> None:
        """Append the results of further cells, whose files are there."""
        for _, _, path in tasks:
            arrays, about = load_entry(path)
            self.arrays.append(arrays)
            self.seconds += about["seconds"]
            self.environments.append(about["environment"])


def tasks_of(chosen: Experiment, cells: Sequence[Mapping[str, Any]], folder: Path) -> list[Task]:
    """The tasks of computing these cells, in order.

    Args:
        chosen: the experiment.
        cells: what to compute.
        folder: where cells are kept, in a folder named after the module of the experiment's
            ``run``: whatever shares it shares them.
    """
    folder = folder / chosen.run.__module__.rpartition(".")[2].replace("_", "-")
    folder.mkdir(parents=True, exist_ok=True)
    code = code_digest(chosen.run)
    return [(chosen.request, dict(cell), entry_path(folder, cell, code)) for cell in cells]


_TURN = threading.Lock()
"""Threads of one process take turns: what they call sets options of the whole process."""


def work(identifier: str, cell: dict[str, Any], path: Path, threads: int | None = None) -> None:
    """Compute one cell of an experiment into its file, unless somebody else has.

    The file is written when the cell is finished, so that a killed run loses at most the cells in
    flight.

    Args:
        identifier: of the experiment.
        cell: the arguments of its ``run``.
        path: the file.
        threads: of every numerical library; as many as there are when left out.
    """
    try:
        with alone(path), _TURN, _limit_threads(threads):
            if not path.exists():
                _compute(identifier, cell, path)
    except Exception as error:
        error.add_note(f"while computing {identifier}, cell {cell}")
        raise _picklable(error) from error.__cause__


def _compute(identifier: str, cell: dict[str, Any], path: Path) -> None:
    started, run = time.perf_counter(), experiment(identifier).run
    arrays = {name: np.asarray(value) for name, value in run(**cell).items()}
    save_entry(path, arrays, seconds=time.perf_counter() - started)


@contextlib.contextmanager
def _limit_threads(threads: int | None) -> Iterator[None]:
    """No more than so many threads of BLAS, OpenMP and torch inside; as many as there are with
    None.
    """
    if threads is None:
        yield
        return
    import torch

    with at_most_threads(threads, torch, *thread_pools("blas", "openmp", scipy=True)):
        yield


def _picklable(error: Exception) -> Exception:
    """The error, or where it cannot be sent to another process, its words."""
    with contextlib.suppress(Exception):
        pickle.loads(pickle.dumps(error))
        return error
    notes = getattr(error, "__notes__", [])
    return AttsvmError("; ".join([f"{type(error).__name__}: {error}", *notes]))
