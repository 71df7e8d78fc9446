"""Claims and verdict from numbers: what holds, what fails, what cannot be said."""

import copy
from pathlib import Path

import pytest

from attsvm.cli import main
from attsvm.cli.fit import _words_table
from attsvm.pipeline.model import limits_of
from attsvm.pipeline.settings import FitSettings
from attsvm.pipeline.verdict import (
    attention_claims,
    attention_verdict,
    check_claims,
    words_sentence,
)
from attsvm.report.endings import ENDS
from attsvm.report.page import end_paragraphs
from attsvm.sklearn import Limits


def accuracy(**test):
    return [
        {"name": name, "test": value, "balanced": value, "recall": [value, value]}
        for name, value in test.items()
    ]


RIGHT = {"soft": 0.9, "mean_pooling": 0.9, "hard": 0.85, "random_token": 0.6, "majority": 0.5}
RESULTS = {
    "selection": {"sequences": 100, "saturated": 98, "threshold": 0.99},
    "margin": {
        "status": "optimal",
        "hard": True,
        "hard_status": "optimal",
        "geometry": "fro",
        "geometry_title": "Frobenius norm",
        "unique": True,
        "gap": 1e-14,
        "violation": 0.0,
        "tol": 1e-9,
        "out_of_time": False,
        "margin": 0.1,
        "trained_margin_ratio": 0.9,
        "constraints": 1500,
        "support_constraints": 70,
        "support_sequences": 40,
    },
    "direction": {
        "measure": "cosine",
        "distance": 1e-3,
        "first_distance": 1e-2,
        "midway_distance": 2e-3,
        "gap": 1e-3,
        "cosine": 0.999,
        "angle_degrees": 2.56,
        "falling": True,
    },
    "accuracy": accuracy(**RIGHT),
    "training": {"steps": 400, "class_weight": None, "beats_chance": True},
    "theory": {"class": "yes", "rest": "no", "sequences": 100, "training_sequences": 100},
}


def changed(**parts):
    results = copy.deepcopy(RESULTS)
    for part, change in parts.items():
        results[part] = change if isinstance(change, list) else {**results[part], **change}
    return results


def checked(results):
    return check_claims(attention_claims(results, 100), results, 100)


def verdicts(results):
    return {claim["id"]: claim["verdict"] for claim in checked(results)}


def told(results, kind="array"):
    return attention_verdict(results, checked(results), kind, ("no", "yes"), 200)


def test_all_claims_hold():
    assert set(verdicts(RESULTS).values()) == {"holds"}
    said = told(RESULTS)
    assert said["holds"]
    assert said["sentences"][0] == (
        "Yes: 98 of 100 sequences select one token, and the trained direction is 2.6° from the"
        " certified max-margin solution."
    )


@pytest.mark.parametrize(
    ("change", "claim"),
    [
        ({"selection": {"saturated": 94}}, "selection"),
        (
            {"direction": {"distance": 0.011, "first_distance": 0.1, "midway_distance": 0.02}},
            "direction",
        ),
        ({"direction": {"midway_distance": 1e-3}}, "approach"),
        ({"direction": {"first_distance": 1.1e-3}}, "approach"),
        ({"accuracy": accuracy(**{**RIGHT, "soft": 0.86})}, "accuracy"),
        ({"accuracy": accuracy(**{**RIGHT, "hard": 0.6})}, "control"),
    ],
)
def test_each_claim_can_fail_alone(change, claim):
    found = verdicts(changed(**change))
    assert found[claim] == "fails"
    assert [name for name, said in found.items() if said != "holds"] == [claim]


def test_rounding_is_no_proof():
    """Where terms cancel, both numbers may be small and prove nothing."""
    unproved = changed(margin={"status": "inaccurate"})
    assert verdicts(unproved)["certificate"] == "fails"
    assert "whose rounding in terms that cancel is above the tolerance" in " ".join(
        told(unproved)["sentences"]
    )


def test_one_point_of_accuracy_is_counted_in_sequences():
    one_less = changed(accuracy=accuracy(**{**RIGHT, "soft": 0.99, "mean_pooling": 1.0}))
    assert verdicts(one_less)["accuracy"] == "holds"


def test_without_a_certificate_nothing_is_said_of_directions():
    results = changed(margin={"status": "inaccurate", "gap": 0.3})
    found = verdicts(results)
    assert found["certificate"] == "fails"
    assert found["direction"] == found["approach"] == "not applicable"
    said = told(results)
    assert not said["holds"]
    assert said["sentences"][0].startswith("Undecided: ")
    assert "stopped" in said["sentences"][1]
    assert said["advice"] == [said["sentences"][1]]


