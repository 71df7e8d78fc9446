"""attsvm: softmax attention as a token-selecting support vector machine.

Names are imported on first use, so that ``import attsvm`` costs milliseconds and pulls in neither
torch nor scikit-learn.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_ROOMS = ("datasets", "dynamics", "errors", "geometry", "models", "optim", "report", "runs", "selection", "sklearn", "solvers")

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

__all__ = ["__version__", *sorted(_HOME), *_ROOMS]

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
    if name in _ROOMS:
        return importlib.import_module(f"attsvm.{name}")
    if name in _HOME:
        value = getattr(importlib.import_module(f"attsvm.{_HOME[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'attsvm' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
