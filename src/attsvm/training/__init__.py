"""Training many runs at once, and what is kept of it."""

from attsvm.theory.ball import BallPath, ball_path
from attsvm.theory.radius_path import Cone, RegularizationPath, regularization_path
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
    "BallPath",
    "Cone",
    "DirectionWithin",
    "LogSpaced",
    "Record",
    "RegularizationPath",
    "TrainState",
    "Trajectory",
    "ball_path",
    "direction_gap",
    "regularization_path",
    "train",
    "unsupported",
]


def __dir__() -> list[str]:
    return __all__
