"""The README as an index of packages shows it: without the files beside it."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
URL = "https://example.org/somebody/attsvm"


@pytest.fixture(scope="module")
def page():
    script = ROOT / "release" / "absolute_links.py"
    if not script.exists():
        pytest.skip("the sources are not beside the tests")
    spec = importlib.util.spec_from_file_location("absolute_links", script)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.absolute((ROOT / "README.md").read_text(encoding="utf-8"), URL, "v1")


def test_every_link_is_absolute_and_leads_to_a_file(page):
    links = re.findall(r'\]\(([^)]+)\)|(?:src|srcset)="([^"]+)"', page)
    targets = [first or second for first, second in links]
    assert len(targets) > 10
    for target in targets:
        assert target.startswith("https://")
        if target.startswith(URL):
            kind, tag, path = target.removeprefix(f"{URL}/").split("/", 2)
            assert (kind, tag) == ("raw" if path.endswith((".png", ".svg")) else "blob", "v1")
            assert (ROOT / path.partition("#")[0]).exists(), path
