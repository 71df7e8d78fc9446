"""Words of a page about its claims."""

import pytest

from attsvm.report.page import tally
from attsvm_papers.runs.gallery import write_experiment, write_index


@pytest.mark.parametrize(
    ("verdicts", "words"),
    [
        ([], ""),
        (["holds", "fails", "holds"], "2 of 3 claims hold"),
        (["holds", "not applicable", "not applicable"], "1 of 1 claims hold, 2 not applicable"),
        (["not applicable"], "1 not applicable"),
        (["holds", "not shown"], "1 of 2 claims hold, 1 not shown"),
        (["holds", "undecided", "fails"], "1 of 2 claims hold, 1 undecided"),
    ],
)
def test_claims_that_do_not_apply_are_counted_apart(verdicts, words):
    assert tally([{"verdict": verdict} for verdict in verdicts]) == words


CLAIM = dict.fromkeys(("statement", "source", "reference", "explanation", "reason"), "")
CLAIM |= {"id": "T1", "expectation": "at most 0.01", "verdict": "holds", "unmet": []}
CLAIM |= {"measured": 0.004, "counted": 40, "passed": 40, "trials": 20, "share": [0.832, 1.0]}
CLAIM |= {"interval": None}
WORDS = ("title", "paper_title", "protocol", "reference", "notes", "attsvm")


def pages(folder, claims, words="", **named):
    """Page and index of an experiment with these claims, in these words."""
    run = dict.fromkeys(WORDS, words) | {"parameters": {}, "environment": {}} | named
    run |= {"id": "x-1", "scale": "smoke", "trials": 1, "seconds": 1.0, "first_seed": 10_000}
    run |= {"claims": claims}
    (folder / "x-1").mkdir()
    write_experiment(folder / "x-1", run, [])
    write_index(folder, [run])
    paths = folder / "x-1" / "report.html", folder / "index.html"
    return [path.read_text(encoding="utf-8") for path in paths]


def test_every_page_has_a_policy_and_nothing_that_steers(tmp_path):
    steering = "\x00\x1b[31m\x9b\u202e<script>"
    named = {"parameters": {steering: steering}, "environment": {steering: steering}}
    told = ("statement", "reference", "explanation", "expectation", "reason")
    claim = {**CLAIM, **dict.fromkeys(told, steering)}
    for text in pages(tmp_path, [claim], steering, **named):
        assert "default-src 'none'" in text.replace("&#39;", "'")
        assert not set(text) & {"\x00", "\x1b", "\x9b", "\u202e"}
        assert "<script" not in text


def test_an_undecided_claim_says_how_many_halves_hold(tmp_path):
    page, index = pages(tmp_path, [{**CLAIM, "verdict": "undecided", "halves": [24, 40]}])
    assert "24 of 40 halves of the trials hold" in page
    assert "1 undecided" in page
    assert "1 claim undecided" in index


def test_a_null_stands_beside_its_claim(tmp_path):
    null = {"words": "a random direction", "measured": 0.98, "passed": 1, "counted": 40}
    claims = [
        {**CLAIM, "null": {**null, "verdict": "fails"}},
        {**CLAIM, "verdict": "not shown", "null": {**null, "verdict": "holds"}},
        {**CLAIM, "null": None},
    ]
    page, index = pages(tmp_path, claims)
    assert "null: a random direction, 0.980 (1 of 40 pass): fails, as it must" in page
    assert "null: a random direction, 0.980 (1 of 40 pass): holds too" in page
    assert page.count("no null") == 2
    assert "1 claim has no null yet" in page
    assert "95 % interval 83.2\u202f% to 100\u202f%, 20 trials" in page
    assert "1 claim not shown, because its null holds too" in index
    assert "(1 without a null)" in index
