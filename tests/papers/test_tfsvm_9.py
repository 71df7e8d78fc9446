"""tfsvm-9: an output at every position."""

import numpy as np
import pytest

from attsvm import AttentionData, sequence_pairs, train
from attsvm.datasets import unit_sphere
from attsvm.dynamics import AtSteps
from attsvm.models import Attention
from attsvm.optim import SteepestDescent
from attsvm_papers.tfsvm import e9_every_position as tfsvm_9


@pytest.mark.parametrize("causal", [False, True])
def test_direction_is_that_of_the_sequence_programme(causal) -> None:
    found = tfsvm_9.trained(range(4), causal)
    assert found["gap"][:, -1].max() <= 1.0 - tfsvm_9.COSINE
    assert found["local"].all()


@pytest.mark.parametrize("causal", [False, True])
def test_an_output_at_every_position_is_single_outputs_on_all_pairs(causal) -> None:
    data, heads = unit_sphere(2, 4, 8, [0, 1])
    labels = np.random.default_rng(9).choice([-1.0, 1.0], (2, 2, 4))
    each = [sequence_pairs(data.instance(k), labels[k], causal) for k in range(2)]
    pairs = AttentionData(
        *(
            np.stack([getattr(one, part) for one in each])
            for part in ("tokens", "labels", "queries", "mask")
        )
    )
    ends = []
    for model, seen in (
        (Attention.cross(pairs, heads), pairs),
        (Attention.sequence(data, labels, heads, causal=causal), data),
    ):
        descent = SteepestDescent(model.parameters(), lr=0.1)
        ends.append(train(model, seen, descent, 200, AtSteps(())).W[-1])
    np.testing.assert_allclose(*ends, atol=1e-10)


def test_ranks_are_of_fewer_positions_than_dimensions() -> None:
    found = tfsvm_9.ranks([2, 3, 12], range(5))
    assert found["feasible"].all()
    assert found["rank"].max() <= 6
    assert found["outside"].max() < 1e-7 < 0.1 < found["outside_other"].min()
