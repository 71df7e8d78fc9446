"""Training many runs at once, and what is kept of it."""

from attsvm.dynamics.ball import BallPath, ball_path
from attsvm.dynamics.native_loop import unsupported
from attsvm.dynamics.radius_path import Cone, RegularizationPath, regularization_path
from attsvm.dynamics.train import train
from attsvm.dynamics.trajectory import (
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
