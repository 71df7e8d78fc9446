"""Next-token prediction: sentences, the orders they imply, generators, and a user's own corpus."""

from __future__ import annotations

from attsvm.datasets.next_token.batch import NextTokenBatch, stack
from attsvm.datasets.next_token.data import Distinct, NextTokenData, Occurrences
from attsvm.datasets.next_token.embeddings import embed
from attsvm.datasets.next_token.generators import bipartite, collocations, total
from attsvm.datasets.next_token.orders import Arcs, arcs, components, cyclic_arcs, winners
from attsvm.datasets.next_token.planted import planted
from attsvm.datasets.next_token.priority import priority_graph

__all__ = [
    "Arcs",
    "Distinct",
    "NextTokenBatch",
    "NextTokenData",
    "Occurrences",
    "arcs",
    "bipartite",
    "collocations",
    "components",
    "cyclic_arcs",
    "embed",
    "planted",
    "priority_graph",
    "stack",
    "total",
    "winners",
]
