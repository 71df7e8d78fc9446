"""Claims that fail say of which kind they are."""

from __future__ import annotations

import json
from pathlib import Path

from attsvm_papers.kit import experiment

PAPERS = Path(__file__).parent


def test_a_failing_claim_says_of_which_kind_it_is():
    recorded = json.loads((PAPERS / "evidence" / "verdicts.json").read_text(encoding="utf-8"))
    quick = json.loads((PAPERS / "verdicts.json").read_text(encoding="utf-8"))
    verdicts = quick | {name: run["claims"] for name, run in recorded.items()}
    failing = {
        (i, name) for i, of in verdicts.items() for name, v in of.items() if v.startswith("fails")
    }
    assert failing
    words = {(i, claim.id): claim.failure for i in verdicts for claim in experiment(i).claims}
    assert sorted(each for each in failing if not words[each]) == []
