"""Training many runs at once, and what is kept of it."""

from attsvm.dynamics.planning import Plan, plan
from attsvm.dynamics.records import AtSteps, LogSpaced, Record
from attsvm.dynamics.state import TrainState
from attsvm.dynamics.train import train
from attsvm.dynamics.trajectory import DirectionWithin, Trajectory, direction_gap

__all__ = ["AtSteps", "DirectionWithin", "LogSpaced", "Plan", "Record", "TrainState", "Trajectory", "direction_gap", "plan", "train"]
