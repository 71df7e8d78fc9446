"""Claims and verdict from numbers: what holds, what fails, what cannot be said."""

import copy
from pathlib import Path

import pytest

from attsvm.cli import main
from attsvm.pipeline.verdict import answer, claims, verdict
from attsvm.report.endings import ENDS, paragraphs


def accuracy(**test):
    return [{"name": name, "test": value} for name, value in test.items()]


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
    "accuracy": accuracy(soft=0.9, mean_pooling=0.9, hard=0.85, random_token=0.6),
    "training": {"best_joint_step": 40, "steps": 400},
}


def changed(**parts):
    results = copy.deepcopy(RESULTS)
    for part, change in parts.items():
        results[part] = change if isinstance(change, list) else {**results[part], **change}
    return results


def verdicts(results):
    return {claim["id"]: claim["verdict"] for claim in claims(results, 100)}


def test_all_claims_hold():
    assert set(verdicts(RESULTS).values()) == {"holds"}
    said = verdict(RESULTS, claims(RESULTS, 100), 100)
    assert said["holds"]
    assert (
        said["sentences"][0]
        == "Yes: 98 of 100 sequences select one token, and the trained direction is 2.6° from the"
        " certified max-margin solution."
    )


@pytest.mark.parametrize(
    ("change", "claim"),
    [
        ({"selection": {"saturated": 94}}, "selection"),
        ({"direction": {"distance": 0.011}}, "direction"),
        ({"direction": {"falling": False}}, "approach"),
        (
            {"accuracy": accuracy(soft=0.88, mean_pooling=0.9, hard=0.85, random_token=0.6)},
            "accuracy",
        ),
        ({"accuracy": accuracy(soft=0.9, mean_pooling=0.9, hard=0.6, random_token=0.6)}, "control"),
    ],
)
def test_each_claim_can_fail_alone(change, claim):
    found = verdicts(changed(**change))
    assert found[claim] == "fails"
    assert [name for name, said in found.items() if said != "holds"] == [claim]


def test_one_point_of_accuracy_is_counted_in_sequences():
    one_less = changed(accuracy=accuracy(soft=0.89, mean_pooling=0.9, hard=0.85, random_token=0.6))
    assert verdicts(one_less)["accuracy"] == "holds"


def test_without_a_certificate_nothing_is_said_of_directions():
    results = changed(margin={"status": "inaccurate", "gap": 0.3})
    found = verdicts(results)
    assert found["certificate"] == "fails"
    assert found["direction"] == found["approach"] == "not applicable"
    said = verdict(results, claims(results, 100), 100)
    assert not said["holds"]
    assert said["sentences"][0].startswith("Undecided: ")
    assert "stopped" in said["sentences"][1]


@pytest.mark.parametrize("status", ["infeasible", "almost infeasible"])
def test_the_soft_margin_is_called_so(status):
    results = changed(
        margin={"hard": False, "hard_status": status},
        direction={"distance": 0.5, "gap": 0.5, "angle_degrees": 60.0},
    )
    said = verdict(results, claims(results, 100), 100)
    assert said["sentences"][0].startswith("Not yet: ")
    assert "soft-margin" in said["sentences"][0]
    assert f"(hard margin {status})" in said["sentences"][-1]
    assert said["sentences"][-1].startswith("No weights ") == (status == "infeasible")
    assert said["ends"] == ["not yet", status]


LP = {"geometry": "lp:1.75", "geometry_title": "ℓ1.75 norm"}
SPEC = {"geometry": "spec", "geometry_title": "spectral norm", "unique": None}


