"""Records the evidence of full runs, and the verdicts on it, for ``test_recorded.py``.

``python tests/papers/record.py FOLDER [ID ...]`` takes them from a folder of ``attsvm reproduce``;
``python tests/papers/record.py`` judges what is recorded anew, after a change of claims.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from test_recorded import (
    FOLDER,
    MEASURED,
    RECORDED,
    VERDICTS,
    evidence_of,
    judged,
    numbers,
    outcomes,
    run_of,
    wide,
)

from attsvm.base.errors import InputError
from attsvm.claims import Evidence
from attsvm_papers.kit import experiment, identifiers
from attsvm_papers.kit.experiment import settings_of


def refusal(identifier: str, run: dict[str, Any]) -> str:
    """Why a run is not one of the experiment as it is now, or nothing."""
    chosen = experiment(identifier)
    scale = run["scale"].partition(",")[0]
    own = json.loads(json.dumps(settings_of(chosen.at(scale=scale))))
    if {**run["parameters"], "seeds": 0} != {**own, "seeds": 0}:
        return f"its parameters are not those of the scale {scale}"
    if missing := {claim.id for claim in chosen.claims} - {each["id"] for each in run["claims"]}:
        return f"it knows nothing of the claims {', '.join(sorted(missing))}"
    if all(each["verdict"] == "not applicable" for each in run["claims"]):
        return "no claim can be judged on it"
    return ""


def read_by_claims(identifier: str, evidence: Evidence) -> Evidence:
    """The columns that a claim, its null or its explanation reads.

    Raises:
        InputError: one of them is missing.
    """
    names: set[str] = set()
    for claim in experiment(identifier).claims:
        applies = claim.check(evidence).verdict != "not applicable"
        names |= evidence.used | (set(claim.trials.split()) & set(evidence))
        if applies and claim.null is not None:
            broken = claim.null.of(evidence)
            claim.measure(broken)
            names |= broken.used
    return Evidence({name: evidence[name] for name in evidence if name in names})


def singles(evidence: Evidence) -> dict[str, np.ndarray]:
    """The columns, those of several numbers a trial in single precision."""
    return {
        name: column.astype(np.float32) if column.ndim > 1 and column.dtype == float else column
        for name, column in ((name, evidence[name]) for name in evidence)
    }


def record(identifier: str, folder: Path) -> dict[str, Any]:
    """Write the evidence of a run.

    Raises:
        InputError: no run, one of another experiment, or one whose verdicts do not survive.
    """
    run, evidence = run_of(folder, identifier)
    if why := refusal(identifier, run):
        raise InputError(f"{folder / identifier} is not recorded: {why}; compute it again")
    wanted = judged(identifier, evidence)
    part = read_by_claims(identifier, evidence)
    columns = singles(part)
    if told(judged(identifier, Evidence({k: wide(v) for k, v in columns.items()}))) != told(wanted):
        columns = {name: part[name] for name in part}
        if told(judged(identifier, part)) != told(wanted):
            raise InputError(f"{identifier}: a claim reads columns that are not found by name")
    FOLDER.mkdir(exist_ok=True)
    np.savez_compressed(FOLDER / f"{identifier}.npz", **columns)
    return {"scale": run["scale"], "claims": outcomes(wanted)}


def told(verdicts: dict[str, Any]) -> dict[str, Any]:
    """What must be the same on the columns that are kept."""
    return {
        name: (each.verdict, each.passed, each.counted, each.null and each.null.verdict)
        for name, each in verdicts.items()
    }


def main(arguments: list[str]) -> int:
    """Record, or judge anew; 1 where something was refused."""
    folder, *asked = arguments or [None]
    refused = False
    for identifier in asked or (RECORDED if folder is None else identifiers()):
        if folder is not None and not asked and not (Path(folder) / identifier).exists():
            continue
        try:
            RECORDED[identifier] = (
                RECORDED[identifier]
                | {"claims": outcomes(judged(identifier, evidence_of(identifier)))}
                if folder is None
                else record(identifier, Path(folder))
            )
        except InputError as error:
            refused = True
            print(error, file=sys.stderr)
    ordered = {name: RECORDED[name] for name in identifiers() if name in RECORDED}
    VERDICTS.write_text(json.dumps(ordered, indent=1) + "\n", encoding="utf-8")
    measured = {name: numbers(judged(name, evidence_of(name))) for name in ordered}
    MEASURED.write_text(json.dumps(measured, indent=1) + "\n", encoding="utf-8")
    return int(refused)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
