"""Every experiment there is, at its quick scale: cells run, figures are drawn, verdicts rest on
numbers and failures are explained.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from attsvm.claims import Evidence
from attsvm_papers.kit import experiment, identifiers

TRIALS = 6
"""Random trials where an experiment has them: enough for every cell and figure, too few for
shares.
"""


@pytest.mark.parametrize("identifier", identifiers())
def test_an_experiment_runs_is_judged_and_drawn(identifier):
    chosen = experiment(identifier)
    quick = chosen.at(quick=True)
    few = min(quick.seeds, TRIALS) if hasattr(quick, "seeds") else None
    parts = [chosen.run(**cell) for cell in chosen.cells(chosen.at(quick=True, seeds=few))]
    for part in parts:
        assert len({len(np.asarray(column)) for column in part.values()}) == 1
        assert all(np.asarray(column).dtype.kind in "biuf" for column in part.values()), (
            "columns are saved as plain numbers"
        )
    evidence = Evidence.concatenate(parts)
    for claim in chosen.claims:
        verdict = claim.check(evidence)
        assert verdict.verdict == "not applicable" or not math.isnan(verdict.measured), (
            f"{verdict} rests on a NaN"
        )
        if verdict.verdict == "fails" and few is None:
            assert claim.explanation, f"{verdict}"
    pictures = list(chosen.plot(evidence))
    assert pictures
    for picture in pictures:
        assert picture.svg.startswith(b"<?xml")
        assert picture.png.startswith(b"\x89PNG")
        assert picture.alt
        assert b"mathdefault" not in picture.svg, (
            "an axis shows raw mathematics; use style.logarithmic"
        )
    assert len({picture.name for picture in pictures}) == len(pictures)


@pytest.mark.parametrize("identifier", identifiers())
def test_its_claims_are_named_and_its_scales_differ_in_size_only(identifier):
    chosen = experiment(identifier)
    names = [claim.id for claim in chosen.claims]
    assert len(set(names)) == len(names)
    assert type(chosen.quick) is type(chosen.parameters)
    assert chosen.id == identifier


@pytest.mark.parametrize("identifier", identifiers())
def test_random_trials_can_be_drawn_anew(identifier):
    chosen = experiment(identifier)
    if (
        not chosen.random or chosen.then is not None
    ):  # what follows from the first cells is computed for their seeds
        return
    quick = chosen.at(quick=True)
    assert len(chosen.work(quick, 1000)) == len(chosen.work(quick))
