"""Programmes with nothing in them: no sequences, no rivals, no arcs, and what is left when
right-hand sides are zero.
"""

from __future__ import annotations

import numpy as np
import pytest
from instances import sphere

from attsvm.base.errors import InputError
from attsvm.datasets.attention_data import AttentionData
from attsvm.margins import Margins, ratio_margins
from attsvm.norms import parse_norm
from attsvm.solvers import max_margin
from attsvm.theory import graph_margins, order_margins, output_margins

NOTHING = np.zeros(0)
NO_NUMBERS = np.zeros(0, dtype=np.int64)
ONE_EACH = np.array([[True, False], [False, True]])

EMPTY = {
    "no sequences": Margins(
        np.zeros((0, 3)),
        np.zeros((0, 2)),
        np.zeros(1, dtype=np.int64),
        NOTHING,
        NO_NUMBERS,
        NO_NUMBERS,
    ),
    "no rivals": sphere(3, 1, 4, 0),
    "no known class": output_margins(np.ones((2, 2)), [-1, -1], classes=3),
    "no arcs": order_margins(np.ones((3, 2)), []),
    "no graph": graph_margins(np.ones((3, 2)), []),
    "no equalities": ratio_margins(
        AttentionData(np.ones((2, 2, 2)), np.ones(2)), ONE_EACH, np.ones((2, 2))
    ),
    "nothing left": sphere(3, 4, 4, 0).restricted([]),
}


@pytest.mark.parametrize(
    "name", ["fro", "l1", "linf", "lp:1.5", "lp:200", "nuc", "spec", "schatten:3"]
)
@pytest.mark.parametrize("case", EMPTY)
def test_the_zero_weights_solve_an_empty_programme(case: str, name: str) -> None:
    margins, norm = EMPTY[case], parse_norm(name)
    solution = max_margin(margins, norm)
    assert solution.status == "optimal"
    assert not solution.W.any()
    assert solution.W.shape == margins.shape
    assert solution.kkt() == (0.0, 0.0, 0.0, 0.0)
    assert solution.support_tokens().shape == (0, 2)
    assert solution.conflict().shape == (0, 3)
    if norm.name == "fro":
        assert max_margin(margins, norm, slack=1.0).status == "optimal"


def test_weights_without_entries_are_refused() -> None:
    margins = Margins(
        np.zeros((1, 0)),
        np.ones((1, 2)),
        np.arange(2),
        np.ones(1),
        np.ones(1, dtype=np.int64),
        np.zeros(1, dtype=np.int64),
    )
    with pytest.raises(
        InputError,
        match=(
            r"weights of these margins have shape \(0, 2\); tokens and queries need at least one"
            r" feature"
        ),
    ):
        max_margin(margins)
