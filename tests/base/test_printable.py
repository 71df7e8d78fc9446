"""Values in a few words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import attsvm
from attsvm.base.printable import Compact, kind
from attsvm.datasets import load, toy
from attsvm.theory.sentences import partial_order, priority_graph

LONGEST = 300

ANYTHING = st.recursive(
    st.one_of(st.none(), st.integers(), st.floats(), st.text(), st.binary(max_size=400)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=9), st.dictionaries(st.text(), inner, max_size=9)
    ),
    max_leaves=20,
)


@dataclass(repr=False)
class Holder(Compact):
    first: Any
    second: Any
    third: Any


@settings(max_examples=5)
@given(ANYTHING, ANYTHING, st.integers(0, 400))
def test_a_compact_repr_stays_short(first: Any, second: Any, size: int) -> None:
    text = repr(Holder(first, [second] * size, np.ones((size, 3))))
    assert len(text) <= LONGEST
    assert text.startswith("Holder(first=")


def test_a_compact_repr_says_what_is_held() -> None:
    text = repr(Holder(np.zeros((3, 4)), list(range(50)), "name"))
    assert text == "Holder(first=<3 x 4 float64>, second=<list of 50>, third='name')"
    text = repr(Holder([1] * 6, [1] * 7, 0))
    assert text == "Holder(first=[1, 1, 1, 1, 1, 1], second=<list of 7>, third=0)"


def test_whatever_is_shown_is_short_and_without_numbers() -> None:
    data, head = attsvm.datasets.unit_sphere(n=40, T=4, d=40, seed=0)
    tokens, graph = attsvm.optimal_tokens(data, head), priority_graph(4, 6, 8, 8, 0)
    margins = attsvm.selection_margins(data, tokens)
    hopeless = attsvm.AttentionData([[[0.0], [1e200], [-1e200]]], [1.0], [[1.0]])
    for each in (
        data,
        margins,
        attsvm.max_margin(margins, "schatten:1.2345678901234567", tol=1e-3),
        attsvm.max_margin(attsvm.selection_margins(hopeless, [0])),
        attsvm.max_margin_batch([margins] * 30),
        attsvm.MarginsBatch.stack([margins] * 30),
        attsvm.regularization_path(data, head, None, [1.0, 2.0], starts=0),
        load("digits"),
        graph,
        partial_order(graph),
    ):
        assert 20 < len(repr(each)) <= LONGEST
        assert "array" not in repr(each)
    assert len(repr(toy("joint"))) <= LONGEST


def test_kinds_in_a_sentence() -> None:
    assert kind(np.ones((2, 3))) == "ndarray of shape (2, 3)"
    assert kind(attsvm.Nuclear) == "the class Nuclear"
    assert kind("x" * 90) == f"'{'x' * 39}..."
    assert kind([1] * 900) == "list"
