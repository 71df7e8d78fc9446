"""Next-token prediction: sentences, the orders they imply, and generators."""

from __future__ import annotations

from attsvm.datasets.next_token.embeddings import embed
from attsvm.datasets.next_token.generators import (
    bipartite,
    collocations,
    priority_graph,
    total,
)
from attsvm.datasets.next_token.partial_order import (
    Arcs,
    PartialOrders,
    Role,
    arcs,
    components,
    partial_order,
    transitive,
    winners,
)
from attsvm.datasets.next_token.realizable import (
    Finding,
    Realizability,
    check_realizable,
)
from attsvm.datasets.next_token.sentence_data import Distinct, NextTokenData, Occurrences
from attsvm.datasets.next_token.stacked import NextTokenBatch, stack

__all__ = [
    "Arcs",
    "Distinct",
    "Finding",
    "NextTokenBatch",
    "NextTokenData",
    "Occurrences",
    "PartialOrders",
    "Realizability",
    "Role",
    "arcs",
    "bipartite",
    "check_realizable",
    "collocations",
    "components",
    "embed",
    "partial_order",
    "priority_graph",
    "stack",
    "total",
    "transitive",
    "winners",
]


def __dir__() -> list[str]:
    return __all__
