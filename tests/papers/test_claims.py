"""What every claim has: a null on which it fails, a word for why it fails, and the step that its
words name.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np

import attsvm_papers
from attsvm.claims import Evidence
from attsvm_papers.kit import experiment, identifiers

HERE = Path(__file__).parent
SOURCES = sorted(Path(attsvm_papers.__file__).parent.rglob("*.py"))
PAGES = sorted((HERE.parents[1] / "docs").rglob("*.md"))
QUICK = json.loads((HERE / "verdicts.json").read_text(encoding="utf-8"))
RECORDED = json.loads((HERE / "evidence" / "verdicts.json").read_text(encoding="utf-8"))

MIDDLE = re.compile(r"\[[^\[\]\n]*(?:len\([^()\n]*\)|\.shape\[-?\d\]|\.size) ?//")
"""A place that counts from a length, ``gaps[len(gaps) // 2]``, whatever step lies there."""


def test_every_claim_has_a_null():
    claims = [(name, each) for name in identifiers() for each in experiment(name).claims]
    assert [(name, each.id) for name, each in claims if each.null is None] == []


def test_no_claim_holds_on_its_null():
    empty = [(name, k) for name, of in QUICK.items() for k, v in of.items() if v == "not shown"]
    assert not empty, "at the quick scale these say nothing: their nulls hold too"


def test_a_failing_claim_says_of_which_kind_it_is():
    verdicts = QUICK | {name: run["claims"] for name, run in RECORDED.items()}
    failing = {(i, k) for i, of in verdicts.items() for k, v in of.items() if v.startswith("fails")}
    assert failing
    words = {(i, claim.id): claim.failure for i in verdicts for claim in experiment(i).claims}
    assert sorted(each for each in failing if not words[each]) == []


def test_no_record_is_the_middle_of_a_list() -> None:
    assert MIDDLE.search("gaps[len(gaps) // 2]")
    assert MIDDLE.search("course[:, course.shape[1] // 2 :]")
    found = {path.name: MIDDLE.findall(path.read_text("utf-8")) for path in (*SOURCES, *PAGES)}
    assert len(found) > 150
    assert {name: each for name, each in found.items() if each} == {}


def test_attention_is_behind_until_both_probabilities_are_high() -> None:
    """E1.4h, of a course that breaks it at step 70, where both are .97."""
    steps = np.arange(201)
    logistic = 1.0 - np.exp(-steps / 20.0)
    (claim,) = (replace(c, null=None) for c in experiment("mmts-4").claims if c.id == "E1.4h")
    for lead, verdict in ((-0.01, "holds"), (0.002, "fails")):
        kept = np.where(steps == 70, logistic + lead, logistic - 0.01)
        columns = {"part": ["descent"], "step": [steps], "logistic": [logistic], "kept": [kept]}
        assert claim.check(Evidence(columns)).verdict == verdict


def test_pages_count_the_claims_that_there_are():
    row = re.compile(r"^\| `([a-z]+-\d+[a-z]?)` \|.* \| (\d+) of (\d+) ", re.MULTILINE)
    told = [found for page in PAGES for found in row.findall(page.read_text(encoding="utf-8"))]
    assert len(told) > 15
    assert [(i, n) for i, _, n in told if int(n) != len(experiment(i).claims)] == []
