"""Values in a few words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import attsvm
from attsvm.datasets import load, toy
from attsvm.datasets.next_token import partial_order, priority_graph
from attsvm.printable import Compact, kind

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


@settings(max_examples=10)
@given(ANYTHING, ANYTHING, st.integers(0, 400))
def test_a_compact_repr_stays_short(first: Any, second: Any, size: int) -> None:
    text = repr(Holder(first, [second] * size, np.ones((size, 3))))
    assert len(text) <= LONGEST
    assert text.startswith("Holder(first=")


def test_a_compact_repr_says_what_is_held() -> None:
    text = repr(Holder(np.zeros((3, 4)), list(range(50)), "name"))
    assert text == "Holder(first=<3 x 4 float64>, second=<list of 50>, third='name')"


@given(st.integers(1, 30), st.integers(2, 8), st.integers(1, 12), st.integers(0, 5))
def test_data_and_margins_of_any_size(n: int, T: int, d: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    data = attsvm.AttentionData(1e9 * rng.normal(size=(n, T, d)), rng.choice([-1.0, 1.0], n))
    for each in (data, attsvm.selection_margins(data, np.zeros(n, dtype=int))):
        assert len(repr(each)) <= LONGEST
        assert "array" not in repr(each)


@pytest.mark.parametrize("size", [2, 40])
@pytest.mark.parametrize("norm", ["fro", "schatten:1.2345678901234567"])
def test_solutions_of_any_size(size: int, norm: str) -> None:
    data, head = attsvm.datasets.unit_sphere(n=size, T=4, d=max(size, 8), seed=0)
    tokens = attsvm.optimal_tokens(data, head)
    one = attsvm.max_margin(data, tokens, norm, tol=1e-3)
    margins = attsvm.selection_margins(data, tokens)
    hopeless = attsvm.AttentionData([[[0.0], [1e200], [-1e200]]], [1.0], [[1.0]])
    for each in (
        one,
        attsvm.max_margin(hopeless, [0]),
        attsvm.max_margin([margins] * 30),
        attsvm.MarginsBatch.stack([margins] * 30),
        attsvm.regularization_path(data, head, None, [1.0, 2.0], starts=0),
    ):
        assert 20 < len(repr(each)) <= LONGEST
        assert "array" not in repr(each)


def test_other_data() -> None:
    graph = priority_graph(4, 6, 8, 8, 0)
    for each in (load("digits"), toy("joint"), graph, partial_order(graph)):
        assert 20 < len(repr(each)) <= LONGEST


def test_kinds_in_a_sentence() -> None:
    assert kind(np.ones((2, 3))) == "ndarray of shape (2, 3)"
    assert kind(attsvm.Nuclear) == "the class Nuclear"
    assert kind("x" * 90) == f"'{'x' * 39}..."
    assert kind([1] * 900) == "list"
