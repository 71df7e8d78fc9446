from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attsvm.report import printing

T = printing.THIN


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (3.0e-5, f"3.0{T}×{T}10⁻⁵"),
        (-3.0e-5, f"−3.0{T}×{T}10⁻⁵"),
        (1e-9, f"1.0{T}×{T}10⁻⁹"),
        (0.0131752, "0.0132"),
        (9.996, "10.0"),
        (999.96, "1000"),
        (0.0, "0"),
        (12345.6, f"12{T}346"),
        (4.2e11, f"4.2{T}×{T}10¹¹"),
        (None, "–"),
        (math.nan, "–"),
        (math.inf, "∞"),
        (-math.inf, "−∞"),
        ("text", "–"),
    ],
)
def test_number(value: object, text: str) -> None:
    assert printing.number(value) == text


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (1.0, f"100{T}%"),
        (0.0, f"0{T}%"),
        (0.99996, f">99.9{T}%"),
        (0.0004, f"<0.1{T}%"),
        (0.9639, f"96.4{T}%"),
        (-0.12, f"−12.0{T}%"),
        (None, "–"),
    ],
)
def test_percent_never_rounds_to_certainty(share: object, text: str) -> None:
    assert printing.percent(share) == text


@given(st.floats(min_value=0, max_value=1))
def test_percent_says_100_and_0_only_when_exact(share: float) -> None:
    text = printing.percent(share)
    assert (text == f"100{T}%") == (100.0 * share == 100.0)
    assert (text == f"0{T}%") == (share == 0.0)


@given(st.floats(min_value=-1e300, max_value=1e300))
def test_number_keeps_its_value(value: float) -> None:
    text = printing.number(value)
    plain = (
        text.replace("−", "-").replace(T, "").translate(str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-"))
    )
    assert float(plain.replace("×10", "e")) == pytest.approx(
        value, rel=0.06 if "×" in plain else 0.006, abs=0
    )


def test_counts_are_grouped_from_five_digits_on() -> None:
    assert [printing.count(n) for n in (0, 1797, 60_000, -1_234_567)] == [
        "0",
        "1797",
        f"60{T}000",
        f"−1{T}234{T}567",
    ]


def test_plain() -> None:
    assert printing.plain({"min": 1, "max": None}) == "min 1, max –"
    assert [printing.plain(value) for value in (True, [0.5, 2.0], "x", 1e-9)] == [
        "yes",
        "0.5, 2",
        "x",
        f"1.0{T}×{T}10⁻⁹",
    ]


def test_degrees() -> None:
    assert [printing.degrees(angle) for angle in (4.41, 4.6e-4, None)] == [
        "4.4°",
        f"4.6{T}×{T}10⁻⁴ degrees",
        "–",
    ]
