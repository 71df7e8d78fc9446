"""Every method of the comparison by name; those whose package is missing are left out and named."""

from __future__ import annotations

import importlib

from shared import FitFolds

MODULES = {
    "machines": "scikit-learn",
    "attention": "torch",
    "sawmil_peers": "sawmil and osqp",
}


def methods() -> tuple[dict[str, FitFolds], list[str]]:
    """The methods that can run here, and a sentence about each group that cannot."""
    found: dict[str, FitFolds] = {}
    missing = []
    for module, packages in MODULES.items():
        try:
            found |= importlib.import_module(module).METHODS
        except ImportError as error:
            missing.append(f"left out, because {packages} cannot be imported: {module} ({error})")
    return found, missing
