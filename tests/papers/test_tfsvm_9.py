"""tfsvm-9: an output at every position."""

import numpy as np
import pytest

from attsvm_papers.tfsvm import e9_every_position as tfsvm_9


@pytest.mark.parametrize("causal", [False, True])
def test_direction_is_that_of_the_sequence_programme(causal) -> None:
    found = tfsvm_9.trained(range(4), causal)
    assert found["gap"][:, -1].max() <= 1.0 - tfsvm_9.COSINE
    assert found["local"].all()


def test_the_best_weights_are_at_the_frobenius_solution() -> None:
    found = tfsvm_9.farthest([2, 3, 12], range(3))
    assert np.nanmax(found["far_gap"]) < 1e-4 < 0.01 < np.nanmin(found["far_gap_other"])
