"""Optimisers that read a geometry: plain ``torch.optim.Optimizer`` subclasses."""

from attsvm.optim.steepest import SteepestDescent

__all__ = ["SteepestDescent"]
