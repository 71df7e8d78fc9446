"""What a figure is written with: runs and their columns, claims and the words of a docstring."""

from types import SimpleNamespace

import numpy as np
import pytest

from attsvm.claims import Evidence
from attsvm.errors import InputError
from attsvm_papers import kit
from attsvm_papers.kit.captions import words
from attsvm_papers.kit.experiment import read


def figure(**parts):
    return read("mmts-99", SimpleNamespace(__doc__="T.", __name__="mine", **parts))


def evidence_of(one, parameters):
    cells = one.work(parameters)
    return one.evidence(cells, [one.run(**cell) for cell in cells])


def test_a_run_is_a_product_whose_last_axis_varies_fastest():
    @kit.run(
        kit.rows("n T", [(2, 3), (4, 5)]), method=["W", "KQ"], seeds=kit.seeds(3, by=2, start=1)
    )
    def run(n, T, method, seeds, steps=7):
        return {"value": np.array(seeds)}

    cells = run.cells(SimpleNamespace(seeds=3, steps=7, unused=1))
    assert [(c["n"], c["method"], c["seeds"]) for c in cells[:4]] == [
        (2, "W", [1, 2]),
        (2, "W", [3]),
        (2, "KQ", [1, 2]),
        (2, "KQ", [3]),
    ]
    assert len(cells) == 8
    assert set(cells[0]) == {"n", "T", "method", "seeds", "steps"}
    assert cells[0]["steps"] == 7


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


def test_the_kit_adds_the_axes_and_repeats_what_rows_share():
    @kit.run(method=["W", "KQ"], seeds=kit.seeds(3, by=2, first=0))
    def run(method, seeds):
        return {"gap": np.array(seeds) * 2.0, "norm": 3.0, "step": kit.same([1, 10])}

    one = figure(run=run)
    found = evidence_of(one, one.parameters)
    assert found["method"].tolist() == ["W"] * 3 + ["KQ"] * 3
    assert found["seed"].tolist() == [0, 1, 2] * 2
    assert found["norm"].tolist() == [3.0] * 6
    assert found["step"].shape == (6, 2)
    assert found.where(method="KQ")["gap"].tolist() == [0.0, 2.0, 4.0]
    assert found.words() == {"method": ["KQ", "W"]}
    assert found.arrays()["method"].tolist() == [1, 1, 1, 0, 0, 0]


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


def test_a_cell_without_trials_adds_no_row():
    @kit.run(d=[1, 2])
    def run(d):
        return kit.stacked([{"gap": 0.5}] * (d - 1))

    one = figure(run=run)
    assert evidence_of(one, one.parameters)["d"].tolist() == [2]


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


def test_several_claims_rest_on_one_measurement():
    @kit.each(
        kit.claim(kit.at_most(1.0, "a bound"), id=f"C{k}", column=name, words=name.upper())
        for k, name in enumerate(("a", "b"))
    )
    def small(e, column):
        """{words} is small."""
        return e[column]

    first, second = small.claims
    assert [first.id, second.id] == ["C0", "C1"]
    assert [first.statement, second.statement] == ["A is small.", "B is small."]
    found = Evidence({"a": [0.0], "b": [2.0]})
    assert [one.check(found).verdict for one in small.claims] == ["holds", "fails"]


def test_the_docstring_says_what_is_shown():
    text = "A title.\n\nWhat is\ndone.\n\nMore.\n\nSource: P1, Figure 2\n\nNotes: Beware.\n"
    assert words(text) == ("A title", "What is done. More.", "P1, Figure 2", "Beware.")


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


def test_measurements_become_columns_with_a_row_each():
    found = kit.stacked([{"gap": 0.5, "course": [1.0, 2.0]}, {"gap": 0.25, "course": [3.0, 4.0]}])
    assert found["gap"].tolist() == [0.5, 0.25]
    assert found["course"].tolist() == [[1.0, 2.0], [3.0, 4.0]]


def test_records_are_read_by_their_value_and_rows_by_their_seed():
    evidence = Evidence(
        {
            "rule": np.array(["a", "b", "a"]),
            "seed": np.array([7, 5, 3]),
            "step": np.tile([1, 10, 100], (3, 1)),
            "gap": np.arange(9.0).reshape(3, 3),
        }
    )
    assert evidence.at("gap", 10).tolist() == [1.0, 4.0, 7.0]
    with pytest.raises(InputError, match="20 is none of the recorded steps"):
        evidence.at("gap", 20)
    assert evidence.end("gap").tolist() == [2.0, 5.0, 8.0]
    assert kit.in_order(evidence, rule="a")["gap"][:, 0].tolist() == [6.0, 0.0]
    assert kit.in_order(evidence, "seed").at("gap", 100).tolist() == [8.0, 5.0, 2.0]
