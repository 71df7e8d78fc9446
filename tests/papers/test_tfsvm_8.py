"""tfsvm-8: the selected sets of the concave head are known before training."""

import numpy as np

from attsvm_papers.tfsvm import e8_concave_head as tfsvm_8


def test_strong_heads_select_everything_at_the_predicted_probabilities() -> None:
    found = tfsvm_8.run(range(100, 104), steps=400, strengths=[0.1, 2.0])
    weak, strong = found["strength"] == 0.1, found["strength"] == 2.0
    assert found["all_selected"][strong].all()
    assert found["selected"][weak].mean() < 2
    assert np.median(found["error_fixed"][strong]) < 0.02  # jitter of steps of 0.1
    assert (found["both_fixed"] >= found["margin_fixed"] - 1e-3)[weak].all()
