"""tfsvm-11: self-attention."""

import pytest

from attsvm_papers.tfsvm import e11_self_attention as tfsvm_11


@pytest.mark.parametrize("own", [False, True])
def test_any_selection_is_feasible_at_the_dimension_of_the_theorem(own) -> None:
    found = tfsvm_11.random_selections(4, 6, range(30), own)
    assert found["selectable"].all()
    assert not found["selectable_plane"].all()
