"""Claims: verdicts, assumptions, shares, and what a verdict says it rests on."""

import json
import math

import numpy as np
import pytest

from attsvm.claims import Claim, Evidence, at_least, at_most, between, close_to, true
from attsvm.errors import InputError


def claim(measure, expect, **more):
    return Claim("X1", "a statement", "ours", measure, expect, **more)


def test_every_instance_must_pass_unless_a_share_is_stated():
    gaps = {"gap": [0.1, 0.2, 0.3, 5.0]}
    assert claim(lambda e: e["gap"], at_most(1.0, "why")).check(gaps).verdict == "fails"
    assert claim(lambda e: e["gap"], at_most(1.0, "why", share=0.75)).check(gaps).verdict == "holds"
    assert claim(lambda e: e["gap"], at_most(1.0, "why", share=0.76)).check(gaps).verdict == "fails"


def test_the_measured_value_is_the_one_that_decides():
    gaps = {"gap": [0.1, 0.2, 0.3, 5.0]}
    assert claim(lambda e: e["gap"], at_most(1.0, "why")).check(gaps).measured == 5.0
    assert claim(lambda e: e["gap"], at_most(1.0, "why", share=0.75)).check(gaps).measured == 0.3
    assert claim(lambda e: e["gap"], at_least(0.15, "why")).check(gaps).measured == 0.1
    assert claim(lambda e: e["gap"], close_to(0.2, 0.5, "why")).check(gaps).measured == 5.0


def test_nan_never_passes():
    verdict = claim(lambda e: e["gap"], at_most(1.0, "why")).check({"gap": [0.1, math.nan]})
    assert verdict.verdict == "fails"
    assert verdict.passed == 1
    assert json.dumps(verdict.to_json(), allow_nan=False)


def test_instances_that_miss_an_assumption_are_not_counted():
    evidence = {"gap": [0.1, 9.0], "feasible": [True, False]}
    found = claim(
        lambda e: e["gap"], at_most(1.0, "why"), assumes={"feasible": lambda e: e["feasible"]}
    ).check(evidence)
    assert (found.verdict, found.counted) == ("holds", 1)
    assert found.columns == ("feasible", "gap")


def test_a_claim_without_instances_is_not_applicable():
    evidence = {"gap": [0.1, 9.0], "feasible": [False, False]}
    found = claim(
        lambda e: e["gap"], at_most(1.0, "why"), assumes={"it is feasible": lambda e: e["feasible"]}
    ).check(evidence)
    assert found.verdict == "not applicable"
    assert found.unmet == ("it is feasible",)
    assert "it is feasible" in str(found)


def test_assumptions_that_exclude_each_other_leave_nothing():
    evidence = {"gap": [0.1, 9.0], "a": [True, False], "b": [False, True]}
    found = claim(
        lambda e: e["gap"],
        at_most(1.0, "why"),
        assumes={"a": lambda e: e["a"], "b": lambda e: e["b"]},
    ).check(evidence)
    assert found.verdict == "not applicable"
    assert found.unmet


def test_one_condition_may_speak_for_all_instances():
    found = claim(
        lambda e: e["gap"], at_most(1.0, "why"), assumes={"enough": lambda e: e.rows > 5}
    ).check({"gap": [0.1]})
    assert found.verdict == "not applicable"


def test_what_applies_nowhere_is_not_measured():
    def measure(e):
        raise AssertionError("there is nothing to measure")

    found = claim(measure, at_most(1.0, "why"), assumes={"enough": lambda e: e.rows > 5}).check(
        {"gap": [0.1]}
    )
    assert (found.verdict, found.unmet) == ("not applicable", ("enough",))


def test_a_condition_of_another_length_is_an_error():
    with pytest.raises(InputError, match="claim X1: the assumption 'a' speaks of"):
        claim(lambda e: e["gap"], at_most(1.0, "why"), assumes={"a": lambda e: np.ones(3)}).check(
            {"gap": [0.1, 0.2]}
        )


