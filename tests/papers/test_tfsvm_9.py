"""tfsvm-9: an output at every position."""

import pytest

from attsvm_papers.tfsvm import e9_every_position as tfsvm_9


@pytest.mark.parametrize("causal", [False, True])
def test_direction_is_that_of_the_sequence_programme(causal) -> None:
    found = tfsvm_9.trained(range(4), causal)
    assert found["gap"][:, -1].max() <= 1.0 - tfsvm_9.COSINE
    assert found["local"].all()


def test_ranks_are_of_fewer_positions_than_dimensions() -> None:
    found = tfsvm_9.ranks([2, 3, 12], range(5))
    assert found["feasible"].all()
    assert found["rank"].max() <= 6
    assert found["outside"].max() < 1e-7 < 0.1 < found["outside_other"].min()
