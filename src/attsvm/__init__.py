"""attsvm: softmax attention as a token-selecting support vector machine.

Names are imported on first use, so that ``import attsvm`` costs milliseconds and pulls in neither
torch nor scikit-learn.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOME = {
    "AttentionData": "data",
    "Frobenius": "geometry",
    "Norm": "geometry",
    "parse_norm": "geometry",
    "Margins": "margins",
    "selection_margins": "margins",
    "MarginSolution": "solvers",
    "max_margin": "solvers",
    "token_scores": "selection",
    "optimal_tokens": "selection",
    "locally_optimal": "selection",
    "LogSpaced": "dynamics",
    "Trajectory": "dynamics",
    "train": "dynamics",
    "AttsvmError": "errors",
    "InputError": "errors",
}

__all__ = [
    "AttentionData",
    "AttsvmError",
    "Frobenius",
    "InputError",
    "LogSpaced",
    "MarginSolution",
    "Margins",
    "Norm",
    "Trajectory",
    "__version__",
    "datasets",
    "dynamics",
    "errors",
    "geometry",
    "locally_optimal",
    "max_margin",
    "models",
    "optim",
    "optimal_tokens",
    "parse_norm",
    "report",
    "runs",
    "selection",
    "selection_margins",
    "sklearn",
    "solvers",
    "token_scores",
    "train",
]

if TYPE_CHECKING:
    from attsvm import datasets, dynamics, errors, geometry, models, optim, report, runs, selection, sklearn, solvers
    from attsvm.data import AttentionData
    from attsvm.dynamics import LogSpaced, Trajectory, train
    from attsvm.errors import AttsvmError, InputError
    from attsvm.geometry import Frobenius, Norm, parse_norm
    from attsvm.margins import Margins, selection_margins
    from attsvm.selection import locally_optimal, optimal_tokens, token_scores
    from attsvm.solvers import MarginSolution, max_margin


def __getattr__(name: str) -> Any:
    if name in _HOME:
        value = getattr(importlib.import_module(f"attsvm.{_HOME[name]}"), name)
        globals()[name] = value
        return value
    if name in __all__:
        return importlib.import_module(f"attsvm.{name}")
    raise AttributeError(f"module 'attsvm' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
