"""Optimisers that read a geometry: plain ``torch.optim.Optimizer`` subclasses."""

from attsvm.optim.combined import CombinedOptimizer
from attsvm.optim.mirror import MirrorDescent, lr_from_sgd
from attsvm.optim.split import Split, split_params
from attsvm.optim.steepest import SteepestDescent
from attsvm.optim.whole_model import for_model

__all__ = [
    "CombinedOptimizer",
    "MirrorDescent",
    "Split",
    "SteepestDescent",
    "for_model",
    "lr_from_sgd",
    "split_params",
]


def __dir__() -> list[str]:
    return __all__
