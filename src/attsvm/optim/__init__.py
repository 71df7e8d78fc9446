"""Optimisers that read a geometry: plain ``torch.optim.Optimizer`` subclasses."""

from typing import TYPE_CHECKING, Any

from attsvm.optim.combined import CombinedOptimizer
from attsvm.optim.mirror import MirrorDescent, lr_from_sgd
from attsvm.optim.split import Split, split_params
from attsvm.optim.steepest import SteepestDescent

__all__ = [
    "CombinedOptimizer",
    "MirrorDescent",
    "Split",
    "SteepestDescent",
    "lr_from_sgd",
    "split_params",
]

if TYPE_CHECKING:
    from attsvm.transformers.guard import LogitGuard  # its entry is that of attsvm.transformers


def __getattr__(name: str) -> Any:
    if name == "LogitGuard":
        from attsvm.transformers.guard import LogitGuard

        return LogitGuard
    raise AttributeError(f"module 'attsvm.optim' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "LogitGuard"]