def test_booleans_and_intervals():
    assert claim(lambda e: e["ok"], true("why")).check({"ok": [True, True]}).verdict == "holds"
    assert claim(lambda e: e["ok"], true("why")).check({"ok": [True, False]}).verdict == "fails"
    assert claim(lambda e: e["x"], between(1, 2, "why")).check({"x": [1.0, 2.0]}).verdict == "holds"


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: at_most(1.0, "  "), "needs its reason"),
        (lambda: at_most(1.0, "why", share=0.0), "share is 0.0"),
        (lambda: at_most(1.0, "why", share=1.5), "share is 1.5"),
        (lambda: between(2.0, 1.0, "why"), "low <= high"),
        (lambda: at_most(math.nan, "why"), "low <= high"),
    ],
)
def test_a_threshold_says_what_is_wrong_with_it(make, words):
    with pytest.raises(InputError, match=words):
        make()


def test_json_of_a_verdict_is_what_the_run_file_promises():
    entry = (
        claim(lambda e: e["gap"], at_most(1.0, "why"), reference="P2")
        .check({"gap": [2.0]})
        .to_json()
    )
    assert {"id", "statement", "source", "measured", "threshold", "verdict"} <= set(entry)
    assert entry["threshold"] == 1.0
    assert entry["measured"] == 2.0


def test_explanations_belong_to_failures():
    stated = claim(lambda e: e["gap"], at_most(1.0, "why"), explanation="the step size")
    assert stated.check({"gap": [2.0]}).to_json()["explanation"] == "the step size"
    assert stated.check({"gap": [0.5]}).to_json()["explanation"] == ""


class TestEvidence:
    def test_rows_of_parts_are_put_below_each_other(self):
        table = Evidence.concatenate([{"n": [4, 4], "gap": [0.1, 0.2]}, {"n": [8], "gap": [0.3]}])
        assert table.rows == 3
        assert table.where(n=4)["gap"].tolist() == [0.1, 0.2]
        assert table.levels("n") == [4, 8]

    def test_a_column_that_a_part_lacks_is_nan_there(self):
        table = Evidence.concatenate([{"n": [4], "gap": [0.1]}, {"n": [8]}])
        assert np.isnan(table.where(n=8)["gap"]).all()

    def test_rows_of_different_shapes_are_an_error(self):
        with pytest.raises(InputError, match="column 'W' has rows of shapes"):
            Evidence.concatenate([{"W": np.zeros((2, 3))}, {"W": np.zeros((2, 4))}])

    def test_columns_of_different_lengths_are_an_error(self):
        with pytest.raises(InputError, match="one row per trial"):
            Evidence({"a": [1, 2], "b": [1]})

    def test_a_missing_column_is_named_with_those_there_are(self):
        with pytest.raises(InputError, match="no column 'gpa' in the evidence; there are: gap"):
            Evidence({"gap": [1]})["gpa"]

    def test_a_filter_that_keeps_nothing_is_an_error(self):
        with pytest.raises(InputError, match="no trial has n=5"):
            Evidence({"n": [4]}).where(n=5)


def test_an_interval_is_the_one_of_student():
    from scipy.stats import t

    slopes = np.array([-0.9, -1.1, -1.0, -0.95])
    found = claim(lambda e: e["slope"], at_most(0.0, "why"), interval=True).check({"slope": slopes})
    low, high = t.interval(0.95, 3, loc=slopes.mean(), scale=slopes.std(ddof=1) / 2)
    assert found.interval == pytest.approx((low, high), rel=1e-12)
    assert found.to_json()["interval"] == [*found.interval]
    assert (
        claim(lambda e: e["slope"], at_most(0.0, "why")).check({"slope": slopes}).interval is None
    )
    assert (
        claim(lambda e: e["slope"], at_most(0.0, "why"), interval=True)
        .check({"slope": slopes[:1]})
        .interval
        is None
    )
