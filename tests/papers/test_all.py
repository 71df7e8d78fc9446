"""Every experiment there is, at its quick scale: cells run, figures are drawn, verdicts rest on
numbers, failures are explained, and no verdict and no column changes unnoticed.
"""

from __future__ import annotations

import json
import math
import re

import numpy as np
import pytest

from attsvm.report import style
from attsvm_papers.kit import MOST, experiment, identifiers, titles

from .snapshot import LONG, VERDICTS, changes, kept, measured
from .test_recorded import RECORDED as SILENT

RUN = [
    pytest.param(name, marks=[pytest.mark.slow] if name in LONG or name in SILENT else [])
    for name in identifiers()
]
"""All of them; slow are those that are judged on evidence of their quick scale that is kept, and
those whose claims the quick scale cannot judge.
"""


@pytest.fixture
def as_svg_alone(monkeypatch):
    """What is drawn is drawn once; :func:`test_pictures_can_be_laid_out` draws the PNG as well."""
    from matplotlib.figure import Figure

    save = Figure.savefig

    def once(figure, file, format, **options):
        if format == "svg":
            save(figure, file, format=format, **options)

    monkeypatch.setattr(Figure, "savefig", once)


@pytest.mark.experiment
@pytest.mark.parametrize("identifier", RUN)
@pytest.mark.usefixtures("as_svg_alone")
def test_an_experiment_runs_is_judged_and_drawn(identifier):
    chosen, results, evidence = measured(identifier)
    for part in results:
        assert len({len(np.asarray(column)) for column in part.values()}) == 1
        assert all(np.asarray(column).dtype.kind in "biuf" for column in part.values()), (
            "a cell is saved as plain numbers; words are axes"
        )
    is_as_recorded(chosen, evidence)


@pytest.mark.parametrize("identifier", LONG)
@pytest.mark.usefixtures("as_svg_alone")
def test_evidence_that_is_kept_is_judged_and_drawn(identifier):
    is_as_recorded(experiment(identifier), kept(identifier))


@pytest.mark.slow
@pytest.mark.parametrize("identifier", identifiers())
def test_pictures_can_be_laid_out(identifier):
    """As for readers: everything has its place, which a warning of matplotlib would deny."""
    evidence = kept(identifier) if identifier in LONG else measured(identifier)[2]
    with style.saved_with(style.PictureOptions(dots=30)):
        pictures = list(experiment(identifier).plot(evidence))
    assert pictures
    assert all(picture.png.startswith(b"\x89PNG") for picture in pictures)


def is_as_recorded(chosen, evidence):
    """Verdicts and columns are those of the files, and the pictures can be drawn."""
    verdicts = {}
    for claim in chosen.claims:
        verdict = claim.check(evidence)
        verdicts[claim.id] = verdict.short
        assert verdict.verdict == "not applicable" or not math.isnan(verdict.measured), (
            f"{verdict} rests on a NaN"
        )
        if verdict.verdict == "fails" and not chosen.has_trials:
            assert claim.explanation, f"{verdict}"
    expected = json.loads(VERDICTS.read_text(encoding="utf-8"))[chosen.id]
    assert verdicts == expected, "a verdict changed; see the docstring of VERDICTS"
    different = changes(chosen.id, evidence)
    assert not different, different
    pictures = list(chosen.plot(evidence))
    assert pictures
    for picture in pictures:
        assert picture.svg.startswith(b"<?xml")
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


SHARES = {
    0.1: "one trial of ten",
    0.3: "three trials of ten",
    0.5: "half of the|every second",
    0.7: "seven of ten",
    0.75: "three of four",
    0.8: "four of five",
    0.95: "95 of 100",
    0.98: "98 in 100",
    0.99: "99 of 100",
}
"""The words in which a statement names a share that is neither all nor the laboratory's."""


@pytest.mark.parametrize("identifier", identifiers())
def test_a_share_is_the_laboratorys_or_its_statement_names_it(identifier):
    for claim in experiment(identifier).claims:
        if claim.expect.share not in (MOST, 1.0):
            words = SHARES.get(claim.expect.share)
            assert words, f"{claim.id}: say which share in the statement, and here how"
            assert re.search(words, claim.statement), f"{claim.id}: {claim.statement}"


@pytest.mark.parametrize("identifier", identifiers())
def test_random_trials_can_be_drawn_anew(identifier):
    chosen = experiment(identifier)
    # what follows from the first cells is computed for their seeds
    if not chosen.has_trials or chosen.then is not None:
        return
    quick = chosen.at(quick=True)
    assert len(chosen.work(quick, 1000)) == len(chosen.work(quick))


def test_titles_are_read_without_importing_a_figure():
    assert titles() == {identifier: experiment(identifier).title for identifier in identifiers()}
