"""Similar queries, and the shortest weights with two maps."""

from __future__ import annotations

import numpy as np
import pytest

from attsvm_papers.selective.e1_temperatures import FLAT, SHARP, draw_pairs, shortest_weights


def test_the_shortest_weights_are_shortest_and_as_long_as_the_distance_says() -> None:
    """W takes keys to gaps along each query; along the difference of a pair it is (8 - 1) / delta
    times as long as the unit gap needs.
    """
    for distance in (0.02, 0.01):
        data, logits = draw_pairs(distance, [3])
        z = data.queries[0].reshape(-1, 2, data.d_z)
        np.testing.assert_allclose(np.linalg.norm(z[:, 0] - z[:, 1], axis=1), distance, rtol=1e-9)
        (W,), error = shortest_weights(data, logits)
        assert error[0] < 1e-8
        X, queries = data.tokens[0], data.queries[0]
        gaps = np.einsum("itd,de,ie->it", X[:, :1] - X[:, 1:], W, queries)
        np.testing.assert_allclose(gaps, np.tile([[FLAT], [SHARP]], (5, 5)), atol=1e-8)
        rows = np.einsum("itd,ie->itde", X[:, :1] - X[:, 1:], queries).reshape(-1, W.size)
        within = np.linalg.lstsq(rows.T, W.ravel(), rcond=None)[0]
        np.testing.assert_allclose(rows.T @ within, W.ravel(), atol=1e-6 * np.abs(W).max())


def test_one_norm_times_the_distance_is_nearly_constant() -> None:
    norms = [
        distance * np.linalg.norm(shortest_weights(*draw_pairs(distance, [3]))[0])
        for distance in (0.02, 0.01)
    ]
    assert norms[0] == pytest.approx(norms[1], rel=1e-2)
