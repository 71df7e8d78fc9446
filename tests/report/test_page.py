"""Words of a page about its claims."""

import pytest

from attsvm.report.gallery import write_experiment, write_index
from attsvm.report.page import tally


@pytest.mark.parametrize(
    ("verdicts", "words"),
    [
        ([], ""),
        (["holds", "fails", "holds"], "2 of 3 claims hold"),
        (["holds", "not applicable", "not applicable"], "1 of 1 claims hold, 2 not applicable"),
        (["not applicable"], "1 not applicable"),
    ],
)
def test_claims_that_do_not_apply_are_counted_apart(verdicts, words):
    assert tally([{"verdict": verdict} for verdict in verdicts]) == words


@pytest.mark.parametrize("page", ["report.html", "../index.html"])
def test_every_page_has_a_policy_and_nothing_that_steers(page, tmp_path):
    steering = "\x00\x1b[31m\x9b\u202e<script>"
    claim = {
        "id": "a",
        "statement": steering,
        "source": "ours",
        "reference": steering,
        "explanation": steering,
        "measured": 1.0,
        "counted": 1,
        "passed": 1,
        "interval": None,
        "expectation": steering,
        "reason": steering,
        "verdict": "holds",
        "unmet": [],
    }
    names = ("title", "paper_title", "protocol", "reference", "notes", "attsvm")
    run = {
        **dict.fromkeys(names, steering),
        "id": "x-1",
        "scale": "smoke",
        "trials": 1,
        "seconds": 1.0,
        "parameters": {steering: steering},
        "environment": {steering: steering},
        "claims": [claim],
    }
    (tmp_path / "x-1").mkdir()
    write_experiment(tmp_path / "x-1", run, [])
    write_index(tmp_path, [run])
    text = (tmp_path / "x-1" / page).resolve().read_text(encoding="utf-8")
    assert "default-src 'none'" in text.replace("&#39;", "'")
    assert not set(text) & {"\x00", "\x1b", "\x9b", "\u202e"}
    assert "<script" not in text
