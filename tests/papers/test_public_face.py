"""The laboratory uses the library's public face: rooms, and the names that they export."""

import ast
import importlib
from pathlib import Path

import attsvm_papers

ROOT = Path(attsvm_papers.__file__).parent
INNER = {
    "attsvm.datasets.next_token",
    "attsvm.dynamics.scale_free_descent",
    "attsvm.dynamics.next_token",
    "attsvm.report.style",
}
"""Rooms inside rooms that are public."""


def test_what_experiments_import_is_exported():
    """What runs them is a command, and has the command line's tools."""
    private = []
    for path in sorted(path for path in ROOT.rglob("*.py") if path.parent != ROOT / "runs"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if (
                not isinstance(node, ast.ImportFrom)
                or (node.module or "").split(".")[0] != "attsvm"
            ):
                continue
            exported = getattr(importlib.import_module(node.module), "__all__", None)
            inner = node.module.count(".") > 1 and node.module not in INNER
            missing = [
                a.name for a in node.names if exported is not None and a.name not in exported
            ]
            if inner or missing:
                private.append(f"{path.relative_to(ROOT)}: {node.module} {missing or ''}")
    assert not private
