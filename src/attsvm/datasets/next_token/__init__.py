"""Next-token prediction: sentences, the orders they imply, generators, and a user's own corpus."""

from __future__ import annotations

from attsvm.datasets.next_token.corpus import Corpus, corpus
from attsvm.datasets.next_token.data import Distinct, NextTokenData, Occurrences
from attsvm.datasets.next_token.embeddings import embed
from attsvm.datasets.next_token.findings import (
    CollocationMissing,
    CyclicOrder,
    Finding,
    LabelNotRealizable,
    NoAttentionSignal,
    NotAFunction,
    NotInjective,
)
from attsvm.datasets.next_token.generators import bipartite, collocations, total
from attsvm.datasets.next_token.order_graphs import Arcs, arcs, components, winners
from attsvm.datasets.next_token.partial_order import PartialOrders, Role, partial_order, transitive
from attsvm.datasets.next_token.planted import planted
from attsvm.datasets.next_token.priority import priority_graph
from attsvm.datasets.next_token.realizable import Realizability, check_realizable
from attsvm.datasets.next_token.stacked import NextTokenBatch, stack

__all__ = [
    "Arcs",
    "CollocationMissing",
    "Corpus",
    "CyclicOrder",
    "Distinct",
    "Finding",
    "LabelNotRealizable",
    "NextTokenBatch",
    "NextTokenData",
    "NoAttentionSignal",
    "NotAFunction",
    "NotInjective",
    "Occurrences",
    "PartialOrders",
    "Realizability",
    "Role",
    "arcs",
    "bipartite",
    "check_realizable",
    "collocations",
    "components",
    "corpus",
    "embed",
    "partial_order",
    "planted",
    "priority_graph",
    "stack",
    "total",
    "transitive",
    "winners",
]
