"""Claims: verdicts, assumptions, shares, and what a verdict says it rests on."""

import json
import math

import numpy as np
import pytest

from attsvm.claims import Claim, Evidence, Null, at_least, at_most, between, close_to, true
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
    missing = {"gap": [0.1, math.nan, 0.3, 5.0]}
    assert claim(lambda e: e["gap"], at_most(1.0, "why", share=0.5)).check(missing).measured == 0.3
    assert math.isnan(claim(lambda e: e["gap"], at_most(1.0, "why")).check(missing).measured)


def test_an_expectation_says_its_share():
    assert str(at_most(1.0, "why")) == "at most 1"
    assert str(at_most(1.0, "why", share=0.9)) == "at most 1 in at least 90 % of the instances"


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
        (lambda: claim(None, at_most(1.0, "why")), "claim X1: measure is None; give a function"),
        (
            lambda: Claim("X1", "a statement", "us", abs, at_most(1.0, "why")),
            "claim X1: source is 'us'; use one of 'paper', \"authors' code\", 'recalled', 'ours'",
        ),
    ],
)
def test_a_claim_and_its_threshold_say_what_is_wrong_with_them(make, words):
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


def test_a_failing_verdict_says_of_which_kind_it_is():
    stated = claim(lambda e: e["gap"], at_most(1.0, "why"), failure="scale")
    found = stated.check({"gap": [2.0]})
    assert (found.failure, found.to_json()["failure"]) == ("scale", "scale")
    assert " fails (scale): measured 2" in str(found)
    assert stated.check({"gap": [0.5]}).to_json()["failure"] == ""


def test_explanations_belong_to_failures():
    stated = claim(lambda e: e["gap"], at_most(1.0, "why"), explanation="the step size")
    assert stated.check({"gap": [2.0]}).to_json()["explanation"] == "the step size"
    assert stated.check({"gap": [0.5]}).to_json()["explanation"] == ""
    told = claim(lambda e: e["gap"], at_most(1.0, "w"), explanation=lambda e: f"{e['gap'].max():g}")
    assert told.check({"gap": [2.0]}).explanation == "2"
    assert told.check({"gap": [0.5]}).explanation == ""


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


NULL = Null("a random direction", lambda e: e.but({"gap": e["random"]}))
"""Of gaps that should be small."""


class TestNulls:
    def small(self, **more):
        return claim(lambda e: e["gap"], at_most(0.1, "why"), null=NULL, **more)

    def test_a_claim_holds_where_its_null_fails(self):
        found = self.small().check({"gap": [0.01, 0.02], "random": [0.9, 0.05]})
        assert (found.verdict, found.null.verdict) == ("holds", "fails")
        assert found.to_json()["null"] == {
            "words": "a random direction",
            "measured": 0.9,
            "verdict": "fails",
            "passed": 1,
            "counted": 2,
        }
        assert found.columns == ("gap",), "the evidence is the claim's, not its null's"

    def test_a_claim_whose_null_holds_too_is_not_shown(self):
        found = self.small().check({"gap": [0.01], "random": [0.02]})
        assert (found.verdict, found.null.verdict) == ("not shown", "holds")
        assert str(found).startswith("X1 not shown")

    def test_a_claim_that_fails_fails_whatever_its_null_does(self):
        assert self.small().check({"gap": [0.5], "random": [0.02]}).verdict == "fails"

    def test_a_null_of_missing_numbers_breaks_nothing(self):
        found = self.small().check({"gap": [0.01, 0.02], "random": [0.05, math.nan]})
        assert found.verdict == "not shown"
        assert json.dumps(found.to_json(), allow_nan=False)

    def test_the_same_instances_are_counted(self):
        found = self.small(assumes={"feasible": lambda e: e["ok"]}).check(
            {"gap": [0.01, 0.02], "random": [0.9, 0.05], "ok": [False, True]}
        )
        assert (found.verdict, found.null.counted) == ("not shown", 1)

    def test_a_null_of_another_length_is_an_error(self):
        shorter = Null("fewer", lambda e: e.take([0]))
        with pytest.raises(InputError, match=r"claim X1: its null \(fewer\) speaks of"):
            claim(lambda e: e["gap"], at_most(1.0, "why"), null=shorter).check({"gap": [0.1, 0.2]})

    def test_a_null_says_what_is_broken(self):
        with pytest.raises(InputError, match="a null needs words"):
            Null(" ", lambda e: e)


