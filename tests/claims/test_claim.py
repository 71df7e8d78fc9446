"""Claims: verdicts, assumptions, shares, and what a verdict says it rests on."""

import json
import math

import numpy as np
import pytest

from attsvm.base.errors import InputError
from attsvm.claims import Claim, Evidence, Null, at_least, at_most, between, close_to, true

NAN = math.nan
SMALL = at_most(1.0, "why")


def claim(expect=SMALL, measure=lambda e: e["gap"], **more):
    return Claim("X1", "a statement", "ours", measure, expect, **more)


@pytest.mark.parametrize(
    ("expect", "gaps", "verdict", "measured"),
    [
        (SMALL, [0.1, 0.2, 0.3, 5.0], "fails", 5.0),
        (at_most(1.0, "why", share=0.75), [0.1, 0.2, 0.3, 5.0], "holds", 0.3),
        (at_most(1.0, "why", share=0.76), [0.1, 0.2, 0.3, 5.0], "fails", 5.0),
        (at_least(0.15, "why"), [0.1, 0.2, 0.3, 5.0], "fails", 0.1),
        (close_to(0.2, 0.5, "why"), [0.1, 0.2, 0.3, 5.0], "fails", 5.0),
        (between(1, 2, "why"), [1.0, 2.0], "holds", 2.0),
        (true("why"), [True, True], "holds", 1.0),
        (true("why"), [True, False], "fails", 0.0),
        (SMALL, [0.1, NAN], "fails", NAN),  # NaN never passes
        (at_most(1.0, "why", share=0.5), [0.1, NAN, 0.3, 5.0], "holds", 0.3),
    ],
)
def test_a_verdict_and_the_value_that_decides_it(expect, gaps, verdict, measured):
    found = claim(expect).check({"gap": gaps})
    assert found.verdict == verdict
    assert found.measured == pytest.approx(measured, nan_ok=True)
    assert (found.counted, found.passed) == (len(gaps), int(expect.passes(gaps).sum()))
    entry = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert {"id", "statement", "source", "measured", "threshold", "verdict"} <= set(entry)
    assert entry["measured"] == (None if math.isnan(found.measured) else found.measured)


@pytest.mark.parametrize(
    ("expect", "words", "number"),
    [
        (at_most(1.0, "why"), "at most 1", 1.0),
        (at_least(1.0, "why"), "at least 1", 1.0),
        (between(1.0, 2.0, "why"), "from 1 to 2", [1.0, 2.0]),
        (at_most(1.0, "why", share=0.9), "at most 1 in at least 90 % of the instances", 1.0),
    ],
)
def test_an_expectation_in_words_and_as_a_number(expect, words, number):
    assert (str(expect), expect.threshold) == (words, number)


PAIR = {"gap": [0.1, 9.0], "a": [True, False], "b": [False, True], "never": [False, False]}


def nothing(e):
    raise AssertionError("there is nothing to measure")


@pytest.mark.parametrize(
    ("assumed", "measure", "verdict", "counted", "unmet"),
    [
        ("a", lambda e: e["gap"], "holds", 1, ()),  # instances that miss it are not counted
        ("a b", lambda e: e["gap"], "not applicable", 0, ("a", "b")),  # they exclude each other
        ("never", nothing, "not applicable", 0, ("never",)),
        ("enough", nothing, "not applicable", 0, ("enough",)),  # one condition for all instances
        ("", lambda e: {"none": []}, "not applicable", 0, ("any part",)),
    ],
)
def test_assumptions(assumed, measure, verdict, counted, unmet):
    def condition(name):
        return lambda e: e.rows > 5 if name == "enough" else e[name]

    assumes = {name: condition(name) for name in assumed.split()}
    found = claim(measure=measure, assumes=assumes).check(PAIR)
    assert (found.verdict, found.counted, found.unmet) == (verdict, counted, unmet)
    assert all(name in str(found) for name in unmet)
    if counted:
        assert found.columns == ("a", "gap")


def by_name(e):
    return {"first": e["a"], "second": e["b"], "none": []}


