"""Where the documentation stands, and the modules that make its parts."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted(page for page in DOCS.rglob("*.md") if "_build" not in page.parts),
]
if not (DOCS / "conf.py").exists():  # it is not beside the tests
    collect_ignore_glob = ["test_*.py"]


def read(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def module(name: str) -> ModuleType:
    """One of the modules of ``docs``."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(DOCS)
        return importlib.import_module(name)
