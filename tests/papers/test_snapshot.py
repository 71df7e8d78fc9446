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
def recorded(tmp_path, monkeypatch):
    """A snapshot of an experiment ``a`` with two columns, of the class that is asked for."""

    def write(within="plain"):
        path = tmp_path / "snapshot.json"
        monkeypatch.setattr(snapshot, "SNAPSHOT", path)
        lines = {"gap": row(GAP) | {"within": within}, "step": row(np.arange(40))}
        snapshot.write({"a": lines})
        assert json.loads(path.read_text())["a"]["step"] == row(np.arange(40))

    return write


def evidence(**columns):
    return {"gap": GAP, "step": np.arange(40)} | columns


def test_nothing_is_said_of_the_same_numbers_and_their_rounding(recorded):
    recorded()
    assert changes("a", evidence()) == ""
    assert changes("a", evidence(gap=GAP * (1 + 1e-9))) == ""


@pytest.mark.parametrize(
    ("name", "factor"),
    [("plain", 1e-6), ("solved", 1e-4), ("rounding", 1e-2), ("trials", 0.1), ("chaotic", 0.5)],
)
def test_a_class_is_as_wide_as_it_says(recorded, name, factor):
    recorded(name)
    assert changes("a", evidence(gap=GAP * (1 + factor / 2))) == ""
    assert "gap" in changes("a", evidence(gap=GAP * (1 + 3 * factor)))


def test_a_size_is_a_power_of_ten(recorded):
    recorded("size")
    assert changes("a", evidence(gap=3 * GAP)) == ""
    assert "gap (size): median" in changes("a", evidence(gap=20 * GAP))


def test_one_value_of_a_column_is_noticed_where_it_is(recorded):
    recorded()
    largest = np.where(np.arange(40) == 39, 0.9009, GAP)
    said = changes("a", evidence(gap=largest))
    assert "gap (plain): largest: recorded 0.9, now 0.9009, a change of 1.0e-03" in said
    assert "python tests/papers/snapshot.py a" in said
    assert "step" not in said


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"gap": np.where(np.arange(40) == 7, np.nan, GAP)}, "'nan': 1"),
        ({"gap": np.where(np.arange(40) == 7, np.inf, GAP)}, "'inf': 1"),
        ({"step": np.arange(39)}, "'shape': [39]"),
        ({"more": GAP}, "more: in the evidence, and not recorded"),
        ({"step": np.array(["W", "KQ"] * 20)}, "'words'"),
    ],
)
def test_what_is_no_number_is_noticed_too(recorded, columns, words):
    recorded()
    assert words in changes("a", evidence(**columns))


def test_a_column_that_is_gone_is_noticed(recorded):
    recorded()
    assert "step: recorded, and no longer in the evidence" in changes("a", {"gap": GAP})


def test_the_file_has_every_experiment_and_known_classes():
    found = snapshot.snapshot()
    assert list(found) == identifiers()
    assert {line.get("within", "plain") for rows in found.values() for line in rows.values()} <= {
        *WITHIN
    }