TWO = {"a": [0.1, 0.2], "b": [0.3, 0.4]}


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: at_most(1.0, "  "), "needs its reason"),
        (lambda: at_most(1.0, "why", share=0.0), "share is 0.0"),
        (lambda: at_most(1.0, "why", share=1.5), "share is 1.5"),
        (lambda: between(2.0, 1.0, "why"), "low <= high"),
        (lambda: at_most(NAN, "why"), "low <= high"),
        (lambda: claim(measure=None), "claim X1: measure is None; give a function"),
        (
            lambda: Claim("X1", "a statement", "us", abs, SMALL),
            "claim X1: source is 'us'; use one of 'paper', \"authors' code\", 'recalled', 'ours'",
        ),
        (lambda: Null(" ", lambda e: e), "a null needs words"),
        (
            lambda: claim(null=Null("fewer", lambda e: e.take([0]))).check({"gap": [0.1, 0.2]}),
            r"claim X1: its null \(fewer\) speaks of",
        ),
        (
            lambda: claim(assumes={"a": lambda e: np.ones(3)}).check({"gap": [0.1, 0.2]}),
            "claim X1: the assumption 'a' speaks of",
        ),
        (
            lambda: claim(measure=by_name, assumes={"a": lambda e: np.ones(4)}).check(TWO),
            "the assumption 'a' speaks of",
        ),
        (
            lambda: Evidence.concatenate([{"W": np.zeros((2, 3))}, {"W": np.zeros((2, 4))}]),
            "column 'W' has rows of shapes",
        ),
        (lambda: Evidence({"a": [1, 2], "b": [1]}), "one row per trial"),
        (lambda: Evidence({"gap": [1]})["gpa"], "no column 'gpa' in the evidence; there are: gap"),
        (lambda: Evidence({"n": [4]}).where(n=5), "no trial has n=5"),
        (lambda: Evidence({"step": [[0, 5]]}).at("step", 3), "3 is none of the recorded steps"),
    ],
)
def test_what_is_wrong_is_said(make, words):
    with pytest.raises(InputError, match=words):
        make()


def test_a_failing_verdict_says_of_which_kind_it_is_and_why():
    stated = claim(failure="scale", explanation="the step size")
    found = stated.check({"gap": [2.0]})
    assert (found.failure, found.explanation) == ("scale", "the step size")
    assert str(found) == "X1 fails (scale): measured 2, expected at most 1. a statement"
    found = stated.check({"gap": [0.5]})
    assert (found.failure, found.explanation) == ("", "")
    told = claim(explanation=lambda e: f"{e['gap'].max():g}")
    assert told.check({"gap": [2.0]}).explanation == "2"
    assert told.check({"gap": [0.5]}).explanation == ""


def test_evidence_is_joined_picked_and_grouped():
    parts = [{"n": [4, 4], "gap": [0.1, 0.2], "kind": ["a", "b"]}, {"n": [8], "gap": [0.3]}]
    table = Evidence.concatenate([*parts, {"n": [8]}])
    assert table.rows == 4
    assert table.where(n=4)["gap"].tolist() == [0.1, 0.2]
    assert np.isnan(table["gap"][3])
    assert table.levels("n") == [4, 8]
    assert table.levels("kind") == ["a", "b"]  # rows without a word do not count
    assert [group["gap"].tolist() for group in table.by("n kind")] == [[0.1], [0.2]]
    assert [group.rows for group in table.by("n")] == [2, 2]
    assert table.by("") == [table]
    assert table.words() == {"kind": ["", "a", "b"]}
    assert table.arrays()["kind"].tolist() == [1, 2, 0, 0]
    course = Evidence({"step": [[0, 5], [0, 5]], "gap": [[0.5, 0.1], [0.6, 0.2]]})
    assert course.at("gap", 0).tolist() == [0.5, 0.6]
    assert course.end("gap").tolist() == [0.1, 0.2]


def test_an_interval_is_the_one_of_student():
    from scipy.stats import t

    slopes = np.array([-0.9, -1.1, -1.0, -0.95])
    found = claim(interval=True).check({"gap": slopes})
    low, high = t.interval(0.95, 3, loc=slopes.mean(), scale=slopes.std(ddof=1) / 2)
    assert found.interval == pytest.approx((low, high), rel=1e-12)
    assert found.to_json()["interval"] == [*found.interval]
    assert claim().check({"gap": slopes}).interval is None
    for some, known in ((slopes[:2], True), (slopes[:1], False), (np.array([0.1, NAN]), False)):
        assert (claim(interval=True).check({"gap": some}).interval is not None) == known


NULL = Null("a random direction", lambda e: e.but({"gap": e["random"]}))


@pytest.mark.parametrize(
    ("gaps", "random", "verdict", "null"),
    [
        ([0.01, 0.02], [0.9, 0.05], "holds", "fails"),
        ([0.01, 0.02], [0.05, 0.02], "not shown", "holds"),
        ([0.50, 0.02], [0.05, 0.02], "fails", "holds"),
        ([0.01, 0.02], [0.05, NAN], "not shown", "holds"),  # a missing number breaks nothing
    ],
)
def test_a_claim_holds_where_its_null_fails(gaps, random, verdict, null):
    found = claim(at_most(0.1, "why"), null=NULL).check({"gap": gaps, "random": random})
    assert (found.verdict, found.null.verdict) == (verdict, null)
    assert str(found).startswith(f"X1 {verdict}")
    entry = json.loads(json.dumps(found.to_json(), allow_nan=False))["null"]
    assert (entry["words"], entry["verdict"]) == ("a random direction", null)
    if null == "fails":
        assert (entry["measured"], entry["passed"], entry["counted"]) == (0.9, 1, 2)
    assert found.columns == ("gap",)  # the evidence is the claim's, not its null's


