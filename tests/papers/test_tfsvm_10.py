"""tfsvm-10: regularisation paths against the numbers of an independent program."""

import numpy as np
import pytest

from attsvm_papers.tfsvm import e10_paths as tfsvm_10


@pytest.mark.parametrize("bound", [tfsvm_10.FROBENIUS, tfsvm_10.NUCLEAR])
def test_paths_have_the_reference_distances(bound) -> None:
    found = tfsvm_10.toys(1, bound, [10.0, 30.0, 100.0], 2)
    values = found["gap" if bound == tfsvm_10.FROBENIUS else "distance"]
    assert np.allclose(values, tfsvm_10.REFERENCE[1, bound][:3], rtol=0.05)  # two digits are given


def test_a_random_instance_has_the_limits_of_its_norms_and_too_few_columns_do_not() -> None:
    found = tfsvm_10.random(range(8), 2)
    known = np.isfinite(found["far_distance"])
    assert known.any()
    assert found["far_gap"].max() < 1e-4
    assert found["far_distance"][known].max() < 0.02 < found["far_fewer"][known].min()
