"""Writes ``verdicts.json`` anew: the verdict of every claim at the quick scale."""

from __future__ import annotations

import json
import sys

from test_all import VERDICTS, measured

from attsvm_papers.kit import identifiers

if __name__ == "__main__":
    found = json.loads(VERDICTS.read_text(encoding="utf-8")) if VERDICTS.exists() else {}
    for identifier in sys.argv[1:] or identifiers():
        chosen, _, evidence = measured(identifier)
        found[identifier] = {claim.id: claim.check(evidence).verdict for claim in chosen.claims}
        ordered = {known: found[known] for known in identifiers() if known in found}
        VERDICTS.write_text(json.dumps(ordered, indent=1) + "\n", encoding="utf-8")
