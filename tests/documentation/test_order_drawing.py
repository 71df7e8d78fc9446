"""The picture of a priority graph: winners above losers, no arrow that others imply, tied tokens in
one frame.
"""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from attsvm.report.style import canvas

from .conftest import module

draw_order = module("order_drawing").draw_order
NAMES = ["one", "two", "three", "four", "five"]


def drawn(arcs):
    """The heights of the names, the places of the arrows' ends, and the number of frames."""
    with canvas(2.0) as (_, axes):
        draw_order(axes[0], arcs, NAMES)
        at = {}
        for text in axes[0].texts:
            if text.get_text():
                at[tuple(np.round(text.get_position(), 9))] = NAMES.index(text.get_text())
        arrows = [text for text in axes[0].texts if not text.get_text()]
        ends = [[at.get(tuple(np.round(end, 9))) for end in (a.xyann, a.xy)] for a in arrows]
        return {name: place[1] for place, name in at.items()}, ends, len(axes[0].patches)


@settings(max_examples=10)  # a tenth of a second each
@given(
    st.lists(
        st.tuples(st.integers(0, 4), st.integers(0, 4)).filter(lambda p: p[0] < p[1]),
        min_size=1,
        max_size=9,
    )
)
def test_winners_stand_above_losers(arcs) -> None:
    height, arrows, frames = drawn(arcs)
    assert set(height) == {v for arc in arcs for v in arc}
    assert frames == 0
    assert all(height[i] > height[j] for i, j in arcs)
    below = np.zeros((5, 5), dtype=bool)
    below[tuple(np.array(arcs).T)] = True
    for k in range(5):
        below |= below[:, [k]] & below[[k]]
    wanted = [[i, j] for i, j in np.argwhere(below).tolist() if not (below[i] & below[:, j]).any()]
    assert sorted(arrows) == wanted


def test_tied_tokens_share_a_frame_and_a_row() -> None:
    height, arrows, frames = drawn([(0, 1), (1, 2), (2, 0), (2, 3), (0, 3), (4, 1)])
    assert frames == 1
    assert height[0] == height[1] == height[2]
    assert height[4] > height[0] > height[3]
    assert len(arrows) == 2
