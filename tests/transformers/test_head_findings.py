"""Intervals of the excess, by hand."""

from __future__ import annotations

import math
import sys
from dataclasses import replace

import pytest

from attsvm import InputError
from attsvm.transformers import Audit, Comparison

NULLS = {"heads": (0.1, 0.2), "permuted": (0.2, 0.3, 0.4)}
FIT = Comparison("fro", "optimal", 100, 0.5, 0.3, NULLS, (0.5, 0.5, 0.5), 0.9, 0.4, 1e-10)


def test_the_strictest_null_is_the_one_with_the_largest_mean() -> None:
    assert FIT.strictest == "permuted"
    assert FIT.null() == pytest.approx(0.3)
    assert FIT.excess == pytest.approx(0.2)
    none = replace(FIT, nulls={})
    assert none.strictest is None
    assert all(math.isnan(each) for each in (none.null(), *none.interval()))


def test_an_interval_by_hand() -> None:
    """Variance .01 of three draws and none over texts: two degrees of freedom, t = 4.3027."""
    half = 4.302653 * math.sqrt(0.01 * (1 + 1 / 3))
    assert FIT.interval() == pytest.approx((0.2 - half, 0.2 + half), rel=1e-6)
    texts = replace(FIT, resampled=(0.4, 0.5, 0.6))  # variance .01 as well
    spread = 0.01 + 0.01 * 4 / 3
    freedom = spread**2 / (0.01**2 / 2 + (0.01 * 4 / 3) ** 2 / 2)
    assert freedom == pytest.approx(3.92)
    low, high = texts.interval()
    assert high - low == pytest.approx(2 * 2.7973 * math.sqrt(spread), rel=1e-3)
    inner = texts.interval(0.5)
    assert low < inner[0] < 0.2 < inner[1] < high
    assert all(math.isnan(end) for end in replace(FIT, resampled=(0.5,)).interval())
    with pytest.raises(InputError, match="level is 95; it must lie between 0 and 1"):
        FIT.interval(95)


def test_a_table_without_pandas_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(InputError, match="pip install pandas"):
        Audit([], None, 0.5).to_pandas()
