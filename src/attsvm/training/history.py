"""What training recorded, epoch by epoch, and where it writes it: JSON lines always, TensorBoard
when asked.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from attsvm.data import FloatArray
from attsvm.errors import InputError
from attsvm.extras import imported
from attsvm.files import write_file
from attsvm.printable import Compact

CURVES = "history.jsonl"


@dataclass(frozen=True, eq=False, repr=False)
class History(Compact):
    """The learning curves of one run.

    Attributes:
        columns: name to ``(epochs,)``: ``train_loss`` (mean per example) and ``train_accuracy``,
            both over the batches as they were trained; ``<held>_loss`` and ``<held>_accuracy`` of
            every held-out set after the epoch; ``seconds`` and
            ``cpu_seconds`` of training alone and ``tokens_per_second`` (padding not counted), of
            this epoch.
        stopped: why training ended: ``accuracy``, ``epochs``, or ``diverged`` for a loss that is no
            number.
        frozen: tensors that started at zero and that the optimiser could hardly move, see
            :func:`attsvm.training.frozen_tensors`.
    """

    columns: Mapping[str, FloatArray]
    stopped: str
    frozen: tuple[str, ...] = ()

    @property
    def epochs(self) -> int:
        """Epochs that were trained."""
        return len(self.columns["train_loss"])

    def __getitem__(self, column: str) -> FloatArray:
        """A column.

        Raises:
            InputError: there is none of this name.
        """
        if column not in self.columns:
            raise InputError(
                f"the history has no column {column}; its columns are {', '.join(self.columns)}"
            )
        return self.columns[column]

    def last(self, held: str) -> float:
        """Accuracy on a held-out set after the last epoch."""
        return float(self[f"{held}_accuracy"][-1])

    def best(self, held: str, by: str | None = None) -> float:
        """Accuracy on ``held`` after the first epoch that is best on the set ``by``, which is
        ``held`` itself when left out.
        """
        return float(self[f"{held}_accuracy"][int(np.argmax(self[f"{by or held}_accuracy"]))])

    def to_json(self) -> dict[str, Any]:
        """The history as a dictionary that JSON can hold; a number that is none becomes null."""
        columns = {
            name: [float(v) if np.isfinite(v) else None for v in values]
            for name, values in self.columns.items()
        }
        return {"stopped": self.stopped, "frozen": list(self.frozen), "columns": columns}

    def __str__(self) -> str:
        """Epochs, accuracies and frozen tensors in a few lines."""
        ends = {
            "accuracy": "the training accuracy was reached",
            "epochs": "all epochs were done",
            "diverged": "the loss is no number",
        }
        lines = [f"{self.epochs} epochs; stopped because {ends[self.stopped]}"]
        lines += [
            f"{name}: {values[-1]:.4f} last, {np.nanmax(values):.4f} best"
            for name, values in self.columns.items()
            if "accuracy" in name
        ]
        if self.frozen:
            lines.append(f"started at zero and hardly move: {', '.join(self.frozen)}")
        return "\n".join(lines)


class Curves:
    """Writes the rows of a history into a folder as they come.

    ``history.jsonl`` has one object per epoch and is whole at any moment. TensorBoard's files lie
    in ``tensorboard/``.

    Raises:
        MissingExtraError: TensorBoard is asked for and not installed.
    """

    def __init__(self, folder: Path | None, *, tensorboard: bool, done: int) -> None:
        self._path = None if folder is None else folder / CURVES
        self._board: Any = None
        if not tensorboard:
            return
        if folder is None:
            raise InputError("TensorBoard's files need a folder; give folder=")
        logs = imported("torch.utils.tensorboard", "TensorBoard logs", "tensorboard", "tensorboard")
        # what a killed process wrote after its checkpoint
        self._board = logs.SummaryWriter(str(folder / "tensorboard"), purge_step=done + 1)

    def write(self, columns: Mapping[str, Sequence[float]]) -> None:
        """Bring the files up to the last row of ``columns``."""
        count = len(columns["train_loss"])
        if self._path is not None:
            rows = [
                {"epoch": k + 1, **{name: _number(values[k]) for name, values in columns.items()}}
                for k in range(count)
            ]
            write_file(self._path, "".join(json.dumps(row) + "\n" for row in rows))
        if self._board is not None:
            for name, values in columns.items():
                tag = (
                    "/".join(name.rsplit("_", 1)) if name.endswith(("_loss", "_accuracy")) else name
                )
                self._board.add_scalar(tag, values[-1], count)
            self._board.flush()

    def close(self) -> None:
        """Let go of the files."""
        if self._board is not None:
            self._board.close()


def _number(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
