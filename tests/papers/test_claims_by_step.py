"""Claims read the step that their words name, wherever it lies in the list of records."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np

import attsvm_papers
from attsvm.claims import Evidence
from attsvm_papers.kit import experiment

SOURCES = sorted(Path(attsvm_papers.__file__).parent.rglob("*.py"))
PAGES = sorted((Path(__file__).parents[2] / "docs").rglob("*.md"))


def claimed(identifier: str, name: str):
    return next(claim for claim in experiment(identifier).claims if claim.id == name)


MIDDLE = re.compile(r"\[[^\[\]\n]*(?:len\([^()\n]*\)|\.shape\[-?\d\]|\.size) ?//")
"""A place that counts from a length, ``gaps[len(gaps) // 2]``, whatever step lies there."""


def test_no_record_is_the_middle_of_a_list() -> None:
    assert MIDDLE.search("gaps[len(gaps) // 2]")
    assert MIDDLE.search("course[:, course.shape[1] // 2 :]")
    found = {path.name: MIDDLE.findall(path.read_text("utf-8")) for path in (*SOURCES, *PAGES)}
    assert len(found) > 150
    assert {name: each for name, each in found.items() if each} == {}


def test_the_last_decade_begins_at_a_tenth_of_the_steps() -> None:
    """Which is a record, not the nearest one; C4.3n, whatever number of records a decade has."""
    chosen = experiment("graph-3")
    found = chosen.run(**{**chosen.work(chosen.quick)[0], "seeds": range(4), "steps": 1000})
    assert {100, 1000} <= set(found["step"][0].tolist())
    late = found["step"][0] >= 100
    slopes = [
        np.polyfit(np.log(steps[late]), norms[late], 1)[0]
        for steps, norms in zip(found["step"], found["outside_norm"], strict=True)
    ]
    proved = found["directed"]
    assert proved.any()
    expected = np.array(slopes)[proved] / found["size"][proved]
    np.testing.assert_allclose(found["growth"][proved], expected, rtol=1e-9)


def test_attention_is_behind_until_both_probabilities_are_high() -> None:
    """E1.4h, of a course that breaks it at step 70, where both are .97."""
    steps = np.arange(201)
    logistic = 1.0 - np.exp(-steps / 20.0)
    claim = replace(claimed("mmts-4", "E1.4h"), null=None)
    for lead, verdict in ((-0.01, "holds"), (0.002, "fails")):
        kept = np.where(steps == 70, logistic + lead, logistic - 0.01)
        columns = {"part": ["descent"], "step": [steps], "logistic": [logistic], "kept": [kept]}
        assert claim.check(Evidence(columns)).verdict == verdict