def test_a_claim_and_its_null_count_the_same_instances():
    stated = claim(at_most(0.1, "why"), null=NULL, assumes={"feasible": lambda e: e["ok"]})
    found = stated.check({"gap": [0.01, 0.02], "random": [0.9, 0.05], "ok": [False, True]})
    assert (found.verdict, found.null.counted) == ("not shown", 1)


def test_independent_trials_are_counted_once():
    """The interval of the share is that of Clopper and Pearson."""
    from scipy.stats import binomtest

    for gaps, seeds, share in (
        ([0.1] * 9, [0, 0, 0, 1, 1, 1, 2, 2, 2], (3, 3)),
        ([0.1] * 7 + [5.0] * 3, range(10), (7, 10)),
        ([5.0] * 4, range(4), (0, 4)),
    ):
        found = claim().check({"gap": gaps, "seed": list(seeds)})
        assert (found.counted, found.trials) == (len(gaps), share[1])
        assert found.share == pytest.approx(tuple(binomtest(*share).proportion_ci()), rel=1e-9)
    mean = claim(measure=lambda e: e["gap"].mean())
    found = mean.check({"gap": [0.1, 0.2], "seed": [0, 1]})
    assert (found.trials, found.share) == (2, None)  # a mean over trials is no share
    late = claim(assumes={"late": lambda e: e["seed"] > 0})
    assert late.check({"gap": [0.1, 0.2, 0.3], "seed": [0, 1, 2]}).trials == 2
    several = claim(trials="d seed")
    more = {"gap": [0.1] * 4, "seed": [0, 1, 0, 1], "d": [2, 2, 4, 4]}
    assert several.check(more).trials == 4
    assert several.check({"gap": [0.1]}).trials is None


def test_a_claim_about_some_rows_counts_the_trials_among_them():
    """Assumptions speak of these rows; the null breaks the whole and is measured on them."""
    gaps = {"part": ["a", "a", "a", "b"], "seed": [0, 1, 2, 3], "gap": [0.1, 0.2, 5.0, 5.0]}
    swapped = Null("rows the other way round", lambda e: e.but({"gap": e["gap"][::-1]}))
    early = {"early": lambda e: e["seed"] < 2}
    found = claim(where={"part": "a"}, assumes=early, null=swapped).check(gaps)
    assert (found.verdict, found.counted, found.trials) == ("holds", 2, 2)
    assert (found.null.measured, found.null.passed) == (5.0, 0)
    nowhere = claim(where={"part": "c"}).check(gaps)
    assert (nowhere.verdict, nowhere.unmet) == ("not applicable", ("part = c",))


def test_a_claim_made_of_parts_fails_where_one_does_and_says_which():
    half = claim(at_most(1.0, "why", share=0.5), by_name)
    found = half.check({"a": [0.1, 0.2], "b": [0.3, 5.0]})
    assert (found.verdict, found.failing, found.counted) == ("holds", (), 4)
    assert found.worst_values == {"first": 0.1, "second": 0.3}
    # Three of five numbers pass, and half of the second part does not.
    found = half.check({"a": [0.1, 0.2], "b": [4.0, 5.0]})
    assert (found.verdict, found.failing, found.measured) == ("fails", ("second",), 4.0)
    assert found.short == "fails; second"
    assert "fails; second: 4:" in str(found)
    assert found.to_json()["parts"] == {"first": 0.1, "second": 4.0}
    assert found.to_json()["failing"] == ["second"]


def test_each_part_must_fail_on_the_null():
    null = Null("one part alone is broken", lambda e: e.but({"b": e["b"] + 9.0}))
    assert claim(measure=by_name, null=null).check(TWO).verdict == "not shown"
    null = Null("both are", lambda e: e.but({"a": e["a"] + 9.0, "b": e["b"] + 9.0}))
    assert claim(measure=by_name, null=null).check(TWO).verdict == "holds"


