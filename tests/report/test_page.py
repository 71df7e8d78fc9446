"""Words of a page about its claims."""

import pytest

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
