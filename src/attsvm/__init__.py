"""attsvm: softmax attention as a token-selecting support vector machine.

Names are imported on first use, so that ``import attsvm`` costs milliseconds and pulls in neither
torch nor scikit-learn.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.3.0"

_ROOMS = {
    "base.errors": "AttsvmError InputError",
    "datasets.attention_data": "AttentionData",
    "datasets.queries": "head_pairs self_attention sequence_pairs",
    "margins": (
        "Margins MarginsBatch decoder_margins finite_component least_norm multi_token_margins "
        "optimal_tokens pair_margins prompt_margins ratio_margins recombine relaxed_margins "
        "selection_batch selection_margins sequence_margins token_scores"
    ),
    "pipeline.fitted_run": "FittedRun load_run",
    "norms": "Frobenius Lp MaxRow Norm Nuclear PowerPotential Rows Schatten Spectral parse_norm",
    "solvers": (
        "MarginSolution SolutionBatch locally_optimal margin_path max_margin max_margin_batch "
        "max_margin_blocks"
    ),
    "theory": (
        "Cone RegularizationPath all_support gradient_alignment graph_margins graph_svm order_arcs "
        "order_margins output_margins regularization_path soft_label_margins soft_label_svm "
        "strong_components"
    ),
    "training": "DirectionWithin LogSpaced Trajectory train",
}
_HOME = {name: room for room, names in _ROOMS.items() for name in names.split()}

__all__ = [
    "AttentionData",
    "AttsvmError",
    "Cone",
    "DirectionWithin",
    "FittedRun",
    "Frobenius",
    "InputError",
    "LogSpaced",
    "Lp",
    "MarginSolution",
    "Margins",
    "MarginsBatch",
    "MaxRow",
    "Norm",
    "Nuclear",
    "PowerPotential",
    "RegularizationPath",
    "Rows",
    "Schatten",
    "SolutionBatch",
    "Spectral",
    "Trajectory",
    "__version__",
    "all_support",
    "attention",
    "claims",
    "datasets",
    "decoder_margins",
    "finite_component",
    "gradient_alignment",
    "graph_margins",
    "graph_svm",
    "head_pairs",
    "least_norm",
    "load_run",
    "locally_optimal",
    "margin_path",
    "margins",
    "max_margin",
    "max_margin_batch",
    "max_margin_blocks",
    "multi_token_margins",
    "norms",
    "optim",
    "optimal_tokens",
    "order_arcs",
    "order_margins",
    "output_margins",
    "pair_margins",
    "parse_norm",
    "prompt_margins",
    "ratio_margins",
    "recombine",
    "regularization_path",
    "relaxed_margins",
    "report",
    "selection_batch",
    "selection_margins",
    "self_attention",
    "sequence_margins",
    "sequence_pairs",
    "sklearn",
    "soft_label_margins",
    "soft_label_svm",
    "solvers",
    "strong_components",
    "theory",
    "token_scores",
    "train",
    "training",
    "transformers",
]

if TYPE_CHECKING:
    from attsvm import (
        attention,
        claims,
        datasets,
        margins,
        norms,
        optim,
        report,
        sklearn,
        solvers,
        theory,
        training,
        transformers,
    )
    from attsvm.base.errors import AttsvmError, InputError
    from attsvm.datasets.attention_data import AttentionData
    from attsvm.datasets.queries import head_pairs, self_attention, sequence_pairs
    from attsvm.margins import (
        Margins,
        MarginsBatch,
        decoder_margins,
        finite_component,
        least_norm,
        multi_token_margins,
        optimal_tokens,
        pair_margins,
        prompt_margins,
        ratio_margins,
        recombine,
        relaxed_margins,
        selection_batch,
        selection_margins,
        sequence_margins,
        token_scores,
    )
    from attsvm.norms import (
        Frobenius,
        Lp,
        MaxRow,
        Norm,
        Nuclear,
        PowerPotential,
        Rows,
        Schatten,
        Spectral,
        parse_norm,
    )
    from attsvm.pipeline.fitted_run import FittedRun, load_run
    from attsvm.solvers import (
        MarginSolution,
        SolutionBatch,
        locally_optimal,
        margin_path,
        max_margin,
        max_margin_batch,
        max_margin_blocks,
    )
    from attsvm.theory import (
        Cone,
        RegularizationPath,
        all_support,
        gradient_alignment,
        graph_margins,
        graph_svm,
        order_arcs,
        order_margins,
        output_margins,
        regularization_path,
        soft_label_margins,
        soft_label_svm,
        strong_components,
    )
    from attsvm.training import DirectionWithin, LogSpaced, Trajectory
    from attsvm.training.train import train


def __getattr__(name: str) -> Any:
    if name in _HOME:
        value = getattr(importlib.import_module(f"attsvm.{_HOME[name]}"), name)
        globals()[name] = value
        return value
    if name in __all__:
        return importlib.import_module(f"attsvm.{name}")
    raise AttributeError(f"module 'attsvm' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
