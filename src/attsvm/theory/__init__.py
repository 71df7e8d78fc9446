"""Which tokens are worth selecting, when descent finds them, and which mixtures a nonlinear head or
a cyclic order selects.
"""

from attsvm.margins.tokens import optimal_tokens, token_scores
from attsvm.solvers.local_tokens import locally_optimal, neighbours
from attsvm.theory.conditions import all_support, feasible, gradient_alignment
from attsvm.theory.drop import MarginDrop, margin_drop, margin_drop_bound
from attsvm.theory.graph import GraphSVM, graph_svm, leading_tokens, local_arcs, token_masses
from attsvm.theory.likelihood import Likelihood, attention_likelihood, stack_likelihoods
from attsvm.theory.mixtures import (
    Mixture,
    SelectedSets,
    selected_sets,
    sparsemax,
    sparsemax_selection,
)
from attsvm.theory.parts import PartsReport, Split, TwoParts
from attsvm.theory.soft_labels import SoftLabelSVM, soft_label_svm
from attsvm.theory.start_cones import in_bregman_cone

__all__ = [
    "GraphSVM",
    "Likelihood",
    "MarginDrop",
    "Mixture",
    "PartsReport",
    "SelectedSets",
    "SoftLabelSVM",
    "Split",
    "TwoParts",
    "all_support",
    "attention_likelihood",
    "feasible",
    "gradient_alignment",
    "graph_svm",
    "in_bregman_cone",
    "leading_tokens",
    "local_arcs",
    "locally_optimal",
    "margin_drop",
    "margin_drop_bound",
    "neighbours",
    "optimal_tokens",
    "selected_sets",
    "soft_label_svm",
    "sparsemax",
    "sparsemax_selection",
    "stack_likelihoods",
    "token_masses",
    "token_scores",
]


def __dir__() -> list[str]:
    return __all__
