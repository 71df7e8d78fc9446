"""The constraint operator, its constructors (one function per max-margin programme), and the scores
by which tokens are selected.
"""

from __future__ import annotations

from attsvm.margins.blocks import MarginBlocks
from attsvm.margins.concatenated import MarginsBatch, selection_batch
from attsvm.margins.finite import (
    LeastNorm,
    Recombination,
    equality_basis,
    finite_component,
    least_norm,
    recombine,
    split,
)
from attsvm.margins.mapped import MappedSelections
from attsvm.margins.operator import Margins
from attsvm.margins.pairs import PairMargins, pair_margins
from attsvm.margins.selection import (
    decoder_margins,
    optimal_tokens,
    prompt_margins,
    relax,
    relaxed_margins,
    selection_margins,
    token_scores,
)
from attsvm.margins.sequence import sequence_margins
from attsvm.margins.sets import multi_token_margins, ratio_margins

__all__ = [
    "LeastNorm",
    "MappedSelections",
    "MarginBlocks",
    "Margins",
    "MarginsBatch",
    "PairMargins",
    "Recombination",
    "decoder_margins",
    "equality_basis",
    "finite_component",
    "least_norm",
    "multi_token_margins",
    "optimal_tokens",
    "pair_margins",
    "prompt_margins",
    "ratio_margins",
    "recombine",
    "relax",
    "relaxed_margins",
    "selection_batch",
    "selection_margins",
    "sequence_margins",
    "split",
    "token_scores",
]


def __dir__() -> list[str]:
    return __all__
