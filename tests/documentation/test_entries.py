"""The reference: every public name has one entry, under the name by which it is imported."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from .conftest import DOCS, module

pytest.importorskip("sphinx", reason="sphinx is not installed")
entries, laboratory = module("entries"), module("laboratory")

PACKAGES = (
    "attsvm",
    "attsvm.claims",
    "attsvm.datasets",
    "attsvm.theory.sentences",
    "attsvm.training",
    "attsvm.theory.next_token",
    "attsvm.base.errors",
    "attsvm.norms",
    "attsvm.margins",
    "attsvm.attention",
    "attsvm.optim",
    "attsvm.transformers",
    "attsvm.report",
    "attsvm.theory",
    "attsvm.sklearn",
    "attsvm.solvers",
)
"""What a user imports from. ``attsvm.base.store`` is for the house."""


def written() -> list[str]:
    """Every entry of the pages."""
    found = []
    for page in (DOCS / "reference").glob("*.md"):
        text = page.read_text(encoding="utf-8")
        for package, body in re.findall(r"```\{entries\} (\S+)\n(.*?)```", text, flags=re.DOTALL):
            without = re.search(r"^:without: (.*)$", body, flags=re.MULTILINE)
            names = re.sub(r"^:.*$", "", body, flags=re.MULTILINE).split()
            left = set(without[1].split()) if without else set()
            names = names or [name for name in entries.public(package) if name not in left]
            found += [entries.spelled(package, name) for name in names]
    return found


def test_every_public_name_has_one_entry() -> None:
    counts = Counter(written())
    assert [name for name, count in counts.items() if count > 1] == []
    public = {
        entries.spelled(package, name) for package in PACKAGES for name in entries.public(package)
    }
    assert public - set(counts) == set()
    assert "attsvm.max_margin" in counts


def test_an_identifier_leads_to_its_claim() -> None:
    every = laboratory.claims()
    for name, claims in every.items():
        for identifier in claims:
            assert laboratory.IDENTIFIER.fullmatch(identifier), identifier
            assert laboratory.meant(identifier, name) == (name, identifier)
    assert laboratory.meant("C4.3", "graph-3") == ("graph-3", "C4.3f")  # the first of its parts
    assert laboratory.meant("K3", "graph-3") is None
    anchors = [laboratory.anchor(name, each) for name, claims in every.items() for each in claims]
    assert len(anchors) == len(set(anchors)) > 250


def test_links_stand_where_identifiers_stood() -> None:
    parts = list(laboratory.pieces("see T16, (T16b) and T7: W = T", ["tfsvm-3"], "../"))
    assert [part.astext() for part in parts] == ["see ", "T16", ", (", "T16b", ") and T7: W = T"]
    assert parts[1]["refuri"] == "../experiments.html#claim-tfsvm-3-t16"
