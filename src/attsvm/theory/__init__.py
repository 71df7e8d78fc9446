"""The theorist's room: conditions of the theorems, regularisation paths, the finite part
beside the diverging one, soft labels, priority graphs, sentences and the training on them.

Nothing else of the library imports this room, but the command ``attsvm bias``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

_HOME = {
    "BallPath": "ball",
    "Cone": "radius_path",
    "BiasOptions": "optimiser_bias",
    "GraphSVM": "graph",
    "ImplicitBias": "optimiser_bias",
    "Likelihood": "likelihood",
    "MarginDrop": "drop",
    "Mixture": "mixtures",
    "PartsReport": "parts",
    "RegularizationPath": "radius_path",
    "SelectedSets": "mixtures",
    "SoftLabelSVM": "soft_labels",
    "SplitWeights": "parts",
    "TwoParts": "parts",
    "all_support": "conditions",
    "attention_likelihood": "likelihood",
    "ball_path": "ball",
    "feasible": "conditions",
    "gradient_alignment": "conditions",
    "graph_margins": "sentence_margins",
    "graph_svm": "graph",
    "graph_svm_batch": "graph",
    "implicit_bias": "optimiser_bias",
    "in_bregman_cone": "start_cones",
    "leading_tokens": "graph",
    "local_arcs": "graph",
    "log_odds_margins": "soft_label_constraints",
    "margin_drop": "drop",
    "margin_drop_bound": "drop",
    "named_optimizer": "optimiser_per_run",
    "order_arcs": "sentence_margins",
    "order_margins": "sentence_margins",
    "output_margins": "sentence_margins",
    "regularization_path": "radius_path",
    "selected_sets": "mixtures",
    "soft_label_margins": "soft_label_constraints",
    "soft_label_svm": "soft_labels",
    "soft_label_svm_batch": "soft_labels",
    "sparsemax": "mixtures",
    "sparsemax_selection": "mixtures",
    "stack_likelihoods": "likelihood",
    "strong_components": "sentence_margins",
    "token_masses": "graph",
}

__all__ = [
    "BallPath",
    "BiasOptions",
    "Cone",
    "GraphSVM",
    "ImplicitBias",
    "Likelihood",
    "MarginDrop",
    "Mixture",
    "PartsReport",
    "RegularizationPath",
    "SelectedSets",
    "SoftLabelSVM",
    "SplitWeights",
    "TwoParts",
    "all_support",
    "attention_likelihood",
    "ball_path",
    "feasible",
    "gradient_alignment",
    "graph_margins",
    "graph_svm",
    "graph_svm_batch",
    "implicit_bias",
    "in_bregman_cone",
    "leading_tokens",
    "local_arcs",
    "log_odds_margins",
    "margin_drop",
    "margin_drop_bound",
    "named_optimizer",
    "next_token",
    "order_arcs",
    "order_margins",
    "output_margins",
    "regularization_path",
    "selected_sets",
    "sentences",
    "soft_label_margins",
    "soft_label_svm",
    "soft_label_svm_batch",
    "sparsemax",
    "sparsemax_selection",
    "stack_likelihoods",
    "strong_components",
    "token_masses",
]

if TYPE_CHECKING:
    from attsvm.theory import next_token, sentences
    from attsvm.theory.ball import BallPath, ball_path
    from attsvm.theory.conditions import all_support, feasible, gradient_alignment
    from attsvm.theory.drop import MarginDrop, margin_drop, margin_drop_bound
    from attsvm.theory.graph import (
        GraphSVM,
        graph_svm,
        graph_svm_batch,
        leading_tokens,
        local_arcs,
        token_masses,
    )
    from attsvm.theory.likelihood import Likelihood, attention_likelihood, stack_likelihoods
    from attsvm.theory.mixtures import (
        Mixture,
        SelectedSets,
        selected_sets,
        sparsemax,
        sparsemax_selection,
    )
    from attsvm.theory.optimiser_bias import BiasOptions, ImplicitBias, implicit_bias
    from attsvm.theory.optimiser_per_run import named_optimizer
    from attsvm.theory.parts import PartsReport, SplitWeights, TwoParts
    from attsvm.theory.radius_path import Cone, RegularizationPath, regularization_path
    from attsvm.theory.sentence_margins import (
        graph_margins,
        order_arcs,
        order_margins,
        output_margins,
        strong_components,
    )
    from attsvm.theory.soft_label_constraints import log_odds_margins, soft_label_margins
    from attsvm.theory.soft_labels import SoftLabelSVM, soft_label_svm, soft_label_svm_batch
    from attsvm.theory.start_cones import in_bregman_cone


def __getattr__(name: str) -> Any:
    if name in _HOME:
        value = getattr(importlib.import_module(f"attsvm.theory.{_HOME[name]}"), name)
        globals()[name] = value
        return value
    if name in ("next_token", "sentences"):
        return importlib.import_module(f"attsvm.theory.{name}")
    raise AttributeError(f"module 'attsvm.theory' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
