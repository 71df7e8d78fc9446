"""The laboratory uses the library's public face: rooms, and the names that they export."""

import ast
import importlib
import re
from pathlib import Path

import attsvm_papers

ROOT = Path(attsvm_papers.__file__).parent
INNER = {
    "attsvm.datasets.attention_data",
    "attsvm.datasets.bags",
    "attsvm.datasets.queries",
    "attsvm.optim.polyak",
    "attsvm.theory.sentences",
    "attsvm.theory.scale_free_descent",
    "attsvm.theory.next_token",
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
            inner = inner and not node.module.startswith("attsvm.base.")
            missing = [
                a.name for a in node.names if exported is not None and a.name not in exported
            ]
            if inner or missing:
                private.append(f"{path.relative_to(ROOT)}: {node.module} {missing or ''}")
    assert not private


def _is_printed(function):
    """Claims and pictures are, of what the kit makes of functions."""
    made = [ast.unparse(each).partition("(")[0] for each in function.decorator_list]
    return any(each.startswith("kit.") and each != "kit.run" for each in made)


def test_what_a_page_prints_is_plain_text():
    """Protocols, statements and captions: a page shows their letters, not their markup."""
    marked = []
    for path in sorted(ROOT.glob("*/e[0-9]*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        functions = [each for each in tree.body if isinstance(each, ast.FunctionDef)]
        for node in (tree, *filter(_is_printed, functions)):
            words = ast.get_docstring(node) or ""
            if re.search(r"`|:math:|\*\w", words):
                marked.append(f"{path.relative_to(ROOT)}: {words}")
    assert not marked
