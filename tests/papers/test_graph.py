"""Priority graphs: the numbers of the claims at a small scale, and the mathematics that the
experiments lean on.
"""

from __future__ import annotations

import numpy as np

from attsvm_papers.graph import e1_priority as graph_1
from attsvm_papers.graph import e6_paths as graph_6


def test_acyclic_training_meets_the_programme() -> None:
    found = graph_1.train_on_acyclic("b", [6, 4, 6, 8], 0.1, 2000, range(8))
    assert found["cosine"][:, -1].mean() >= 0.997  # that of C4.3's experiment
    assert found["optimal"].all()
    assert (np.diff(found["step"][0]) > 0).all()


def test_the_cyclic_part_oscillates_with_half_a_step() -> None:
    found = graph_1.train_on_cyclic(graph_1.CONSTANT, 0.01, 0.0, 4000, range(8))
    np.testing.assert_allclose(found["plateau"] / 0.01, 0.5, atol=0.125)
    assert found["finite"].shape == found["step"].shape
    assert np.nanmin(found["unseen_predicted"][:, 0]) == 1.0


def test_paths_at_a_small_scale() -> None:
    path = graph_6.run(2, range(8), [5.0, 20.0, 60.0])
    assert (np.diff(path["cosine"], axis=1) > 0).all()
    assert (path["finite"][:, -1] < 1e-4).all()
