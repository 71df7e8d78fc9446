"""The picture of a priority graph: winners above losers, no arrow that others imply, tied tokens in
one frame.
"""

from __future__ import annotations

import importlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attsvm.report.style import canvas

DOCS = Path(__file__).parents[2] / "docs"
if not (DOCS / "order_drawing.py").exists():
    pytest.skip("the documentation is not beside the tests", allow_module_level=True)
with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(DOCS)
    draw_order = importlib.import_module("order_drawing").draw_order

NAMES = ["one", "two", "three", "four", "five"]


def _place(point: tuple[float, float]) -> tuple[float, float]:
    return round(float(point[0]), 9), round(float(point[1]), 9)


def drawn(
    arcs: list[tuple[int, int]],
) -> tuple[
    dict[str, tuple[float, float]], list[tuple[tuple[float, float], tuple[float, float]]], int
]:
    """Places of the names, ends of the arrows, and the number of frames."""
    with canvas(2.0) as (_, axes):
        draw_order(axes[0], arcs, NAMES)
        words = [text for text in axes[0].texts if text.get_text()]
        arrows = [text for text in axes[0].texts if not text.get_text()]
        places = {text.get_text(): _place(text.get_position()) for text in words}
        return places, [(_place(a.xyann), _place(a.xy)) for a in arrows], len(axes[0].patches)


@settings(max_examples=10)  # a tenth of a second each
@given(
    st.lists(
        st.tuples(st.integers(0, 4), st.integers(0, 4)).filter(lambda p: p[0] < p[1]),
        min_size=1,
        max_size=9,
    )
)
def test_winners_stand_above_losers(arcs: list[tuple[int, int]]) -> None:
    places, arrows, frames = drawn(arcs)
    assert set(places) == {NAMES[v] for arc in arcs for v in arc}
    assert frames == 0
    for i, j in arcs:
        assert places[NAMES[i]][1] > places[NAMES[j]][1]
    at = {place: name for name, place in places.items()}
    below = np.zeros((5, 5), dtype=bool)
    below[tuple(np.array(arcs).T)] = True
    for k in range(5):
        below |= below[:, [k]] & below[[k]]
    shown = {(NAMES.index(at[start]), NAMES.index(at[stop])) for start, stop in arrows}
    assert shown == {
        (i, j) for i, j in np.argwhere(below).tolist() if not (below[i] & below[:, j]).any()
    }


def test_tied_tokens_share_a_frame_and_a_row() -> None:
    places, arrows, frames = drawn([(0, 1), (1, 2), (2, 0), (2, 3), (0, 3), (4, 1)])
    assert frames == 1
    assert places["one"][1] == places["two"][1] == places["three"][1]
    assert places["five"][1] > places["one"][1] > places["four"][1]
    assert len(arrows) == 2
