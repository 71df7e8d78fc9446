"""Names lead to norms and back."""

from __future__ import annotations

from math import inf

import pytest

from attsvm.errors import InputError
from attsvm.geometry import (
    Frobenius,
    Lp,
    MaxRow,
    Norm,
    Nuclear,
    Rows,
    Schatten,
    Spectral,
    norm_names,
    parse_norm,
)


@pytest.mark.parametrize(
    ("text", "norm", "name"),
    [
        ("fro", Frobenius(), "fro"),
        (" FRO ", Frobenius(), "fro"),
        ("nuc", Nuclear(), "nuc"),
        ("spec", Spectral(), "spec"),
        ("spectral", Spectral(), "spec"),
        ("Nuclear", Nuclear(), "nuc"),
        ("frobenius", Frobenius(), "fro"),
        ("rows", Rows(), "rows"),
        ("maxrow", MaxRow(), "maxrow"),
        ("dual:rows", MaxRow(), "maxrow"),
        ("dual:lp:1", Lp(inf), "lp:inf"),
        ("l1", Lp(1), "lp:1"),
        ("linf", Lp(inf), "lp:inf"),
        ("lp:1.75", Lp(1.75), "lp:1.75"),
        ("lp:2", Frobenius(), "fro"),
        ("lp:INF", Lp(inf), "lp:inf"),
        ("schatten:1", Nuclear(), "nuc"),
        ("schatten:3", Schatten(3), "schatten:3"),
        ("schatten:inf", Spectral(), "spec"),
        ("lp:1.0000000000000002", Lp(1.0000000000000002), "lp:1.0000000000000002"),
    ],
)
def test_names_lead_to_the_norm_and_back(text: str, norm: Norm, name: str) -> None:
    assert parse_norm(text) == norm
    assert hash(parse_norm(text)) == hash(norm)
    assert parse_norm(text).name == name
    assert parse_norm(name) == norm


def test_a_norm_of_ones_own_may_have_any_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Norm, "known", dict(Norm.known))

    class Mine(Lp):
        name = "mine:of two"

        @classmethod
        def spelled(cls, _family: str, _exponent: float | None) -> Norm:
            return cls(2.5)

    Norm.known["mine:of two"] = Mine
    assert isinstance(parse_norm("mine:of two"), Mine)


def test_a_norm_without_a_docstring_is_listed_by_its_class(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Norm, "known", dict(Norm.known))

    class Plain(Frobenius):
        name = "plain"

    assert norm_names()["plain"] == "Plain"


def test_every_listed_name_parses() -> None:
    for name, line in norm_names().items():
        assert isinstance(parse_norm(name.replace("P", "1.5")), Norm)
        assert line


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("manhattan", r"unknown norm 'manhattan'; known norms: fro, .*lp:P"),
        ("fro:2", r"unknown norm 'fro:2'"),
        ("lp", r"norm 'lp' needs an exponent after lp:, such as lp:1.75"),
        ("schatten:big", r"norm 'schatten:big' needs an exponent"),
        ("lp:0.5", r"Lp\(0.5\) is not a norm"),
        ("lp:nan", r"Lp\(nan\) is not a norm"),
    ],
)
def test_names_that_lead_nowhere(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_norm(text)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("nuclaer", "nuclear"),
        ("Froebnius", "frobenius"),
        ("row", "rows"),
        ("shatten:3", "schatten:3"),
        ("shatten", "schatten:P"),
        ("dual:spce", "spec"),
        ("dual", None),
        ("euclid", None),
    ],
)
def test_a_misspelt_name_is_told_the_one_that_is_like_it(text: str, meant: str | None) -> None:
    near = f"; did you mean {meant}?" if meant else ""
    with pytest.raises(InputError, match="unknown norm") as caught:
        parse_norm(text)
    told = text.rpartition("dual:")[2] if text != "dual" else text
    assert str(caught.value).startswith(f"unknown norm '{told}'; known norms: fro, ")
    assert str(caught.value).endswith(f"){near}")


def test_every_name_is_listed_where_one_is_unknown() -> None:
    with pytest.raises(InputError, match="unknown norm") as caught:
        parse_norm("euclid")
    for name in (*norm_names(), "dual:NAME", "frobenius for", "nuclear for", "spectral for"):
        assert f" {name}" in str(caught.value).replace("(", " ")


def test_repr_reads_back() -> None:
    named = (Frobenius(), Nuclear(), Spectral(), Rows(), MaxRow())
    for norm in (*named, Lp(1.75), Lp(inf), Schatten(3), Schatten(1.1)):
        assert eval(repr(norm), {**globals(), "inf": inf}) == norm