class TestTrials:
    def verdict(self, gaps, seeds, **more):
        return claim(lambda e: e["gap"], at_most(1.0, "why"), **more).check(
            {"gap": gaps, "seed": seeds}
        )

    def test_rows_of_one_trial_are_counted_once(self):
        found = self.verdict([0.1] * 9, [0, 0, 0, 1, 1, 1, 2, 2, 2])
        assert (found.passed, found.counted, found.trials) == (9, 9, 3)
        low, high = found.share
        assert (low, high) == pytest.approx((0.025 ** (1 / 3), 1.0))  # 9 of 9 of 3 trials

    def test_the_interval_is_that_of_clopper_and_pearson(self):
        from scipy.stats import binomtest

        found = self.verdict([0.1] * 7 + [5.0] * 3, list(range(10)))
        assert found.share == pytest.approx(tuple(binomtest(7, 10).proportion_ci()), rel=1e-9)
        none = self.verdict([5.0] * 4, list(range(4)))
        assert none.share == pytest.approx(tuple(binomtest(0, 4).proportion_ci()), rel=1e-9)

    def test_a_mean_over_trials_is_no_share(self):
        found = claim(lambda e: e["gap"].mean(), at_most(1.0, "why")).check(
            {"gap": [0.1, 0.2], "seed": [0, 1]}
        )
        assert (found.trials, found.share) == (2, None)

    def test_trials_are_those_that_count(self):
        found = self.verdict([0.1, 0.2, 0.3], [0, 1, 2], assumes={"late": lambda e: e["seed"] > 0})
        assert (found.counted, found.trials) == (2, 2)

    def test_several_columns_may_say_which_trial_it_is(self):
        more = {"gap": [0.1] * 4, "seed": [0, 1, 0, 1], "d": [2, 2, 4, 4]}
        stated = claim(lambda e: e["gap"], at_most(1.0, "why"), trials="d seed")
        assert stated.check(more).trials == 4
        assert stated.check({"gap": [0.1]}).trials is None


def by_name(e):
    return {"first": e["a"], "second": e["b"], "none": []}


def test_a_claim_made_of_parts_fails_where_one_does_and_says_which():
    half = claim(by_name, at_most(1.0, "why", share=0.5))
    columns = {"a": [0.1, 0.2], "b": [0.3, 5.0]}
    found = half.check(columns)
    assert (found.verdict, found.failing, found.counted) == ("holds", (), 4)
    assert found.parts == {"first": 0.1, "second": 0.3}
    # Three of five numbers pass, and half of the second part does not.
    found = half.check(columns | {"b": [4.0, 5.0]})
    assert (found.verdict, found.failing, found.measured) == ("fails", ("second",), 4.0)
    assert "fails; second: 4:" in str(found)
    assert found.to_json()["parts"] == {"first": 0.1, "second": 4.0}
    assert found.to_json()["failing"] == ["second"]


def test_each_part_must_fail_on_the_null():
    null = Null("one part alone is broken", lambda e: e.but({"b": e["b"] + 9.0}))
    columns = {"a": [0.1, 0.2], "b": [0.3, 0.4]}
    assert claim(by_name, at_most(1.0, "why"), null=null).check(columns).verdict == "not shown"
    null = Null("both are", lambda e: e.but({"a": e["a"] + 9.0, "b": e["b"] + 9.0}))
    assert claim(by_name, at_most(1.0, "why"), null=null).check(columns).verdict == "holds"


def test_parts_take_their_own_rows():
    with pytest.raises(InputError, match="the assumption 'a' speaks of"):
        claim(by_name, at_most(1.0, "why"), assumes={"a": lambda e: np.ones(4)}).check(
            {"a": [0.1, 0.2], "b": [0.3, 0.4]}
        )
    found = claim(lambda e: {"none": []}, at_most(1.0, "why")).check({"a": [1.0]})
    assert (found.verdict, found.unmet) == ("not applicable", ("any part",))
