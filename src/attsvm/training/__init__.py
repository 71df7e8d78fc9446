"""Training one attention layer, many runs at once, and its trajectory."""

from attsvm.training.native_loop import unsupported
from attsvm.training.train import train
from attsvm.training.trajectory import (
    AtSteps,
    DirectionWithin,
    LogSpaced,
    Record,
    TrainState,
    Trajectory,
    direction_gap,
)

__all__ = [
    "AtSteps",
    "DirectionWithin",
    "LogSpaced",
    "Record",
    "TrainState",
    "Trajectory",
    "direction_gap",
    "train",
    "unsupported",
]


def __dir__() -> list[str]:
    return __all__
