"""Next-token prediction: sentences, the orders they imply, and generators."""

from __future__ import annotations

from attsvm.theory.sentences.embeddings import embed
from attsvm.theory.sentences.generators import bipartite, collocations, priority_graph, total
from attsvm.theory.sentences.partial_order import (
    Arcs,
    PartialOrders,
    Role,
    arcs,
    components,
    partial_order,
    transitive,
    winners,
)
from attsvm.theory.sentences.realizable import Finding, Realizability, check_realizable
from attsvm.theory.sentences.sentence_data import Distinct, NextTokenData, Occurrences
from attsvm.theory.sentences.stacked import NextTokenBatch, stack

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
