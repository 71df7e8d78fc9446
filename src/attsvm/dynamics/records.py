"""When a run is looked at, and what is written down."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from attsvm.data import FloatArray, IntArray
from attsvm.errors import InputError
from attsvm.printable import Compact
from attsvm.store import flatten, gather


@dataclass(frozen=True)
class LogSpaced:
    """Records at step 0, at ``count`` steps spaced evenly on a log scale from 1 to the last,
    rounded; repeated ones are dropped.
    """

    count: int = 50

    def __post_init__(self) -> None:
        if self.count < 1:
            raise InputError(f"LogSpaced has count {self.count}; ask for at least one record")

    def steps(self, last: int) -> IntArray:
        """Sorted distinct steps from 0 to ``last``, both included."""
        if last == 0:
            return np.zeros(1, dtype=np.int64)
        spaced = np.rint(np.geomspace(1.0, last, self.count)).astype(np.int64)
        return np.unique(np.concatenate([[0], spaced, [last]]))


@dataclass(frozen=True)
class AtSteps:
    """Records at steps 0, at the last step and at ``marks`` in between; marks beyond the last step
    are dropped.
    """

    marks: tuple[int, ...]

    def __init__(self, marks: Iterable[int]) -> None:
        object.__setattr__(self, "marks", tuple(int(mark) for mark in marks))
        if any(mark < 0 for mark in self.marks):
            raise InputError(
                f"AtSteps has a mark at step {min(self.marks)}; give steps of 0 or more"
            )

    def steps(self, last: int) -> IntArray:
        """Sorted distinct steps from 0 to ``last``, both included."""
        marks = np.array(self.marks, dtype=np.int64)
        return np.unique(np.concatenate([[0], marks[marks < last], [last]]))


@dataclass(frozen=True, eq=False, repr=False)
class Record(Compact):
    """One look at all runs, before the step of that number is taken. Shapes as in
    :class:`~attsvm.dynamics.Trajectory`, without ``R``.
    """

    step: int
    seconds: float
    loss: FloatArray
    selected: IntArray
    softmax_probability: FloatArray
    norm: FloatArray
    log_gradient_norm: FloatArray
    W: FloatArray
    head: FloatArray
    intercept: FloatArray
    parameters: Mapping[str, FloatArray] = field(default_factory=dict)
    observed: Mapping[str, FloatArray] = field(default_factory=dict)

    def to_arrays(self) -> dict[str, Any]:
        """Every field as an array, the named ones under ``parameters.<name>`` and
        ``observed.<name>``.
        """
        fields = {name: np.asarray(getattr(self, name)) for name in RECORD_FIELDS}
        return fields | flatten("parameters", self.parameters) | flatten("observed", self.observed)

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Any]) -> Record:
        """The inverse of :meth:`to_arrays`."""
        fields: dict[str, Any] = {name: np.asarray(arrays[name]) for name in RECORD_FIELDS}
        named: dict[str, Any] = {name: gather(name, arrays) for name in ("parameters", "observed")}
        return cls(
            **{**fields, "step": int(fields["step"]), "seconds": float(fields["seconds"])}, **named
        )


RECORD_FIELDS = (
    "step",
    "seconds",
    "loss",
    "selected",
    "softmax_probability",
    "norm",
    "log_gradient_norm",
    "W",
    "head",
    "intercept",
)


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
