"""E2.9: an output at every position."""

import pytest

from attsvm_papers.tfsvm import e9_every_position as tfsvm_9


@pytest.mark.parametrize("causal", [False, True])
def test_direction_is_that_of_the_sequence_programme(causal) -> None:
    found = tfsvm_9.run(2, 4, 8, 6000, 0.1, range(4), causal)
    assert found["flattened"].max() < 1e-10
    assert found["gap"][:, -1].max() <= 1.0 - tfsvm_9.COSINE
    assert found["local"].all()
