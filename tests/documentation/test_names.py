"""Names of the library that pages write in full lead somewhere. The changelog, which tells of names
that went, is none of these pages.
"""

from __future__ import annotations

import pkgutil
import re
from pathlib import Path

import pytest

from .conftest import PAGES

GROUP = "attsvm.commands"  # of entry points


def strangers(text: str) -> list[str]:
    """Every ``attsvm.x.y`` that leads nowhere."""
    found = []
    for name in set(re.findall(r"(?<![\w./-])attsvm(?:_papers)?(?:\.[A-Za-z_]\w*)+", text)):
        try:
            pkgutil.resolve_name(name)
        except (ImportError, AttributeError):
            found += [name] if name != GROUP else []
    return sorted(found)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_names_of_a_page_exist(page: Path) -> None:
    assert strangers(page.read_text(encoding="utf-8")) == []


def test_a_name_that_went_is_found() -> None:
    assert strangers("`attsvm.datasets.poems`, attsvm.attention") == ["attsvm.datasets.poems"]