@pytest.mark.parametrize("status", ["infeasible", "almost infeasible"])
def test_the_soft_margin_is_called_so(status):
    results = changed(
        margin={"hard": False, "hard_status": status},
        direction={"distance": 0.5, "gap": 0.5, "angle_degrees": 60.0},
    )
    said = told(results)
    assert said["sentences"][0].startswith("Not yet: ")
    assert "soft-margin" in said["sentences"][0]
    assert f"(hard margin {status})" in said["sentences"][-1]
    assert said["sentences"][-1].startswith("No weights ") == (status == "infeasible")
    assert said["ends"] == ["not yet", status]


def test_the_strongest_null_is_what_the_model_is_held_against():
    rare = {**RIGHT, "soft": 0.948, "majority": 0.945, "mean_pooling": 0.9}
    found = verdicts(changed(accuracy=accuracy(**rare)))
    assert (found["accuracy"], found["majority"]) == ("holds", "fails")
    worse = {**RIGHT, "soft": 0.90, "majority": 0.945}
    (claim,) = (c for c in checked(changed(accuracy=accuracy(**worse))) if c["id"] == "accuracy")
    assert claim["verdict"] == "fails"
    assert "always naming the most frequent label" in claim["statement"]
    said = told(changed(accuracy=accuracy(**rare)))
    assert said["headline"].endswith("the most frequent label 94.5%.")
    assert "Recall: 94.8% of no and 94.8% of yes; balanced accuracy" in said["beside"]


def test_sentences_about_many_classes_name_a_few():
    entries = accuracy(**RIGHT)
    for entry in entries:
        entry["recall"] = [k / 10 for k in reversed(range(10))]
    results = changed(accuracy=entries)
    names = [f"c{k}" for k in range(10)]
    said = attention_verdict(results, checked(results), "text", names, 200)["beside"]
    assert "Of the 200 held-out texts, a random word is right on 60.0%" in said
    assert "Recall, lowest first: 0.0% of c9, 10.0% of c8, " in said
    assert "40.0% of c5 and 50.0% of c4; balanced" in said
    with_words = [
        {"class": name, "texts": 1, "words": [{"word": "w"}], "often": ["w"]} for name in names
    ]
    without = [{"class": name, "texts": 2, "words": [], "often": ["a", "b"]} for name in names]
    assert words_sentence(with_words).endswith("for c5: w; and 4 more classes.")
    assert words_sentence(with_words[:2]) == "Says most for c0: w; for c1: w."
    said = words_sentence(without)
    assert said.startswith(
        "No word can be said to belong to c0 (2 texts; most often chosen: a, b) or"
    )
    assert said.endswith("or c5 (2 texts; most often chosen: a, b) or 4 more classes.")


@pytest.mark.parametrize(("columns", "beside"), [(100, 2), (80, 1), (200, 4)])
def test_tables_of_words_stand_beside_each_other_as_far_as_there_is_room(
    columns, beside, monkeypatch
):
    monkeypatch.setenv("COLUMNS", str(columns))
    row = {"word": "fine", "times": 3, "held_out": 3, "right": 1.0}
    lines = _words_table([{"class": f"c{k}", "words": [row]} for k in range(4)])
    assert max(map(len, lines)) <= columns
    assert [line.count("says most for") for line in lines if "says" in line] == [beside] * (
        4 // beside
    )


def test_where_classes_weigh_alike_their_mean_recall_is_compared():
    entries = accuracy(**{**RIGHT, "soft": 0.8, "majority": 0.9})
    for entry in entries:
        entry["balanced"] = {"soft": 0.78, "majority": 0.5}.get(entry["name"], 0.6)
    training = {**RESULTS["training"], "class_weight": "balanced"}
    results = changed(accuracy=entries, training=training)
    assert verdicts(results)["accuracy"] == verdicts(results)["majority"] == "holds"


def test_a_theory_of_a_sample_says_so():
    part = {**RESULTS["theory"], "sequences": 40}
    assert told(changed(theory=part))["sentences"][-1] == (
        "The theory is about 40 of 100 training sequences, a random sample of as many as memory and"
        " time allow."
    )


LP = {"geometry": "lp:1.75", "geometry_title": "ℓ1.75 norm"}
SPEC = {"geometry": "spec", "geometry_title": "spectral norm", "unique": None}


