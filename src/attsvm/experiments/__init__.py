"""The papers' figures and tables, one module each: parameters on top, then run, claims, plot.

The registry knows every experiment by its name on the command line and imports its module when it
is asked for.
"""

from attsvm.experiments.experiment import Cell, Experiment, Plot, blocks
from attsvm.experiments.registry import PAPERS, experiment, identifiers

__all__ = ["PAPERS", "Cell", "Experiment", "Plot", "blocks", "experiment", "identifiers"]