@pytest.mark.parametrize(
    ("passing", "trials", "verdict"),
    [
        (20, 20, "holds"),
        (19, 20, "holds"),  # no half of 10 has two failing ones
        (18, 20, "undecided"),  # 24 % of the halves have both
        (16, 20, "undecided"),  # 30 % have one or none
        (13, 20, "fails"),
        (9, 10, "undecided"),
        (1, 1, "undecided"),  # one trial says nothing of nine in ten
    ],
)
def test_a_share_near_its_threshold_is_undecided(passing, trials, verdict):
    """Halves of n trials of which m fail have a hypergeometric number of failing ones."""
    gaps = np.where(np.arange(trials) < passing, 0.05, 0.5)
    judged = claim(at_most(0.1, "why", share=0.9)).check({"gap": gaps, "seed": range(trials)})
    assert judged.verdict == verdict
    assert (judged.failure, judged.explanation) == ("", "") or verdict == "fails"
    if verdict == "undecided" and trials > 1:
        assert f"{judged.halves[0]} of 40 halves of the trials hold" in str(judged)


def test_a_counterexample_decides_and_a_mean_near_its_threshold_does_not():
    gaps, seeds = np.array([0.0, 0.05, 0.12, 0.2]), range(4)
    assert claim(at_most(0.1, "why")).check({"gap": gaps, "seed": seeds}).verdict == "fails"
    of_mean = claim(at_most(0.1, "why"), measure=lambda e: e["gap"].mean())
    assert of_mean.check({"gap": gaps, "seed": seeds}).verdict == "undecided"  # .0925
    assert of_mean.check({"gap": gaps / 3, "seed": seeds}).verdict == "holds"
    assert of_mean.check({"gap": gaps}).verdict == "holds"  # nothing says what a trial is


def test_halves_are_of_the_trials_of_the_claim():
    """Rows of no trial are in all of them."""
    table = {
        "part": ["a"] * 5 + ["b"] * 40,
        "seed": [*range(4), np.nan, *range(40)],
        "gap": [0.05] * 45,
    }
    rows = []

    def measure(e):
        rows.append((e.rows, int(np.isnan(e["seed"]).sum())))
        return e["gap"]

    assert claim(measure=measure, where={"part": "a"}).check(table).halves == (40, 40)
    assert set(rows) == {(5, 1), (3, 1)}


def test_halves_on_which_nothing_can_be_measured_say_nothing():
    def of_all(e):
        if e.rows < 4:
            raise ValueError("too few")
        return e["gap"].mean()

    judged = claim(at_most(0.1, "why"), measure=of_all).check(
        {"gap": [0.0, 0.3, 0, 0], "seed": range(4)}
    )
    assert (judged.verdict, judged.halves) == ("holds", (0, 0))


def test_a_verdict_prints_its_interval_or_why_it_has_none():
    claim = Claim("A1", "Small gaps.", "ours", lambda e: e["gap"], at_most(0.1, "."))
    gaps = np.full(20, 0.05)
    assert "95 % interval of the share 0.83 to 1.00" in str(
        claim.check({"gap": gaps, "seed": np.arange(20)})
    )
    assert "no interval: no column 'seed' tells independent trials apart" in str(
        claim.check({"gap": gaps})
    )


def test_a_verdict_is_a_row_of_a_data_frame_and_of_a_latex_table():
    pytest.importorskip("pandas")
    claim = Claim("A_1", "50 % are small.", "ours", lambda e: e["gap"], at_most(0.1, "."))
    verdict = claim.check({"gap": [0.05, 0.02]})
    frame = verdict.to_frame()
    assert len(frame) == 1
    assert frame["verdict"][0] == verdict.verdict
    assert verdict.to_latex().startswith(r"A\_1 & 50 \% are small. & 0.05 & at most 0.1 & 2 of 2")


RECORDED = {"step": [[1, 10], [1, 10]], "gap": [[0.5, 0.1], [0.6, 0.2]]}


def test_a_claim_about_a_step_that_was_not_recorded_is_not_applicable():
    verdict = claim(measure=lambda e: e.at("gap", 1000)).check(RECORDED)
    assert (verdict.verdict, verdict.unmet) == ("not applicable", ("a record of step 1000",))
    assert claim(measure=lambda e: e.at("gap", 10)).check(RECORDED).verdict == "holds"
    null = Null("later", lambda e: e.but({"gap": e.at("gap", 20)}))
    assert claim(measure=lambda e: e.end("gap"), null=null).check(RECORDED).unmet == (
        "a record of step 20",
    )


def test_the_nearest_record_stands_in_only_where_it_is_asked_for_and_is_noted():
    with pytest.raises(InputError, match="1000 is none of the recorded steps"):
        Evidence(RECORDED).at("gap", 1000)
    evidence = Evidence(RECORDED).with_nearest_steps()
    assert evidence.take([1]).at("gap", 1000).tolist() == [0.2]
    assert evidence.at("gap", 1).tolist() == [0.5, 0.6]
    assert evidence.replaced_steps == {1000: 10}
