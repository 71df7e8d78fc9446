"""The table of what became of every claim, beside the experiments."""

from __future__ import annotations

import json
import re
from pathlib import Path

from attsvm_papers.kit import experiment, identifiers

TABLE = Path(__file__).with_name("claims.md")
FATES = {"kept", "merged", "snapshot", "dropped"}


def rows():
    found = {}
    for line in TABLE.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 5 and re.fullmatch(r"[a-z]+-\d+[a-z]?", cells[0]):
            where = (cells[0], cells[1])
            assert where not in found, f"{where} stands twice in {TABLE.name}"
            found[where] = cells[2:]
    return found


def test_the_table_names_the_claims_that_there_are():
    present = {(name, claim.id) for name in identifiers() for claim in experiment(name).claims}
    kept = {where for where, (_, fate, _) in rows().items() if fate == "kept"}
    assert not present - kept, f"judged, and not kept in {TABLE.name}"
    assert not kept - present, f"kept in {TABLE.name}, and judged no more: say what became of them"


def test_sources_in_the_table_are_those_of_the_claims():
    table = rows()
    for name in identifiers():
        for claim in experiment(name).claims:
            assert table[name, claim.id][0] == claim.source, f"{name} {claim.id}"


def test_what_is_gone_has_a_reason_and_what_is_merged_a_place():
    table = rows()
    for where, (_, fate, reason) in table.items():
        assert fate in FATES, where
        assert fate == "kept" or reason, f"{where} is {fate}: say why"
        if fate == "merged":
            paper, claim = reason.split()[:2]
            assert table[paper, claim.rstrip(",;:")][1] == "kept", f"{where}: {reason}"


def test_a_failing_claim_says_of_which_kind_it_is():
    recorded = json.loads((TABLE.parent / "evidence" / "verdicts.json").read_text(encoding="utf-8"))
    quick = json.loads((TABLE.parent / "verdicts.json").read_text(encoding="utf-8"))
    verdicts = quick | {name: run["claims"] for name, run in recorded.items()}
    failing = {
        (i, name) for i, of in verdicts.items() for name, v in of.items() if v.startswith("fails")
    }
    assert failing
    words = {(i, claim.id): claim.failure for i in verdicts for claim in experiment(i).claims}
    assert sorted(each for each in failing if not words[each]) == []
