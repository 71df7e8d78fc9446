"""Training of real classifiers with one optimiser on all parameters: plans, learning curves,
checkpoints, many processes.
"""

from attsvm.training.augmentation import Pixels
from attsvm.training.classifier import train_classifier
from attsvm.training.evaluation import predict
from attsvm.training.history import History
from attsvm.training.labelled import Examples
from attsvm.training.many import train_many
from attsvm.training.plan import TrainingPlan, build_optimizer, frozen_tensors

__all__ = [
    "Examples",
    "History",
    "Pixels",
    "TrainingPlan",
    "build_optimizer",
    "frozen_tensors",
    "predict",
    "train_classifier",
    "train_many",
]
