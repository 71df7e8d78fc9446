"""What a figure is written with: experiments, their registry, fitted slopes."""

from attsvm_papers.kit.experiment import Cell, Experiment, Plot, blocks
from attsvm_papers.kit.registry import PAPERS, experiment, identifiers

__all__ = ["PAPERS", "Cell", "Experiment", "Plot", "blocks", "experiment", "identifiers"]
