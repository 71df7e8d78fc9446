"""What a run in the plane keeps for the explorer of its report."""

from __future__ import annotations

import numpy as np

from attsvm.datasets.attention_data import AttentionData
from attsvm.pipeline.results import SIZES, plane_arrays


def ragged(lengths: list[int], d: int = 2) -> AttentionData:
    rng = np.random.default_rng(0)
    return AttentionData.from_bags(
        [rng.normal(size=(length, d)) for length in lengths], np.ones(len(lengths))
    )


def kept(data: AttentionData, support: list[tuple[int, int]]) -> dict[str, np.ndarray]:
    selected = np.zeros(data.n, dtype=np.int64)
    scores = np.arange(data.n * data.T, dtype=float).reshape(data.n, data.T)
    return plane_arrays(data, selected, scores, np.array(support, dtype=np.int64).reshape(-1, 2))


def test_support_sequences_come_first() -> None:
    data = ragged([3] * 9)
    arrays = kept(data, [(7, 1), (2, 2), (7, 2)])
    assert arrays["plane_sequence"].tolist() == [7, 2, 0, 1, 3]
    assert len(arrays["plane_sequence"]) == SIZES.plane_sequences
    assert np.array_equal(arrays["plane_tokens"], data.tokens[[7, 2, 0, 1, 3]])
    assert np.array_equal(arrays["plane_scores"][0], np.arange(21.0, 24.0))


def test_sequences_with_nothing_to_choose_or_too_much_stay_out() -> None:
    assert kept(ragged([1, 20, 4]), [(1, 3)])["plane_sequence"].tolist() == [2]
    assert kept(ragged([1, 20]), []) == {}


def test_other_dimensions_keep_nothing() -> None:
    assert kept(ragged([3, 3], d=3), []) == {}
