"""Experiments whose quick scale says nothing: their claims are judged on evidence that a full run
has left in ``evidence/``, and the full runs themselves are slow tests.

``python tests/papers/record.py runs/reproduce`` records what ``attsvm reproduce`` has computed
there; without a folder it draws the verdicts anew from the evidence that is recorded.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from attsvm.base.errors import InputError
from attsvm.base.files import load_arrays
from attsvm.claims import Evidence, Verdict
from attsvm.cli import main
from attsvm_papers.kit import experiment

FOLDER = Path(__file__).with_name("evidence")
VERDICTS = FOLDER / "verdicts.json"
"""Of every experiment that is recorded the scale of its run and the verdict of every claim."""
MEASURED = FOLDER / "measured.json"
"""What every claim measures on its recorded evidence: that of one whose verdict would not show it
has changed, too.
"""
QUICK = Path(__file__).with_name("verdicts.json")
RECORDED = json.loads(VERDICTS.read_text(encoding="utf-8")) if VERDICTS.exists() else {}


def evidence_of(identifier: str) -> Evidence:
    """The recorded columns, those that a claim reads."""
    with np.load(FOLDER / f"{identifier}.npz", allow_pickle=False) as columns:
        return Evidence({name: wide(column) for name, column in columns.items()})


def wide(column: np.ndarray) -> np.ndarray:
    """Measurements are double precision, whatever they are kept in."""
    return column.astype(np.float64) if column.dtype.kind == "f" else column


def run_of(folder: Path, identifier: str) -> tuple[dict, Evidence]:
    """``run.json`` and the evidence that ``attsvm reproduce`` has written.

    Raises:
        InputError: there is no finished run.
    """
    home = folder / identifier
    if not (home / "run.json").exists():
        raise InputError(f"{home} holds no finished run; `attsvm reproduce {identifier}` makes one")
    run = json.loads((home / "run.json").read_text(encoding="utf-8"))
    columns = {
        name: np.array(run["words"][name])[column] if name in run["words"] else column
        for name, column in load_arrays(home / "arrays.safetensors").items()
    }
    return run, Evidence(columns)


def judged(identifier: str, evidence: Evidence) -> dict[str, Verdict]:
    """The verdict on every claim, by its name."""
    return {claim.id: claim.check(evidence) for claim in experiment(identifier).claims}


def outcomes(verdicts: Mapping[str, Verdict]) -> dict[str, str]:
    return {name: verdict.short for name, verdict in verdicts.items()}


def numbers(verdicts: Mapping[str, Verdict]) -> dict[str, float]:
    judged = {name: each for name, each in verdicts.items() if each.verdict != "not applicable"}
    return {name: float(f"{each.measured:.9g}") for name, each in judged.items()}


def test_what_says_nothing_at_the_quick_scale_is_recorded():
    quick = json.loads(QUICK.read_text(encoding="utf-8"))
    silent = {name for name, of in quick.items() if set(of.values()) == {"not applicable"}}
    assert silent <= set(RECORDED)


@pytest.mark.parametrize("identifier", RECORDED)
def test_recorded_evidence_has_its_verdicts(identifier):
    verdicts = judged(identifier, evidence_of(identifier))
    assert outcomes(verdicts) == RECORDED[identifier]["claims"], (
        "a verdict changed; where it should, `python tests/papers/record.py` writes them anew"
    )
    assert set(outcomes(verdicts).values()) != {"not applicable"}
    known = json.loads(MEASURED.read_text(encoding="utf-8"))[identifier]
    for name, value in numbers(verdicts).items():
        assert value == pytest.approx(known[name], rel=1e-6, abs=1e-9), name
    for name, found in verdicts.items():
        if found.verdict == "not applicable":
            continue
        assert np.isfinite(found.measured), f"{name} rests on no number"
        assert found.verdict != "not shown", f"{name}: its null holds too"
        if found.verdict == "holds":
            assert found.null.verdict == "fails", name
        elif found.claim.explanation or not experiment(identifier).has_trials:
            assert found.explanation.strip(), f"{name} fails without its reason"


def test_every_failing_claim_is_named_on_a_page():
    """Beside its experiment in the list of all that fails, or on a page of its paper."""
    docs = Path(__file__).parents[2] / "docs"
    listed = (docs / "experiments.md").read_text(encoding="utf-8")
    verdicts = [json.loads(QUICK.read_text(encoding="utf-8"))]
    verdicts.append({name: run["claims"] for name, run in RECORDED.items()})
    missing = []
    for name, claims in (each for of in verdicts for each in of.items()):
        own = rf"{{experiment}}`{name}`(.*?)(?={{experiment}}|\n\*|\n\n)"
        beside = re.findall(own, listed, re.S)
        pages = (docs / "experiments").glob(f"{name.partition('-')[0]}*.md")
        text = " ".join([*beside, *(page.read_text(encoding="utf-8") for page in pages)])
        for claim, verdict in claims.items():
            if verdict.startswith("fails"):
                named = re.search(rf"(?<![\w.]){re.escape(claim)}(?!\w|\.\w)", text)
                missing += [] if named else [f"{name} {claim}"]
    assert not missing


@pytest.mark.slow
@pytest.mark.parametrize("identifier", RECORDED)
def test_a_full_run_has_the_recorded_verdicts(identifier, full_runs, record_property):
    """Numbers are reported and not compared: trained networks end elsewhere on another machine."""
    if not os.environ.get("ATTSVM_DATA"):
        pytest.skip("ATTSVM_DATA names no folder with the data sets")
    scale = RECORDED[identifier]["scale"]
    seeds = re.search(r"(\d+) seeds", scale)
    options = ["--scale", scale.partition(",")[0], *(["--seeds", seeds[1]] if seeds else [])]
    assert main(["reproduce", identifier, "--out", str(full_runs), *options]) == 0
    found = judged(identifier, run_of(full_runs, identifier)[1])
    before = judged(identifier, evidence_of(identifier))
    numbers = {name: (before[name].measured, each.measured) for name, each in found.items()}
    record_property("recorded and measured", numbers)
    assert outcomes(found) == RECORDED[identifier]["claims"], numbers


@pytest.fixture(scope="session")
def full_runs(tmp_path_factory):
    """One folder for all: some share their networks."""
    return tmp_path_factory.mktemp("full")
