"""Nulls: what the ready-made ones break."""

import numpy as np
import pytest

from attsvm.base.errors import InputError
from attsvm.claims import Evidence
from attsvm_papers.kit import (
    at_most,
    at_start,
    claim,
    exchanged,
    mixed_records,
    noise,
    replaced,
    shuffled,
)

TABLE = Evidence(
    {
        "gap": np.array([[3.0, 2.0, 1.0], [6.0, 5.0, 4.0], [9.0, 8.0, 7.0], [2.0, np.nan, 0.0]]),
        "other": np.arange(12.0).reshape(4, 3),
        "rule": np.array(["a", "a", "b", "b"]),
    }
)


@pytest.mark.parametrize(
    ("null", "gap"),
    [
        (replaced("another", gap="other"), TABLE["other"]),
        (replaced("twice", gap=lambda e: 2 * e["gap"]), 2 * TABLE["gap"]),
        (at_start("gap"), np.array([[3.0] * 3, [6.0] * 3, [9.0] * 3, [2.0] * 3])),
        (shuffled("gap"), TABLE["gap"][[2, 3, 0, 1]]),
        (shuffled("gap", within="rule"), TABLE["gap"][[1, 0, 3, 2]]),
    ],
)
def test_what_a_null_puts_in_place(null, gap):
    broken = null.of(TABLE)
    np.testing.assert_array_equal(broken["gap"], gap)
    np.testing.assert_array_equal(broken["other"], TABLE["other"])


def test_rows_go_under_the_name_of_the_other_variant():
    assert exchanged("b for a", "rule", "a", "b").of(TABLE)["rule"].tolist() == ["b", "b", "a", "a"]


def test_random_nulls_are_the_same_every_time_and_stay_where_numbers_are():
    for null in (noise("gap", low=2.0, high=3.0), mixed_records("gap")):
        once, again = null.of(TABLE)["gap"], null.of(TABLE)["gap"]
        np.testing.assert_array_equal(once, again)
        assert np.isnan(once).sum() == 1
        assert not np.array_equal(once, TABLE["gap"], equal_nan=True)
    np.testing.assert_array_equal(
        np.sort(mixed_records("gap").of(TABLE)["gap"][:3]), np.sort(TABLE["gap"][:3])
    )
    drawn = noise("gap", low=2.0, high=3.0).of(TABLE)["gap"]
    assert np.nanmin(drawn) >= 2.0
    assert np.nanmax(drawn) <= 3.0


def test_a_null_of_no_column_is_told():
    with pytest.raises(InputError, match="names no column"):
        at_start()


def test_a_function_is_a_null_by_its_docstring():
    def other_solution(e):
        """The solution of
        another norm.
        """
        return e.but({"gap": e["other"]})

    @claim(at_most(1.0, "a bound"), null=other_solution)
    def C1(e):
        """The last gap is small."""
        return e["gap"][:3, -1]

    assert C1.claims[0].null.words == "The solution of another norm"
    with pytest.raises(InputError, match="a null needs words"):
        claim(at_most(1.0, "a bound"), null=lambda e: e)(lambda e: e["gap"])
