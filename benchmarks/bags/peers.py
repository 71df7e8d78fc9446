"""Every method of the comparison by name; those whose package is missing are left out and named."""

from __future__ import annotations

import importlib

from shared import FitFolds

MODULES = {
    "machines": "scikit-learn",
    "attention": "torch",
    "networks": "torch",
    "sawmil_peers": "sawmil and osqp",
    "ours": "attsvm",
}


def methods(table: str = "METHODS") -> tuple[dict[str, FitFolds], list[str]]:
    """The methods that can run here, and a sentence about each group that cannot.

    Args:
        table: ``GRADED`` for the tasks with known witnesses, where a group has a table for them.
    """
    found: dict[str, FitFolds] = {}
    missing = []
    for module, packages in MODULES.items():
        try:
            home = importlib.import_module(module)
            found |= getattr(home, table, home.METHODS)
        except ImportError as error:
            missing.append(f"left out, because {packages} cannot be imported: {module} ({error})")
    return found, missing