def test_a_strictly_convex_norm_is_judged_by_its_divergence():
    results = changed(
        margin=LP, direction={"measure": "divergence", "distance": 0.004, "gap": 0.02}
    )
    assert verdicts(results)["direction"] == "holds"
    said = told(results)
    assert said["holds"]
    assert said["sentences"][0].endswith(
        "the trained direction is at a Bregman divergence of 0.004 from the certified max-margin"
        " solution in the ℓ1.75 norm."
    )
    assert "°" not in said["sentences"][0]
    further = {"measure": "divergence", "distance": 0.02, "gap": 1e-3}
    assert verdicts(changed(margin=LP, direction=further))["direction"] == "fails"


@pytest.mark.parametrize(
    ("unique", "sentence"),
    [
        (None, "Whether other weights do as well was not decided"),
        (False, "Other weights have the same norm and margins"),
        (True, "the solution was found to be the only one"),
    ],
)
def test_a_norm_with_several_solutions_is_judged_by_its_margin(unique, sentence):
    results = changed(
        margin={**SPEC, "unique": unique},
        direction={"measure": "margin", "distance": 0.05, "gap": 0.5, "cosine": 0.5},
    )
    found = verdicts(results)
    assert "direction" not in found
    assert found["margin"] == "holds"
    said = told(results)
    assert said["sentences"][0].startswith("Yes: ")
    assert said["sentences"][0].endswith(
        "the trained weights reach 95 % of the certified best margin in the spectral norm."
    )
    assert sentence in said["sentences"][2]
    worse = changed(margin=SPEC, direction={"measure": "margin", "distance": 0.11, "gap": 1e-6})
    assert verdicts(worse)["margin"] == "fails"
    assert told(worse)["sentences"][0].startswith("Not yet: ")


@pytest.mark.parametrize(
    ("kind", "others", "baselines"),
    [
        (
            "text",
            {"mean_pooling": 0.812, "tfidf": 0.764},
            "mean pooling 81.2%; TF-IDF with logistic regression 76.4%.",
        ),
        (
            "text",
            {"mean_pooling": 0.6, "tfidf": 0.764},
            "TF-IDF with logistic regression 76.4%.",
        ),
        ("image", {"mean_pooling": 0.6, "majority": 0.91}, "the most frequent label 91.0%."),
    ],
)
def test_the_first_sentence_answers_with_the_strongest_baseline(kind, others, baselines):
    one, several = ("patch", "patches") if kind == "image" else ("word", "words")
    right = {"hard": 0.801, "soft": 0.836, "random_token": 0.7, "extreme_token": 0.78}
    said = told(changed(accuracy=accuracy(**right, **{"majority": 0.5, **others})), kind)
    assert said["headline"] == (
        f"The chosen {one} alone is right on 80.1% of held-out {kind}s; soft attention over all"
        f" {several} 83.6%; {baselines}"
    )
    assert f"a random {one} is right on 70.0%, the most extreme {one}" in said["beside"]


@pytest.mark.parametrize("status", ["infeasible", "almost infeasible", "optimal"])
def test_every_end_has_a_paragraph(status):
    hard = {"hard": status == "optimal", "hard_status": status}
    said = told(changed(margin={**SPEC, **hard, "status": "inaccurate", "gap": 0.3}))
    assert said["ends"] == (["undecided"] if hard["hard"] else ["undecided", status])
    assert end_paragraphs(said["ends"])[-1] == ENDS[said["ends"][-1]]
    page = " ".join((Path(__file__).parents[2] / "docs" / "my-report.md").read_text().split())
    for title, paragraph in ENDS.values():
        assert f"## {title}" in page
        assert paragraph in page


def test_a_solver_that_runs_out_of_time_is_never_hidden(tmp_path, capsys):
    few = ["--steps", "100", "--solve-seconds", "1e-9"]
    assert main(["fit", "digits", *few, "--out", str(tmp_path / "run")]) == 3
    said, meanwhile = capsys.readouterr()
    assert "the model is right on" in meanwhile
    assert "Undecided" in said
    assert "its time was up; more of it (--solve-seconds)" in said
    *advice, claims, answers, page = said.partition("The theory in this run:\n")[2].splitlines()
    assert 2 <= len(advice) <= 3  # what the run came to, and what may be done about it
    assert "certificate fails" in claims
    assert answers == f"predictions: {tmp_path / 'run' / 'predictions.csv'}"
    assert page.startswith("report: ")
    assert "Handwritten digits, 3 against 8: 357 rows; 3 (183), 8 (174)" in meanwhile.splitlines()
    assert (tmp_path / "run" / "report.html").exists()


def test_defaults_of_the_command_line_and_of_explain_are_one():
    assert limits_of(FitSettings()) == Limits()
