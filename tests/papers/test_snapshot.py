"""The snapshot notices what changes in a column, and says so."""

from __future__ import annotations

import json

import numpy as np
import pytest

from attsvm_papers.kit import identifiers

from . import snapshot
from .snapshot import WITHIN, changes, row

GAP = np.linspace(0.1, 0.9, 40)


@pytest.fixture
def recorded(tmp_path):
    """A snapshot of an experiment ``a`` with two columns, of the class that is asked for."""

    def write(within="plain"):
        path = tmp_path / "snapshot.json"
        lines = {"gap": row(GAP) | {"within": within}, "step": row(np.arange(40))}
        snapshot.write({"a": lines}, path)
        assert json.loads(path.read_text())["a"]["step"] == row(np.arange(40))
        return path

    return write


def evidence(**columns):
    return {"gap": GAP, "step": np.arange(40)} | columns


@pytest.mark.parametrize(
    ("within", "quiet", "loud"),
    [
        *((name, 1 + each / 2, 1 + 3 * each) for name, each in WITHIN.items() if name != "size"),
        ("size", 3, 20),
    ],
)
def test_a_class_is_as_wide_as_it_says(recorded, within, quiet, loud):
    path = recorded(within)
    assert changes("a", evidence(), path) == changes("a", evidence(gap=GAP * quiet), path) == ""
    assert f"gap ({within}): median" in changes("a", evidence(gap=GAP * loud), path)


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        (
            {"gap": np.where(np.arange(40) == 39, 0.9009, GAP)},
            "gap (plain): largest: recorded 0.9, now 0.9009, a change of 1.0e-03",
        ),
        ({"gap": np.where(np.arange(40) == 7, np.nan, GAP)}, "'nan': 1"),
        ({"gap": np.where(np.arange(40) == 7, np.inf, GAP)}, "'inf': 1"),
        ({"step": np.arange(39)}, "'shape': [39]"),
        ({"more": GAP}, "more: in the evidence, and not recorded"),
        ({"step": np.array(["W", "KQ"] * 20)}, "'words'"),
    ],
)
def test_what_is_different_is_named(recorded, columns, words):
    path = recorded()
    said = changes("a", evidence(**columns), path)
    assert words in said
    assert "python tests/papers/snapshot.py a" in said
    assert "step: recorded, and no longer in the evidence" in changes("a", {"gap": GAP}, path)


def test_the_file_has_every_experiment_and_known_classes():
    found = snapshot.snapshot()
    assert list(found) == identifiers()
    assert {line.get("within", "plain") for rows in found.values() for line in rows.values()} <= {
        *WITHIN
    }
