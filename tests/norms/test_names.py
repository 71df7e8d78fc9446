"""Names lead to norms and back."""

from __future__ import annotations

from math import inf

import pytest

from attsvm.base.errors import InputError
from attsvm.norms import (
    Frobenius,
    Lp,
    MaxRow,
    Norm,
    Nuclear,
    Rows,
    Schatten,
    Spectral,
    as_norm,
    norm_names,
    parse_norm,
)


@pytest.mark.parametrize(
    ("text", "norm", "name"),
    [
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
    found = parse_norm(text)
    assert found == norm == parse_norm(name)
    assert (hash(found), found.name) == (hash(norm), name)
    assert eval(repr(found), {**globals(), "inf": inf}) == norm


def test_every_listed_name_parses_and_norms_of_ones_own_are_listed(monkeypatch) -> None:
    monkeypatch.setattr(Norm, "known", dict(Norm.known))

    class Plain(Frobenius):
        name = "plain:of two"

    assert norm_names()["plain:of two"] == "Plain"
    assert isinstance(parse_norm("plain:of two"), Plain)
    for name, line in norm_names().items():
        assert isinstance(parse_norm(name.replace("P", "1.5")), Norm)
        assert line


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lp", r"norm 'lp' needs an exponent after lp:, such as lp:1.75"),
        ("schatten:big", r"norm 'schatten:big' needs an exponent"),
        ("lp:0.5", r"Lp\(0.5\) is not a norm"),
        ("lp:nan", r"Lp\(nan\) is not a norm"),
        ("fro:2", r"unknown norm 'fro:2'; known norms: fro, .*; did you mean fro\?$"),
        ("nuclaer", r"unknown norm 'nuclaer'; .*; did you mean nuclear\?$"),
        ("Froebnius", r"; did you mean frobenius\?$"),
        ("row", r"; did you mean rows\?$"),
        ("l3", r"unknown norm 'l3'; .*; did you mean lp:3\?$"),
        ("LP1.75", r"unknown norm 'LP1.75'; .*; did you mean lp:1\.75\?$"),
        ("shatten:3", r"; did you mean schatten:3\?$"),
        ("shatten", r"; did you mean schatten:P\?$"),
        ("dual:spce", r"unknown norm 'spce'; .*; did you mean spec\?$"),
        ("dual", r"unknown norm 'dual'; .*\)$"),
        ("euclid", r"lp:P, .*dual:NAME \(frobenius for fro, nuclear for nuc, spectral for spec\)$"),
    ],
)
def test_names_that_lead_nowhere(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_norm(text)


def test_a_norm_may_be_given_by_its_name() -> None:
    assert (as_norm(None), as_norm("spec"), as_norm(Rows())) == (Frobenius(), Spectral(), Rows())
    with pytest.raises(InputError, match=r"norm is 2; give an attsvm\.norms\.Norm such as"):
        as_norm(2)
