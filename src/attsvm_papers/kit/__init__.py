"""What a figure is written with: its run, claims as functions, pictures as functions.

``from attsvm_papers import kit`` is all that a figure's file needs of it.
"""

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
from attsvm_papers.kit.experiment import Experiment, Plot, Scales
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
from attsvm_papers.kit.pictures import (
    COLOURS,
    band,
    bands,
    dots,
    legend,
    legend_below,
    loglog,
    means,
    panels,
    picture,
)
from attsvm_papers.kit.registry import PAPERS, experiment, identifiers, titles
from attsvm_papers.kit.run import SEARCH, VERDICT, Cell, rows, run, same, seeds, stacked, until
from attsvm_papers.kit.slopes import in_order, slopes

__all__ = [
    "ATTENTION",
    "BEST",
    "COLOURS",
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
    "at_least",
    "at_most",
    "at_start",
    "band",
    "bands",
    "between",
    "canvas",
    "claim",
    "close_to",
    "coins",
    "dots",
    "each",
    "exchanged",
    "experiment",
    "identifiers",
    "in_order",
    "interval",
    "label_ends",
    "legend",
    "legend_below",
    "logarithmic",
    "loglog",
    "means",
    "mixed_records",
    "noise",
    "panels",
    "picture",
    "render",
    "replaced",
    "rows",
    "run",
    "same",
    "seeds",
    "shuffled",
    "slopes",
    "stacked",
    "titles",
    "true",
    "until",
]
