"""E2.11: self-attention."""

import pytest

from attsvm.experiments import tfsvm_11
from attsvm.pipeline.cells import _computes


@pytest.mark.parametrize("own", [False, True])
def test_any_selection_is_feasible_at_the_dimension_of_the_theorem(own) -> None:
    assert tfsvm_11._random_selections(4, 6, 30, own)["selectable"].all()


def test_cells_know_the_experiments_that_they_repeat() -> None:
    seen: set[str] = set()
    _computes("attsvm.experiments.tfsvm_11", seen)
    assert {f"attsvm.experiments.tfsvm_{k}" for k in (3, 4, 5)} <= seen
