"""What a figure is written with: scales and grid, claims as functions, pictures as functions."""

from attsvm.claims import Claim, Evidence, at_least, at_most, between, close_to, true
from attsvm.report.style import (
    ATTENTION,
    BEST,
    FAINT,
    INK,
    RULE,
    TRAINED,
    Picture,
    canvas,
    label_ends,
    logarithmic,
    render,
)
from attsvm_papers.kit.claims import claim, each
from attsvm_papers.kit.curves import band, loglog
from attsvm_papers.kit.experiment import Experiment, Plot, Scales, scales
from attsvm_papers.kit.grid import Cell, blocks, cut, grid, rows, same, setting
from attsvm_papers.kit.pictures import picture
from attsvm_papers.kit.registry import PAPERS, experiment, identifiers, titles
from attsvm_papers.kit.slopes import slopes

__all__ = [
    "ATTENTION",
    "BEST",
    "FAINT",
    "INK",
    "PAPERS",
    "RULE",
    "TRAINED",
    "Cell",
    "Claim",
    "Evidence",
    "Experiment",
    "Picture",
    "Plot",
    "Scales",
    "at_least",
    "at_most",
    "band",
    "between",
    "blocks",
    "canvas",
    "claim",
    "close_to",
    "cut",
    "each",
    "experiment",
    "grid",
    "identifiers",
    "label_ends",
    "logarithmic",
    "loglog",
    "picture",
    "render",
    "rows",
    "same",
    "scales",
    "setting",
    "slopes",
    "titles",
    "true",
]
