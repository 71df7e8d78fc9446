"""tfsvm-3: local convergence at a small scale."""

import numpy as np

from attsvm_papers.tfsvm import e3_local_convergence as tfsvm_3


def test_W_follows_the_reference_and_descent_points_inward_in_the_cone() -> None:
    found = tfsvm_3.run(False, False, 0.0, range(20), steps=400)
    for column in ("probability", "frobenius", "nuclear"):
        for step, value in ((200, 2), (400, 3)):
            mean = found[column][:, list(found["step"][0]).index(step)].mean()
            # twice the tolerance of 100 seeds
            assert abs(mean - tfsvm_3.REFERENCE[column, False][value]) < 0.04
    assert np.nanmin(found["cone_ascent"]) > 0