def test_a_strictly_convex_norm_is_judged_by_its_divergence():
    results = changed(
        margin=LP, direction={"measure": "divergence", "distance": 0.004, "gap": 0.02}
    )
    assert verdicts(results)["direction"] == "holds"
    said = verdict(results, claims(results, 100), 100)
    assert said["holds"]
    assert said["sentences"][0].endswith(
        "the trained direction is at a Bregman divergence of 0.004 from the certified max-margin"
        " solution in the ℓ1.75 norm."
    )
    assert "°" not in said["sentences"][0]
    assert (
        verdicts(
            changed(margin=LP, direction={"measure": "divergence", "distance": 0.02, "gap": 1e-3})
        )["direction"]
        == "fails"
    )


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
    said = verdict(results, claims(results, 100), 100)
    assert said["sentences"][0].startswith("Yes: ")
    assert said["sentences"][0].endswith(
        "the trained weights reach 95 % of the certified best margin in the spectral norm."
    )
    assert sentence in said["sentences"][2]
    worse = changed(margin=SPEC, direction={"measure": "margin", "distance": 0.11, "gap": 1e-6})
    assert verdicts(worse)["margin"] == "fails"
    assert verdict(worse, claims(worse, 100), 100)["sentences"][0].startswith("Not yet: ")


@pytest.mark.parametrize(
    ("kind", "others", "said"),
    [
        (
            "text",
            {"mean_pooling": 0.812, "tfidf": 0.764, "majority": 0.5},
            "The chosen word alone is right on 80.1% of held-out texts; all words together 83.6%;"
            " mean pooling 81.2%; TF-IDF with logistic regression 76.4%.",
        ),
        (
            "text",
            {"mean_pooling": 0.6, "tfidf": 0.764, "majority": 0.5},
            "The chosen word alone is right on 80.1% of held-out texts; all words together 83.6%;"
            " TF-IDF with logistic regression 76.4%.",
        ),
        (
            "image",
            {"mean_pooling": 0.6, "majority": 0.91},
            "The chosen patch alone is right on 80.1% of held-out images; all patches together"
            " 83.6%; the more frequent label 91.0%.",
        ),
    ],
)
def test_the_first_sentence_answers_with_the_strongest_baseline(kind, others, said):
    found = accuracy(hard=0.801, soft=0.836, random_token=0.7, extreme_token=0.78, **others)
    assert answer(found, kind) == said
    results = changed(accuracy=found)
    told = verdict(results, claims(results, 100), 100, kind)
    assert told["headline"] == said
    one = kind.replace("text", "word").replace("image", "patch")
    assert f"a random {one} is right on 70.0%, the most extreme {one}" in told["beside"]


@pytest.mark.parametrize("status", ["infeasible", "almost infeasible", "optimal"])
def test_every_end_has_a_paragraph(status):
    hard = status == "optimal"
    soft = {"hard": hard, "hard_status": status}
    results = changed(margin={**SPEC, **soft, "status": "inaccurate", "gap": 0.3})
    told = verdict(results, claims(results, 100), 100)
    assert told["ends"] == (["undecided"] if hard else ["undecided", status])
    (title, paragraph) = paragraphs(told["ends"])[-1]
    page = " ".join((Path(__file__).parents[2] / "docs" / "my-report.md").read_text().split())
    assert title in page
    for name, (title, paragraph) in ENDS.items():
        assert f"## {title}" in page, name
        assert paragraph in page, name


def test_a_solver_that_runs_out_of_time_is_never_hidden(tmp_path, capsys):
    words = [
        "fit",
        "digits",
        "--steps",
        "100",
        "--joint-steps",
        "20",
        "--solve-seconds",
        "1e-9",
        "--quiet",
        "--out",
        str(tmp_path / "run"),
    ]
    assert main(words) == 3
    said = capsys.readouterr().out
    assert "Undecided" in said
    assert "its time was up; more of it (--solve-seconds)" in said
    assert (tmp_path / "run" / "report.html").exists()


def test_defaults_of_the_command_line_and_of_explain_are_one():
    from attsvm.pipeline.settings import FitSettings
    from attsvm.pipeline.trained import limits_of
    from attsvm.sklearn import Limits

    assert limits_of(FitSettings()) == Limits()
