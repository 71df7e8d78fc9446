"""What a figure is written with: scales and grid, claims as functions, pictures as functions."""

from attsvm.claims import Claim, Evidence, Null, at_least, at_most, between, close_to, true
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
from attsvm_papers.kit.claims import MOST, claim, each
from attsvm_papers.kit.drawing import band, bands, legend, legend_below, loglog
from attsvm_papers.kit.experiment import SEARCH, VERDICT, Experiment, Plot, Scales, scales
from attsvm_papers.kit.grid import Cell, blocks, cut, grid, rows, same, setting, stacked
from attsvm_papers.kit.intervals import Interval, interval
from attsvm_papers.kit.nulls import (
    at_start,
    coins,
    exchanged,
    mixed_records,
    noise,
    replaced,
    shuffled,
)
from attsvm_papers.kit.pictures import picture
from attsvm_papers.kit.registry import PAPERS, experiment, identifiers, titles
from attsvm_papers.kit.slopes import at, in_order, slopes

__all__ = [
    "ATTENTION",
    "BEST",
    "FAINT",
    "INK",
    "MOST",
    "PAPERS",
    "RULE",
    "SEARCH",
    "TRAINED",
    "VERDICT",
    "Cell",
    "Claim",
    "Evidence",
    "Experiment",
    "Interval",
    "Null",
    "Picture",
    "Plot",
    "Scales",
    "at",
    "at_least",
    "at_most",
    "at_start",
    "band",
    "bands",
    "between",
    "blocks",
    "canvas",
    "claim",
    "close_to",
    "coins",
    "cut",
    "each",
    "exchanged",
    "experiment",
    "grid",
    "identifiers",
    "in_order",
    "interval",
    "label_ends",
    "legend",
    "legend_below",
    "logarithmic",
    "loglog",
    "mixed_records",
    "noise",
    "picture",
    "render",
    "replaced",
    "rows",
    "same",
    "scales",
    "setting",
    "shuffled",
    "slopes",
    "stacked",
    "titles",
    "true",
]
