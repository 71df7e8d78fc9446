"""What a figure is written with: runs and their columns, claims and the words of a docstring."""

from types import SimpleNamespace

import numpy as np
import pytest

from attsvm.base.errors import InputError
from attsvm.claims import Evidence
from attsvm_papers import kit
from attsvm_papers.kit.captions import parse_docstring
from attsvm_papers.kit.experiment import read_experiment


def figure(**parts):
    return read_experiment("mmts-99", SimpleNamespace(__doc__="T.", __name__="mine", **parts))


def evidence_of(one, parameters):
    cells = one.work(parameters)
    return one.evidence(cells, [one.run(**cell) for cell in cells])


def test_an_axis_may_depend_on_those_before_it_and_a_point_may_be_left_out():
    @kit.run(
        d=[1, 2, 3],
        rank=lambda at: range(1, at.d + 1),
        when=lambda d, rank: d != 2,
        quick={"d": [3]},
    )
    def run(d, rank):
        return {"x": [0.0]}

    one = figure(run=run)
    assert [(c["d"], c["rank"]) for c in one.work(one.parameters)] == [
        (1, 1),
        (3, 1),
        (3, 2),
        (3, 3),
    ]
    assert [c["d"] for c in one.work(one.quick)] == [3] * 3


def test_parts_of_different_lengths_are_one_evidence_and_share_their_parameters():
    @kit.run()
    def path(radii=(1.0, 2.0)):
        return {"radius": np.array(radii)}

    @kit.run(seeds=kit.seeds(3, by=9))
    def descent(seeds):
        return {"gap": np.zeros(len(seeds))}

    one = figure(path=path, descent=descent)
    found = evidence_of(one, one.parameters)
    assert found["part"].tolist() == ["path"] * 2 + ["descent"] * 3
    assert found.where(part="path")["radius"].tolist() == [1.0, 2.0]
    assert np.isnan(found.where(part="descent")["radius"]).all()

    @kit.run()
    def other(radii=(3.0,)):
        return {"radius": np.array(radii)}

    with pytest.raises(InputError, match="two parts of a figure have a parameter 'radii'"):
        figure(path=path, other=other)


def test_there_are_seeds_until_enough_of_them_give_a_trial():
    axis = kit.until(10, by=8, start=1, share={2: 0.5, 4: 10.0}, axis="d")
    at = {d: axis(SimpleNamespace(d=d, seeds=10)) for d in (2, 4)}
    assert [len(block) for block in at[2]] == [8, 8, 8]
    assert at[2][0][0] == 1
    assert at[4] == [[1]]


def test_scales_differ_in_what_they_name():
    @kit.run(kit.rows("n T", [(2, 3)]), quick={"n_T": [(4, 5)], "steps": 1}, paper={"steps": 9})
    def run(n, T, steps=7):
        return {"x": [0.0]}

    one = figure(run=run)
    assert [one.work(each)[0] for each in (one.parameters, one.quick, one.published)] == [
        {"n": 2, "T": 3, "steps": 7},
        {"n": 4, "T": 5, "steps": 1},
        {"n": 2, "T": 3, "steps": 9},
    ]


def test_a_run_without_a_row_is_told():
    @kit.run()
    def run():
        return {"norm": 3.0}

    with pytest.raises(InputError, match="no column with a row per trial"):
        run()


def test_a_claim_is_its_function():
    @kit.claim(kit.at_most(1.0, "a bound"), "paper", "P1", assumes="kept")
    def E1_2a(e):
        """The gap is small:
        always.
        """
        return e["gap"]

    (made,) = E1_2a.claims
    assert (made.id, made.statement, made.source) == (
        "E1.2a",
        "The gap is small: always.",
        "paper",
    )
    found = Evidence({"gap": [0.5, 2.0], "kept": [True, False]})
    assert made.check(found).verdict == "holds"
    assert E1_2a(found).tolist() == [0.5, 2.0]


def test_source_and_notes_may_be_adjacent_lines():
    text = parse_docstring("Title.\n\nWhat is done.\n\nSource: a paper,\nFigure 2\nNotes: a note")
    assert text == ("Title", "What is done.", "a paper, Figure 2", "a note")


def test_the_docstring_says_what_is_shown():
    text = "A title.\n\nWhat is\ndone.\n\nMore.\n\nSource: P1, Figure 2\n\nNotes: Beware.\n"
    assert parse_docstring(text) == ("A title", "What is done. More.", "P1, Figure 2", "Beware.")


def test_verdicts_are_given_on_seeds_that_no_threshold_was_set_on():
    @kit.run(seeds=kit.seeds(3, by=2, start=1), quick={"seeds": 1})
    def run(seeds):
        return {"x": np.zeros(len(seeds))}

    def then(parameters, evidence):
        return [{"seeds": [7]}, {"seeds": [kit.SEARCH]}, {"seed": kit.SEARCH}]

    one = figure(run=run, then=then)
    assert [cell["seeds"] for cell in one.work(one.parameters)] == [[10_001, 10_002], [10_003]]
    assert [cell["seeds"] for cell in one.work(one.quick, 5)] == [[10_006]]
    assert one.work(one.at(tuning=True))[0]["seeds"] == [1, 2]
    after = one.work(one.quick, 5, Evidence({"x": [0.0]}))
    assert after == [{"seeds": [10_012]}, {"seeds": [kit.SEARCH]}, {"seed": kit.SEARCH}]


def test_a_claim_may_be_measured_in_every_group_of_a_column():
    @kit.claim(kit.at_most(1.0, "a bound"), by="d", least=2)
    def small(e):
        """The mean is small."""
        return e["gap"].mean()

    (made,) = small.claims
    found = Evidence({"d": [1, 1, 2, 2], "gap": [0.0, 1.0, 2.0, 4.0]})
    verdict = made.check(found)
    assert (verdict.verdict, verdict.measured, verdict.counted) == ("fails", 3.0, 2)
    few = made.check(found.take([0, 1, 2]))
    assert (few.verdict, few.unmet) == ("not applicable", ("2 runs",))


def test_rows_are_sorted_by_their_seed():
    evidence = Evidence({"rule": np.array(["a", "b", "a"]), "seed": [7, 5, 3], "gap": [0, 1, 2]})
    assert kit.in_order(evidence, rule="a")["gap"].tolist() == [2, 0]
    assert kit.in_order(evidence, "gap")["seed"].tolist() == [7, 5, 3]


def test_slopes_are_numpys_and_ignore_what_is_outside() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((2, 4, 9))
    inside = np.arange(9) >= np.array([[0], [2], [3], [5]])
    y[~inside] = np.nan
    expected = [np.polyfit(x[r, inside[r]], y[r, inside[r]], 1)[0] for r in range(4)]
    np.testing.assert_allclose(kit.slopes(x, y, inside), expected, rtol=1e-12)
    line = np.arange(5.0)
    np.testing.assert_allclose(kit.slopes(line, [2 * line, 1 - line], line >= 1), [2.0, -1.0])
    for fewer_than_two in (line >= 4, line >= 9):
        assert np.isnan(kit.slopes(line, [2 * line, 1 - line], fewer_than_two)).all()
