"""What a checkpoint holds: enough to continue a run to the same bits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from attsvm.dynamics.records import Record
from attsvm.errors import InputError
from attsvm.printable import Compact
from attsvm.store import flatten, gather


@dataclass(frozen=True, eq=False, repr=False)
class TrainState(Compact):
    """A run in progress, between two steps.

    Attributes:
        step: steps taken so far.
        seconds: training time spent so far.
        fingerprint: identifies data, hyper-parameters and kernel; a state resumes only the run it
            came from.
        arrays: the state of the kernel (weights, and what else it carries from step to step).
        records: what was recorded so far.
    """

    step: int
    seconds: float
    fingerprint: str
    arrays: Mapping[str, Any]
    records: tuple[Record, ...]

    def to_arrays(self) -> dict[str, Any]:
        """A flat dict of NumPy arrays, for ``.npz`` or ``.safetensors``."""
        flat: dict[str, Any] = {
            "step": np.array(self.step, dtype=np.int64),
            "seconds": np.array(self.seconds),
            "fingerprint": np.frombuffer(bytes.fromhex(self.fingerprint), dtype=np.uint8).copy(),
        }
        flat |= flatten("state", self.arrays)
        if self.records:
            columns = [record.to_arrays() for record in self.records]
            flat |= flatten(
                "record", {name: np.stack([each[name] for each in columns]) for name in columns[0]}
            )
        return flat

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Any]) -> TrainState:
        """The inverse of :meth:`to_arrays`.

        Raises:
            InputError: an array is missing.
        """
        missing = {"step", "seconds", "fingerprint"} - set(arrays)
        if missing:
            raise InputError(
                f"the checkpoint has no {', '.join(sorted(missing))}; it was not written by"
                " TrainState.to_arrays"
            )
        columns = gather("record", arrays)
        count = len(columns["step"]) if columns else 0
        return cls(
            step=int(arrays["step"]),
            seconds=float(arrays["seconds"]),
            fingerprint=np.asarray(arrays["fingerprint"], dtype=np.uint8).tobytes().hex(),
            arrays=gather("state", arrays),
            records=tuple(
                Record.from_arrays({name: column[k] for name, column in columns.items()})
                for k in range(count)
            ),
        )
