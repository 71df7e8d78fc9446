"""What a figure is written with: grids and their columns, claims and the words of a docstring."""

from types import SimpleNamespace

import numpy as np
import pytest

from attsvm.claims import Evidence
from attsvm.errors import InputError
from attsvm_papers.kit import (
    SEARCH,
    VERDICT,
    at,
    at_most,
    blocks,
    claim,
    cut,
    each,
    grid,
    in_order,
    rows,
    same,
    scales,
    setting,
    stacked,
)
from attsvm_papers.kit.experiment import read
from attsvm_papers.kit.words import words


def test_a_grid_is_a_product_whose_last_axis_varies_fastest():
    @grid(rows("n T", [(2, 3), (4, 5)]), method=["W", "KQ"], seeds=blocks(2, start=1))
    def run(n, T, method, seeds, steps):
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


def test_blocks_are_full_but_the_last():
    assert cut(5, 2) == [(0, 2), (2, 2), (4, 1)]


def test_the_kit_adds_what_the_grid_names_and_repeats_what_rows_share():
    @grid(method=["W", "KQ"], seeds=blocks(2))
    def run(method, seeds):
        return {"gap": np.array(seeds) * 2.0, "norm": 3.0, "step": same([1, 10])}

    module = SimpleNamespace(__doc__="T.", SCALES=scales(seeds=3, quick={"seeds": 2}), run=run)
    figure = read("mmts-99", module)
    cells = figure.work(figure.parameters)
    found = figure.evidence(cells, [figure.run(**cell) for cell in cells])
    assert found["method"].tolist() == ["W"] * 3 + ["KQ"] * 3
    assert found["seed"].tolist() == [0, 1, 2] * 2
    assert found["norm"].tolist() == [3.0] * 6
    assert found["step"].shape == (6, 2)
    assert found.where(method="KQ")["gap"].tolist() == [0.0, 2.0, 4.0]
    assert found.words() == {"method": ["KQ", "W"]}
    assert found.arrays()["method"].tolist() == [1, 1, 1, 0, 0, 0]


def test_parts_of_different_lengths_are_one_evidence():
    @grid()
    def path(radii):
        return {"radius": np.array(radii)}

    @grid(seeds=blocks(9))
    def descent(seeds):
        return {"gap": np.zeros(len(seeds))}

    known = {"__doc__": "T.", "SCALES": scales(radii=(1.0, 2.0), seeds=3)}
    figure = read("mmts-99", SimpleNamespace(**known, path=path, descent=descent))
    cells = figure.work(figure.parameters)
    found = figure.evidence(cells, [figure.run(**cell) for cell in cells])
    assert found["part"].tolist() == ["path"] * 2 + ["descent"] * 3
    assert found.where(part="path")["radius"].tolist() == [1.0, 2.0]
    assert np.isnan(found.where(part="descent")["radius"]).all()


def test_a_run_without_a_row_is_told():
    @grid()
    def run():
        return {"norm": 3.0}

    with pytest.raises(InputError, match="no column with a row per trial"):
        run()


def test_a_claim_is_its_function():
    @claim(at_most(1.0, "a bound"), "paper", "P1", assumes="kept")
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
    @each(
        claim(at_most(1.0, "a bound"), id=f"C{k}", column=name, words=name.upper())
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


def test_parameters_that_are_not_an_axis_come_from_the_scale():
    known = scales(dimensions=(2, 4), seeds=3, quick={"dimensions": (2,)})

    @grid(d=setting("dimensions"), seeds=blocks(5))
    def run(d, seeds):
        return {"x": np.zeros(len(seeds))}

    assert [cell["d"] for cell in run.cells(known.parameters)] == [2, 4]
    assert [cell["d"] for cell in run.cells(known.quick)] == [2]


def test_verdicts_are_given_on_seeds_that_no_threshold_was_set_on():
    known = scales(seeds=3, first_seed=VERDICT, quick={"seeds": 1})

    @grid(seeds=blocks(2, start=1))
    def run(seeds):
        return {"x": np.zeros(len(seeds))}

    def then(parameters, evidence):
        return [{"seeds": [7]}, {"seeds": [SEARCH]}, {"seed": SEARCH}]

    figure = read("mmts-99", SimpleNamespace(__doc__="T.", SCALES=known, run=run, then=then))
    assert [cell["seeds"] for cell in figure.work(known.parameters)] == [[10_001, 10_002], [10_003]]
    assert [cell["seeds"] for cell in figure.work(known.quick, 5)] == [[10_006]]
    tuned = figure.at(tuning=True)
    assert figure.work(tuned)[0]["seeds"] == [1, 2]
    after = figure.work(known.quick, 5, Evidence({"x": [0.0]}))
    assert after == [{"seeds": [10_012]}, {"seeds": [SEARCH]}, {"seed": SEARCH}]


def test_measurements_become_columns_with_a_row_each():
    found = stacked([{"gap": 0.5, "course": [1.0, 2.0]}, {"gap": 0.25, "course": [3.0, 4.0]}])
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
    assert at(evidence, "gap", 10).tolist() == [1.0, 4.0, 7.0]
    with pytest.raises(IndexError):
        at(evidence, "gap", 20)
    assert in_order(evidence, rule="a")["gap"][:, 0].tolist() == [6.0, 0.0]
    assert at(in_order(evidence, "seed"), "gap", 100).tolist() == [8.0, 5.0, 2.0]
