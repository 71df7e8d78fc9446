"""Which tokens are worth selecting, when descent finds them, and which mixtures a nonlinear head selects."""

from attsvm.selection.conditions import Dominance, all_support, dominance, equal_scores, feasible, gradient_alignment
from attsvm.selection.cones import MarginDrop, in_angular_cone, in_bregman_cone, in_margin_cone, margin_drop
from attsvm.selection.sets import Mixture, SelectedSets, selected_sets, sparsemax, sparsemax_selection
from attsvm.selection.tokens import locally_optimal, neighbours, optimal_tokens, token_scores

__all__ = [
    "Dominance",
    "MarginDrop",
    "Mixture",
    "SelectedSets",
    "all_support",
    "dominance",
    "equal_scores",
    "feasible",
    "gradient_alignment",
    "in_angular_cone",
    "in_bregman_cone",
    "in_margin_cone",
    "locally_optimal",
    "margin_drop",
    "neighbours",
    "optimal_tokens",
    "selected_sets",
    "sparsemax",
    "sparsemax_selection",
    "token_scores",
]
