"""Everything that training carries from step to step, as arrays that a checkpoint can hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim import Optimizer

from attsvm.errors import InputError
from attsvm.store import flatten, gather

Arrays = dict[str, NDArray[Any]]


class State:
    """Weights, optimiser, place in the data and learning curves.

    Random generators are not part of it: what they give is a function of the plan's seed, the epoch
    and the step.

    Attributes:
        epoch: finished epochs.
        step: finished steps of the present epoch.
        sums: loss and correct answers over this process's part of the present epoch.
        seconds: spent in the present epoch, by the clock and of the processor.
        columns: the learning curves so far.
    """

    def __init__(self, model: nn.Module, optimizer: Optimizer) -> None:
        self._model, self._optimizer = model, optimizer
        self.epoch = self.step = 0
        self.seconds = np.zeros(2)
        self.sums = torch.zeros(2, dtype=torch.float64, device=next(model.parameters()).device)
        self.columns: dict[str, list[float]] = {}

    def close_epoch(self, row: Mapping[str, float]) -> None:
        """End the present epoch with a row of the learning curves."""
        for name, value in row.items():
            self.columns.setdefault(name, []).append(value)
        self.epoch, self.step, self.seconds = self.epoch + 1, 0, np.zeros(2)
        self.sums.zero_()

    def to_arrays(self) -> Arrays:
        """The state by name."""
        arrays = flatten("model", _arrays(self._model.state_dict()))
        for index, entries in self._optimizer.state_dict()["state"].items():
            arrays |= flatten(f"optimizer.{index}", _arrays(entries))
        for position, (name, values) in enumerate(self.columns.items()):
            arrays[f"column.{position}.{name}"] = np.array(values)
        return {
            **arrays,
            "place": np.array([self.epoch, self.step]),
            **_arrays({"sums": self.sums}),
            "seconds": self.seconds,
        }

    def load(self, arrays: Arrays) -> None:
        """Go on where :meth:`to_arrays` was called.

        Raises:
            InputError: the arrays belong to another model.
        """
        try:
            self._model.load_state_dict(
                {name: torch.from_numpy(array) for name, array in gather("model", arrays).items()}
            )
        except RuntimeError as error:
            raise InputError(
                f"the checkpoint belongs to another model ({str(error).splitlines()[0]}); choose"
                " another folder"
            ) from None
        state: dict[int, dict[str, Tensor]] = {}
        for name, array in gather("optimizer", arrays).items():
            index, _, entry = name.partition(".")
            state.setdefault(int(index), {})[entry] = torch.from_numpy(array)
        groups = self._optimizer.state_dict()["param_groups"]
        self._optimizer.load_state_dict({"state": state, "param_groups": groups})
        columns = sorted(
            gather("column", arrays).items(), key=lambda column: int(column[0].partition(".")[0])
        )
        self.columns = {key.partition(".")[2]: values.tolist() for key, values in columns}
        self.epoch, self.step = (int(number) for number in arrays["place"])
        self.sums.copy_(torch.from_numpy(arrays["sums"]))
        self.seconds = arrays["seconds"]


def _arrays(values: Mapping[str, Any]) -> Arrays:
    return {
        name: value.detach().cpu().numpy() if isinstance(value, Tensor) else np.array(value)
        for name, value in values.items()
    }
