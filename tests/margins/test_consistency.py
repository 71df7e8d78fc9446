"""Arrays that do not fit together are refused in one sentence, before compiled code reads them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from attsvm.errors import InputError
from attsvm.margins import Margins, MarginsBatch
from attsvm.solvers import max_margin


def small() -> Margins:
    return Margins(
        np.ones((6, 3)),
        np.ones((2, 3)),
        np.array([0, 3, 6]),
        np.ones(6),
        np.zeros(6, dtype=int),
        np.zeros(2, dtype=int),
    )


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"offsets": np.array([0, 3, 10**9])}, r"offsets must rise from 0 to 6, the number of"),
    ({"offsets": np.array([0, 10**12, 6])}, "offsets must rise"),
    ({"offsets": np.array([-5, 3, 6])}, "offsets must rise"),
    ({"offsets": np.array([0, 6])}, "offsets has 2 entries; it must have 3"),
    ({"offsets": np.array([0.0, 3.0, 6.0])}, "offsets has dtype float64; give integers"),
    ({"offsets": np.array([[0, 3, 6]])}, r"offsets has shape \(1, 3\); it must have one axis"),
    ({"rhs": np.ones(5)}, "rhs has 5 rows; it must have 6, one per constraint"),
    ({"rhs": np.ones(6, dtype=complex)}, "rhs has dtype complex128; give real numbers"),
    ({"token": np.zeros(7, dtype=int)}, "token has 7 rows; it must have 6"),
    ({"selected": np.zeros(1, dtype=int)}, "selected has 1 rows; it must have 2"),
    ({"differences": np.ones((6, 3), dtype=object)}, "differences has dtype object"),
    ({"differences": np.ones(6)}, r"differences has shape \(6,\); it must have two axes"),
    ({"queries": np.ones((2, 3, 1))}, "queries has shape"),
    ({"queries": [[1.0], [1.0, 2.0]]}, "queries is not an array"),
    ({"equality": np.zeros(6)}, "equality has dtype float64; give booleans"),
    ({"equality": np.zeros(3, dtype=bool)}, "equality has 3 rows"),
    ({"origin": np.zeros((3, 1), dtype=int)}, "origin has 3 rows"),
    ({"kind": "other"}, "kind is 'other'; use one of selection, set"),
]


@pytest.mark.parametrize(("change", "sentence"), WRONG)
def test_what_does_not_fit_is_refused(change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=f"margins.{sentence}") as refused:
        replace(small(), **change)
    assert "\n" not in str(refused.value)


def test_lists_become_arrays() -> None:
    margins = Margins([[1.0, 0.0]], [[1.0]], [0, 1], [1.0], [1], [0])  # type: ignore[arg-type]
    assert max_margin(margins).status == "optimal"
    np.testing.assert_array_equal(max_margin(margins).W, [[1.0], [0.0]])


def test_offsets_that_changed_since_are_refused_before_solving() -> None:
    margins = small()
    margins.offsets[2] = 10**9
    with pytest.raises(InputError, match="offsets must rise from 0 to 6"):
        max_margin(margins)


def test_a_batch_is_checked_as_well() -> None:
    batch = MarginsBatch.stack([small(), small()])
    with pytest.raises(InputError, match="instances must rise from 0 to 4, the number of"):
        replace(batch, instances=np.array([0, 9, 4]))
    with pytest.raises(InputError, match="offsets must rise"):
        replace(batch, offsets=batch.offsets[::-1].copy())
    batch.instances[1] = 40
    with pytest.raises(InputError, match="instances must rise"):
        max_margin(batch)
