"""tfsvm-1: reference numbers of the toys in the plane."""

import numpy as np
import pytest

from attsvm.claims import Evidence
from attsvm_papers.tfsvm import e1_plane as tfsvm_1


@pytest.mark.parametrize(("toy", "size"), [("plane", 301.0), ("plane_margins", 65.0)])
def test_published_factors_freeze_at_the_reference_norms_and_meet_the_nuclear_solution(
    toy, size
) -> None:
    rows = Evidence.of(tfsvm_1.run(toy, "published", 2, 1000))
    assert rows["nuclear"][:, -1].max() <= 2e-4  # cosine at least .9998
    sizes = np.linalg.svd(rows["W"][:, -1], compute_uv=False).sum(axis=-1)
    assert np.allclose(sizes, size, rtol=5e-3)  # three digits are given


@pytest.mark.parametrize(
    ("toy", "cosines", "digits"),
    [
        ("plane", {500: 0.9941, 1000: 0.9987, 2000: 0.9997}, 2e-4),
        ("plane_margins", {500: 0.9992, 1000: 0.9998, 2000: 0.9999}, 2e-5),
    ],
)
def test_W_has_the_reference_cosines(toy, cosines, digits) -> None:
    rows = Evidence.of(tfsvm_1.run(toy, "W", 1, 2000))
    for step, cosine in cosines.items():
        assert 1.0 - rows.at("frobenius", step)[0] >= cosine - 5e-5  # four digits are given
    assert max(rows["error_frobenius"][0], rows["error_nuclear"][0]) <= digits


def test_separate_norms_bias_the_limit_and_one_norm_does_not() -> None:
    separate, together = (
        Evidence.of(tfsvm_1.run("plane", method, 1, 40_000)) for method in ("separate", "together")
    )
    assert separate["nuclear"][0, -1] > 1e-4
    # falls like the step to the power -2 from 8e-6 at 10 000
    assert together["nuclear"][0, -1] < 2e-6
